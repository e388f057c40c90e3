"""Finds which process of a run failed first, and why."""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Sequence

from common.errors import PeerLostError
from timetotrain.launch.children import exit_status
from timetotrain.launch.watch.signals import SIGNALS
from timetotrain.launch.watch.worker import POLL_SECONDS, Worker

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


# A killed process takes this long to go, while the others already report what follows from it.
_TEARDOWN_SECONDS = 1.5


def find(workers: Sequence[Worker], launcher_signal: int = 0) -> Cause | None:
    """Returns why a run failed, once every process has ended; None if all ended as announced.

    The earliest failure counts. Three kinds never come before it: what a process reports after the launcher asked it
    to end, an error or abort that another process caused, and a lost connection.
    """
    if all(w.told.get("result") in (0, 1) for w in workers):
        # They ended by themselves; a scheduler may signal this launcher once another one has ended.
        return None
    if launcher_signal:
        return stopped_by(launcher_signal)
    failures = [failure for worker in workers if (failure := _failure(worker))]
    if not failures:
        return None
    first = min(failures, key=lambda failure: (failure.follows, failure.at))
    worker, start = first.worker, max(w.told.get("start", -1) for w in workers)
    # A process that starts does not catch the signal yet.
    stopped = first.signal or worker.code in [-number for number in SIGNALS]
    step = max(w.told.get("step", -1) for w in workers)
    aborted_by_peer = first.follows and worker.code == -signal.SIGABRT
    code = PeerLostError().exit_code if aborted_by_peer else _code(worker)
    return Cause(worker.rank, first.text, code, stopped, start, step > start)


def stopped_by(number: int) -> Cause:
    """Returns the cause of a run that a signal to the launcher stopped."""
    return Cause(-1, f"{signal.Signals(number).name} to the launcher: the run stopped", 128 + number, True)


@dataclasses.dataclass(frozen=True)
class _Failure:
    """A process's failure: when, in monotonic seconds; `follows`: 0 for its own, more if it follows from another's."""

    worker: Worker
    at: float
    text: str
    follows: int = 0
    signal: bool = False


def _failure(worker: Worker) -> _Failure | None:
    """Returns how a process failed; None if it did not."""
    if worker.frozen:
        return _Failure(worker, worker.frozen_since or worker.ended_at, worker.frozen)
    if text := _killed(worker):
        return _Failure(worker, worker.ended_at - _TEARDOWN_SECONDS, text)
    if text := _signalled(worker):
        return _Failure(worker, worker.told_at["signal"], text, signal=True)
    if error := worker.told.get("error"):
        at = worker.told_at["error"]
        follows = 2 * bool(_SECOND_HAND.search(error)) or int(worker.was_asked_before(at))
        return _Failure(worker, at, f"failed: {error}", follows)
    if aborted := _aborted(worker):  # Often what another's error causes, so a tie goes to the error.
        return _Failure(worker, worker.ended_at, *aborted)
    if text := _exited(worker):
        # A message has its process's own time, an end that of the look after it.
        return _Failure(worker, worker.ended_at - POLL_SECONDS, text)
    if "lost" in worker.told:
        return _Failure(worker, worker.told_at["lost"], "lost the connection to the others", 3)
    return None


def _killed(worker: Worker) -> str:
    if worker.code == -signal.SIGABRT:
        return ""
    text = _ended_by_signal(worker)
    # The kernel writes nothing to the process that it kills.
    hint = ", by the kernel for want of memory; use a smaller batch, or more memory"
    return text + hint if text and worker.code == -signal.SIGKILL and worker.out_of_memory() else text


def _aborted(worker: Worker) -> tuple[str, int] | None:
    """Returns what an abort was, with its reason, and 2 if a library aborted because another process was lost."""
    text = _ended_by_signal(worker) if worker.code == -signal.SIGABRT else ""
    if not text:
        return None
    words = b"\n".join(worker.last_words)
    if _PEER.search(words):
        tasks = {int(number) for number in _TASK.findall(words)} - {worker.rank}
        peers = ", ".join(f"rank {number}" for number in sorted(tasks)) or "another process"
        return f"lost {peers}, which no longer answers", 2
    if _NO_MEMORY.search(words):
        return f"{text}: out of memory; use a smaller --config.global_batch_size, or more memory", 0
    if _NO_THREADS.search(words):
        return f"{text}: no more threads; raise `ulimit -u` or the container's limit of processes", 0
    return text, 0


def _ended_by_signal(worker: Worker) -> str:
    code = worker.code or 0
    if code >= 0 or worker.asked_at is not None or "signal" in worker.told:
        return ""
    return f"was killed by {_name(-code)}"


def _signalled(worker: Worker) -> str:
    """Describes a signal that the launcher did not send; "" if there was none."""
    if "signal" not in worker.told or worker.was_asked_before(worker.told_at["signal"]):
        return ""
    left = "" if "result" in worker.told else ", but not all processes answered"
    return f"received {worker.told['signal']}: the run stopped{left}"


def _exited(worker: Worker) -> str:
    if not worker.ended_early or "lost" in worker.told or worker.asked_at is not None:
        return ""
    return f"ended with exit status {worker.code}" + ("" if worker.code else ", before the run did")


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
