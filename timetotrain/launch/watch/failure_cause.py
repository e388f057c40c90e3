"""Finds which process of a run failed first, and why."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Sequence

from timetotrain.launch.children import exit_status
from timetotrain.launch.watch.worker import Worker

# Exit status of a run with a frozen process; benchmarks never exit with it.
FROZEN = 3


@dataclasses.dataclass(frozen=True)
class Cause:
    """`text` says what happened to rank `rank` (-1: the launcher itself); `code` is the exit status."""

    rank: int
    text: str
    code: int

    def __str__(self) -> str:
        return f"rank {self.rank} {self.text}" if self.rank >= 0 else self.text


def find(workers: Sequence[Worker], launcher_signal: int = 0) -> Cause | None:
    """Returns why a run failed, once every process has ended; None if all ended as announced.

    A process's own failure outranks errors that other processes report, since those follow from it. The order: frozen,
    killed, signalled, an error, an abort, an exit status without a message, a lost connection. Among equals the
    earliest counts. A library such as jax may abort a process because another one has failed.
    """
    if all(w.told.get("result") == 0 for w in workers):
        return None  # The signal may have arrived after the run had ended well.
    if launcher_signal:
        name = signal.Signals(launcher_signal).name
        return Cause(-1, f"{name} to the launcher: the run stopped", 128 + launcher_signal)
    suspects: Sequence[tuple[Callable[[Worker], str], str]] = (
        (lambda w: w.frozen, "ended_at"),
        (_killed, "ended_at"),
        (_signalled, "signal"),
        (lambda w: w.told.get("error", "") and f"failed: {w.told['error']}", "error"),
        (_aborted, "ended_at"),
        (_exited, "ended_at"),
        (lambda w: "lost the connection to the others" if "lost" in w.told else "", "lost"),
    )
    for sentence, when in suspects:
        guilty = [w for w in workers if sentence(w) and not w.lost]
        if guilty:
            first = min(guilty, key=lambda w: w.ended_at if when == "ended_at" else w.told_at[when])
            return Cause(first.rank, sentence(first), _code(first))
    return None


def _killed(worker: Worker) -> str:
    return "" if worker.code == -signal.SIGABRT else _ended_by_signal(worker)


def _aborted(worker: Worker) -> str:
    return _ended_by_signal(worker) if worker.code == -signal.SIGABRT else ""


def _ended_by_signal(worker: Worker) -> str:
    code = worker.code or 0
    if code >= 0 or worker.asked_at is not None or "signal" in worker.told:
        return ""
    return f"was killed by {_name(-code)}"


def _signalled(worker: Worker) -> str:
    """Describes a signal that the launcher did not send; "" if there was none."""
    if (
        "signal" not in worker.told
        or worker.asked_at is not None
        and worker.asked_at < worker.told_at["signal"]
    ):
        return ""
    left = "" if "result" in worker.told else ", but not all processes answered"
    return f"received {worker.told['signal']}: the run stopped{left}"


def _exited(worker: Worker) -> str:
    if not worker.code or {"result", "lost"} & worker.told.keys() or worker.asked_at is not None:
        return ""
    return f"ended with exit status {worker.code}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _code(worker: Worker) -> int:
    if worker.frozen:
        return FROZEN
    if _signalled(worker):
        return 128 + signal.Signals[worker.told["signal"]]
    return exit_status(worker.code or 1)
