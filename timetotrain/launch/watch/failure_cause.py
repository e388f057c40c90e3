"""Finds which process of a run failed first, and why."""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Sequence
from typing import Any

from common.distributed.heartbeat import STOPS
from common.errors import PeerLostError
from timetotrain.launch.watch.signals import Signals, stopped_by
from timetotrain.launch.watch.worker import POLL_SECONDS, Worker

# Exit status of a run with a frozen process; benchmarks never exit with it.
FROZEN = 3
# Last words of a process that aborts for want of memory or threads.
_NO_MEMORY = re.compile(
    rb"bad_alloc|[Cc]annot allocate memory|RESOURCE_EXHAUSTED|[Oo]ut of memory|length_error"
)
_NO_THREADS = re.compile(rb"Resource temporarily unavailable|pthread_create")
# Last words of a process that jax aborts because another one is lost; jax names it as a task.
_PEER = re.compile(rb"distributed service|coordination service|heartbeat|unhealthy")
_TASK = re.compile(rb"task[:=_ ](\d+)")
# A killed process takes this long to go, while the others already report what follows from it.
_TEARDOWN_SECONDS = 1.5


@dataclasses.dataclass(frozen=True)
class Cause:
    """Why a process, and with it its run, failed.

    Attributes:
      rank: whose failure it is; -1: the launcher itself.
      text: what happened to it.
      code: the exit status.
      at: when, in monotonic seconds.
      follows: 0 for a failure of its own, more if it follows from another's.
      stopped: somebody stopped the run by a signal.
      lost: the others no longer answer it, and nothing says why.
      start: the step at which the processes began; -1 if none has told it.
      trained: whether any rank has trained a step.
    """

    rank: int
    text: str
    code: int
    at: float = 0.0
    follows: int = 0
    stopped: bool = False
    lost: bool = False
    start: int = -1
    trained: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank} {self.text}" if self.rank >= 0 else self.text


def find(workers: Sequence[Worker], signals: Signals) -> Cause | None:
    """Returns why a run failed, once every process has ended; None if all ended as announced.

    The earliest failure counts, or a signal to the launcher before it. Three kinds never come before another: what a
    process reports after the launcher asked it to end, an abort that another process caused, and a lost connection.
    """
    if all(w.facts.get("result") in (0, 1) for w in workers):
        # They ended by themselves; a scheduler may signal this launcher once another one has ended.
        return None
    failures = [failure for worker in workers if (failure := _failure(worker))]
    if signals.number:
        failures = [f for f in failures if f.at < signals.at and not f.stopped]
    if not failures:
        number = signals.number
        return Cause(-1, stopped_by(number), 128 + number, stopped=True) if number else None
    start, step = (max(w.facts.get(name, -1) for w in workers) for name in ("start", "step"))
    first = min(failures, key=lambda failure: (failure.follows, failure.at))
    stopped = first.stopped or bool(signals.number)
    return dataclasses.replace(first, start=start, trained=step > start, stopped=stopped)


def _failure(worker: Worker) -> Cause | None:
    """Returns how a process failed; None if it did not."""
    facts, times, asked_at = worker.facts, worker.fact_times, worker.asked_at
    status = 128 - worker.code if worker.code < 0 else worker.code or 1

    def failed(text: str, at: float, code: int = status, **more: Any) -> Cause:
        return Cause(worker.rank, text, code, at, **more)

    if worker.frozen:
        return failed(worker.frozen, worker.frozen_since or worker.ended_at, FROZEN)
    # By a signal that the launcher did not send.
    killed = worker.code < 0 and asked_at is None and "signal" not in facts
    if killed and worker.code != -signal.SIGABRT:
        # A process that starts does not catch the signal yet.
        stopped = -worker.code in STOPS
        return failed(_death(worker), worker.ended_at - _TEARDOWN_SECONDS, stopped=stopped)
    if "signal" in facts and not worker.was_asked_before(times["signal"]):
        note = "" if "result" in facts else ", but not all processes answered"
        text = f"received {facts['signal']}: the run stopped{note}"
        return failed(text, times["signal"], 128 + signal.Signals[facts["signal"]], stopped=True)
    if error := facts.get("error"):
        at, code = times["error"], facts.get("code", status)  # Its library may abort it before it ends.
        return failed(f"failed: {error}", at, code, follows=int(worker.was_asked_before(at)))
    if killed and (peer := _lost_peer(worker)):
        return failed(peer, worker.ended_at, PeerLostError().exit_code, follows=2, lost=True)
    if killed:  # Often what another's error causes, so a tie goes to the error.
        return failed(_death(worker), worker.ended_at)
    if "lost" in facts:
        # The guard knows which process erred, on another host too.
        if facts["lost"] != str(PeerLostError()):
            return failed(f"ended, because {facts['lost']}", times["lost"], follows=3)
        return failed("lost the connection to the others", times["lost"], follows=3, lost=True)
    if worker.ended_early and asked_at is None:
        text = f"ended with exit status {worker.code}" + ("" if worker.code else ", before the run did")
        # A message has its process's own time, an end that of the look after it.
        return failed(text, worker.ended_at - POLL_SECONDS)
    return None


def _lost_peer(worker: Worker) -> str:
    """Returns the words of a process that a library aborted because another one was lost; "" for other aborts."""
    words = b"\n".join(worker.last_words)
    if not _PEER.search(words):
        return ""
    tasks = {int(number) for number in _TASK.findall(words)} - {worker.rank}
    peers = ", ".join(f"rank {number}" for number in sorted(tasks)) or "another process"
    return f"lost {peers}, which no longer answers"


def _death(worker: Worker) -> str:
    """Returns the signal that killed a process, with the reason if its last words or the kernel tell it."""
    number, words = -worker.code, b"\n".join(worker.last_words)
    name = signal.Signals(number).name if number in [*signal.Signals] else f"signal {number}"
    text = f"was killed by {name}"
    # The kernel writes nothing to the process that it kills.
    if number == signal.SIGKILL and worker.out_of_memory():
        return f"{text}, by the kernel for want of memory; use a smaller batch, or more memory"
    if number == signal.SIGABRT and _NO_MEMORY.search(words):
        return f"{text}: out of memory; use a smaller --config.global_batch_size, or more memory"
    if number == signal.SIGABRT and _NO_THREADS.search(words):
        return f"{text}: no more threads; raise `ulimit -u` or the container's limit of processes"
    return text
