"""Finds which process of a run failed first, and why."""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Callable, Sequence

from timetotrain.launch.children import exit_status
from timetotrain.launch.watch.worker import Worker

# Exit status of a run with a frozen process; benchmarks never exit with it.
FROZEN = 3
# An error that refers to another process's (common/train/checkpoint.py).
_SECOND_HAND = re.compile(r"process \d+ says why")
# Last words of a process that aborts for want of memory or threads.
_NO_MEMORY = re.compile(
    rb"bad_alloc|[Cc]annot allocate memory|RESOURCE_EXHAUSTED|[Oo]ut of memory|length_error"
)
_NO_THREADS = re.compile(rb"Resource temporarily unavailable|pthread_create")
# Last words of a process that jax aborts because another one is lost; jax names it as a task.
_PEER = re.compile(rb"distributed service|coordination service|heartbeat|unhealthy")
_TASK = re.compile(rb"task[:=_ ](\d+)")


@dataclasses.dataclass(frozen=True)
class Cause:
    """Why a run failed.

    Attributes:
      rank: whose failure it is; -1: the launcher itself.
      text: what happened to it.
      code: the exit status.
      stopped: somebody stopped the run by a signal.
      start: the step at which the processes began; -1 if none has told it.
      trained: whether any rank has trained a step.
    """

    rank: int
    text: str
    code: int
    stopped: bool = False
    start: int = -1
    trained: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank} {self.text}" if self.rank >= 0 else self.text


def find(workers: Sequence[Worker], launcher_signal: int = 0) -> Cause | None:
    """Returns why a run failed, once every process has ended; None if all ended as announced.

    A process's own failure outranks errors that other processes report, since those follow from it. The order: frozen,
    killed, signalled, an error, an abort, an error or abort that another process caused, an exit status without a
    message, a lost connection. Among equals the earliest counts.
    """
    if all(w.told.get("result") in (0, 1) for w in workers):
        return (
            None  # They ended by themselves; a scheduler may signal this launcher once another one has ended.
        )
    if launcher_signal:
        name = signal.Signals(launcher_signal).name
        return Cause(-1, f"{name} to the launcher: the run stopped", 128 + launcher_signal, True)
    suspects: Sequence[tuple[Callable[[Worker], str], str]] = (
        (lambda w: w.frozen, "ended_at"), (_killed, "ended_at"), (_signalled, "signal"),
        (lambda w: _failed(w, False), "error"), (lambda w: _aborted(w, False), "ended_at"),
        (lambda w: _failed(w, True), "error"), (lambda w: _aborted(w, True), "ended_at"),
        (_exited, "ended_at"),
        (lambda w: "lost the connection to the others" if "lost" in w.told else "", "lost"),
    )  # fmt: skip
    for sentence, when in suspects:
        guilty = [w for w in workers if sentence(w)]
        if guilty:
            first = min(guilty, key=lambda w: w.ended_at if when == "ended_at" else w.told_at[when])
            # A process that starts does not catch the signal yet.
            stopped = sentence is _signalled or first.code in (-signal.SIGTERM, -signal.SIGINT)
            start, step = (max(w.told.get(fact, -1) for w in workers) for fact in ("start", "step"))
            return Cause(first.rank, sentence(first), _code(first), stopped, start, step > start)
    return None


def _killed(worker: Worker) -> str:
    if worker.code == -signal.SIGABRT:
        return ""
    text = _ended_by_signal(worker)
    # The kernel writes nothing to the process that it kills.
    hint = ", by the kernel for want of memory; use a smaller batch, or more memory"
    return text + hint if text and worker.code == -signal.SIGKILL and worker.out_of_memory() else text


def _failed(worker: Worker, second_hand: bool) -> str:
    error = worker.told.get("error", "")
    return f"failed: {error}" if error and bool(_SECOND_HAND.search(error)) == second_hand else ""


def _aborted(worker: Worker, second_hand: bool) -> str:
    """Describes an abort with its reason; `second_hand`: a library aborted because another process was lost."""
    text = _ended_by_signal(worker) if worker.code == -signal.SIGABRT else ""
    words = b"\n".join(worker.last_words)
    lost = _PEER.search(words) is not None
    if not text or lost != second_hand:
        return ""
    if lost:
        tasks = {int(number) for number in _TASK.findall(words)} - {worker.rank}
        peers = ", ".join(f"rank {number}" for number in sorted(tasks)) or "another process"
        return f"lost {peers}, which no longer answers"
    if _NO_MEMORY.search(words):
        return f"{text}: out of memory; use a smaller --config.global_batch_size, or more memory"
    if _NO_THREADS.search(words):
        return f"{text}: no more threads; raise `ulimit -u` or the container's limit of processes"
    return text


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
