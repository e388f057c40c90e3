"""Watches a run's processes until the last one ends; if one fails, ends the others and names it.

A process fails if a signal kills it, it reports an error, it exits with a status it did not announce, or it freezes. A
slow process is named but never ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
import time
from collections.abc import Sequence

from common.distributed.heartbeat import SAVES
from timetotrain.launch.watch import progress
from timetotrain.launch.watch.failure_cause import Cause, find
from timetotrain.launch.watch.signals import Signals
from timetotrain.launch.watch.worker import POLL_SECONDS, Worker

# Time for the processes of a stuck run to print their stacks.
STACK_SECONDS = 2.0


@dataclasses.dataclass(frozen=True)
class Limits:
    """Time limits in seconds.

    Attributes:
      settle: after a failure, the other processes have this long to end by themselves before they are asked to.
      failure: this long after a failure, the remaining processes are killed; after the grace if they still save.
      grace: this long after a signal, the remaining processes are killed; must cover a step and a checkpoint.
      stopped: a process that a signal has stopped (SIGSTOP) for this long is frozen.
      silent: a process without a heartbeat for this long after its first step is frozen.
      starting: a process without a heartbeat for this long before its first step is frozen.
      progress: no rank finishes a step for this long, and for 20 times the longest step: the run is stuck.
      phase: as progress, for the first step and for what has no steps: starting, evaluating, saving.
      slow: a process that is slower than the others for this long is named.
    """

    settle: float = 1.5
    failure: float = 6.0
    grace: float = 60.0
    stopped: float = 8.0
    silent: float = 20.0
    starting: float = 120.0
    progress: float = 300.0
    phase: float = 3600.0
    slow: float = 10.0


def say(text: str) -> None:
    """Prints one of the launcher's own lines, if anyone still reads them."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


class Watch:
    """Forwards the processes' output, detects failures and ends the run.

    Rank 0's streams stay what they are; the other ranks' lines go to standard error, prefixed with the rank.
    """

    def __init__(self, workers: Sequence[Worker], limits: Limits, signals: Signals, asks: int = 0):
        """`asks`: the signal that asks a process to end; 0 for the one that this process received."""
        self.workers, self.limits, self._signals, self._asks = workers, limits, signals, asks
        self._failed_at: float | None = None
        self._signal_at: float | None = None
        self._withheld: list[tuple[Worker, bytes]] = []
        self._slow = progress.SlowDetector(limits.slow)
        self._progress = progress.Detector(limits.progress, limits.phase)
        self._stuck: tuple[float, Worker, str] | None = None  # When the run got stuck, by whom and how.

    def run(self) -> Cause | None:
        """Watches until all processes of the run have ended; returns why the run failed, or None."""
        while any(worker.running for worker in self.workers):
            time.sleep(POLL_SECONDS)
            for worker in self.workers:
                worker.listen()
                self._forward(worker)
                worker.reap()
            self._judge(time.monotonic())
        for worker in self.workers:
            self._forward(worker)
        for worker in self.workers:
            worker.kill()  # What it left behind in its session.
        cause = find(self.workers, self._signals)
        for worker, line in self._withheld:
            if cause is None or worker.rank == cause.rank:
                self._write(worker, 1, line)
        for worker in self.workers:
            worker.close()
        return cause

    # -- output ---------------------------------------------------------------------------------------------------

    def _forward(self, worker: Worker) -> None:
        for stream, lines in enumerate(worker.output):
            for line in lines.read():
                if stream:
                    worker.last_words.append(line)
                # After a failure, the others' errors follow from it; show them only if one of them is the cause.
                if self._failed_at is not None and stream:
                    self._withheld = [*self._withheld[-500:], (worker, line)]
                else:
                    self._write(worker, stream, line)

    def _write(self, worker: Worker, stream: int, line: bytes) -> None:
        prefix = f"rank {worker.rank}: ".encode() if worker.rank else b""
        target = (sys.stdout if not worker.rank and not stream else sys.stderr).buffer
        with contextlib.suppress(OSError):  # The output's reader is gone; the run continues.
            target.write(prefix + line + b"\n")
            target.flush()

    # -- failures -------------------------------------------------------------------------------------------------

    def _judge(self, now: float) -> None:
        any_heartbeat = any("pid" in worker.facts for worker in self.workers)
        for worker in self.workers:
            if any_heartbeat:  # All run one program, so that the others must send heartbeats too.
                worker.beat_at = worker.beat_at or now
            self._look(worker, now)
        running = [worker for worker in self.workers if worker.running]
        failed = self._failed_at is not None
        if failed or self._signals.number or any("signal" in w.facts for w in self.workers):
            self._signal_at = self._signal_at or now
            elapsed = now - (self._failed_at if failed else self._signal_at)
            for worker in running:
                # A process that has failed may still write the checkpoint from before, in its thread.
                saves = "error" in worker.facts and worker.facts.get("phase") == SAVES
                patient = saves or not failed
                if elapsed >= (self.limits.grace if patient else self.limits.failure):
                    worker.kill()
                elif elapsed >= self.limits.settle or (self._signals.number and not failed):
                    # The ranks agree on a last step; those that have not received the signal get it here.
                    worker.ask(self._asks or self._signals.number or signal.SIGTERM)
        elif self._stuck:
            since, worker, text = self._stuck
            if now >= since + STACK_SECONDS:
                worker.frozen = worker.frozen or f"makes no progress: it {text}"
        else:
            for text in self._slow.look(running, now):
                say(text)
            if len(running) == len(self.workers) and (stuck := self._progress.stuck(running, now)):
                self._stuck = (now, *stuck[0])
                for worker, text in stuck:
                    say(f"warning: stuck: rank {worker.rank} {text}; its stacks follow")
                    worker.show_stacks()

    def _look(self, worker: Worker, now: float) -> None:
        """Detects a failure; kills a frozen process, since it reacts to nothing else."""
        if worker.running:
            worker.frozen = worker.frozen or self._frozen(worker, now)
            if worker.frozen:
                worker.frozen_since = worker.beat_at or now
                worker.kill()
        if self._failed_at is None and (worker.frozen or "error" in worker.facts or worker.ended_early):
            self._failed_at = now

    def _frozen(self, worker: Worker, now: float) -> str:
        state, since = worker.state(), worker.stopped_since
        # A process that is repeatedly stopped and continued is slow, not frozen: it beats in between.
        if state != "T" or (since and worker.beat_at and worker.beat_at > since):
            worker.stopped_since = None
        elif worker.stopped_since is None:
            worker.stopped_since = now
        elif now - worker.stopped_since >= self.limits.stopped:
            return f"is frozen: a signal stopped it {now - worker.stopped_since:.0f} s ago"
        # Before its first step a process imports and compiles, possibly for a long time without a beat.
        trained = worker.facts.get("step", -1) >= 0
        silent = self.limits.silent if trained else max(self.limits.silent, self.limits.starting)
        if worker.beat_at is not None and now - worker.beat_at >= silent:
            waits = ", waiting for a disk or a network (state D)" if state == "D" else ""
            return f"is frozen: no sign of life for {now - worker.beat_at:.0f} s{waits}"
        return ""
