"""Finds the process that the others wait for: a run makes no progress although every process lives, or it is slow."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from timetotrain.launch import procfs
from timetotrain.launch.watch.worker import Worker

# A run is stuck when a step takes this many times as long as its longest step so far.
FACTOR = 20.0
# What has no steps (a long compilation, evaluation or checkpoint) may take this many times its bound while the process
# works: it uses this part of a core, or moves this many bytes a second from or to a disk. This project's choices.
WORKING_FACTOR, WORKING_CORES, WORKING_BYTES = 10.0, 0.05, 1024.0
TRAINS = "trains"  # The phase that has steps (timetotrain/run/listeners.py).
EVALUATES = "evaluates"
# What a process does in a part of its step (common/train/step_timing.py); the first are the likelier causes.
_PARTS = {"input": "waits for its input", "step": "computes", "sum": "waits for the sums of all ranks"}
OWN_PARTS = ("input", "step")  # What a process does alone.
# A process is slow if its own share of the steps takes this many times the others' median.
SLOW_FACTOR = 2.0
# A smaller excess per step counts as noise.
LEAST_SECONDS = 0.05
# Seconds before a warning repeats.
AGAIN_SECONDS = 60.0


@dataclasses.dataclass
class _Record:
    """A worker's last progress, its time, the work until then, the last time in no exchange, and the longest step."""

    mark: Any = None
    at: float = 0.0
    alone_at: float = 0.0
    work: tuple[float, int] = (0.0, 0)
    longest: float = 0.0


class Detector:
    """Watches step and phase of each process that sends them.

    Args:
      least: seconds without a step that are never too long.
      phase: seconds for a phase without steps, and for the first step.
    """

    def __init__(self, least: float, phase: float):
        self._least, self._phase = least, phase
        self._records: dict[int, _Record] = {}

    def stuck(self, workers: Sequence[Worker], now: float) -> list[tuple[Worker, str]]:
        """Returns what each rank does, the one that the others wait for first; [] if the run makes progress.

        One process that saves, or compiles, holds up all others, so that the run is stuck only if every process has
        exceeded its bound.
        """
        # Whom all of them wait for may be on another host, in a phase of its own.
        patience = self._phase if all(worker.facts.get("waits") for worker in workers) else self._least
        late = [self._late(worker, now, patience) for worker in workers]
        if not workers or not all(late):
            return []
        last = max(worker.facts.get("step", -1) for worker in workers)

        def guilt(worker: Worker) -> tuple[bool, bool, bool, int]:
            parts = list(_PARTS)
            part = worker.facts.get("part")
            in_part = worker.facts.get("phase") == TRAINS and part in parts
            # A process in an exchange waits; so may one whose steps have sums, for one that has not begun them.
            waits, calls = worker.facts.get("waits", False), worker.facts.get("phase") in (TRAINS, EVALUATES)
            return worker.facts.get("step", -1) == last, waits, calls, parts.index(part) if in_part else 0

        return [(worker, self._doing(worker, now)) for worker in sorted(workers, key=guilt)]

    def _late(self, worker: Worker, now: float, patience: float) -> bool:
        facts = worker.facts
        if "phase" not in facts:
            return False  # It is not a program of ours, or has not begun.
        record = self._records.setdefault(worker.rank, _Record(at=now, alone_at=now))
        mark = facts["phase"], facts.get("step")
        if mark != record.mark:
            if record.mark and record.mark[0] == mark[0] == TRAINS:
                record.longest = max(record.longest, now - record.at)
            record.mark, record.at, record.work = mark, now, _work(worker)
        if not facts.get("waits"):
            record.alone_at = now
        elif now - record.alone_at >= max(patience, FACTOR * record.longest):
            return True  # What it does meanwhile, such as Horovod's polls, is no work.
        bound = max(self._least, FACTOR * record.longest)
        if mark[0] != TRAINS or not record.longest:
            bound = max(bound, self._phase)
        if (waited := now - record.at) < bound:
            return False
        if mark[0] == TRAINS or waited >= WORKING_FACTOR * bound:
            return True
        seconds, moved = (after - before for after, before in zip(_work(worker), record.work))
        return seconds < WORKING_CORES * waited and moved < WORKING_BYTES * waited

    def _doing(self, worker: Worker, now: float) -> str:
        facts = worker.facts
        if facts.get("waits"):
            does = "waits for the others"
        elif facts["phase"] == TRAINS:
            does = _PARTS.get(facts.get("part", ""), TRAINS)
        else:
            does = facts["phase"] or "starts"
        return f"{does} for {now - self._records[worker.rank].at:.0f} s, after step {max(facts.get('step', 0), 0)}"


def _work(worker: Worker) -> tuple[float, int]:
    return procfs.work(worker.facts["pid"]) if "pid" in worker.facts else (0.0, 0)


class SlowDetector:
    """Compares the time each process spends by itself in a step, over windows of `seconds`.

    Processes that train together run the same steps; a slow one works longer before it needs the others. Each process
    sends its sums of that time, `own_seconds`, with its heartbeat.
    """

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._since: float | None = None
        self._before: dict[int, dict[str, float]] = {}
        self._warned_at: dict[int, float] = {}

    def look(self, workers: Sequence[Worker], now: float) -> Iterator[str]:
        """Yields a line for each slow process, at most one per minute and process."""
        timed = [w for w in workers if w.facts.get("own_seconds") and w.facts.get("step", -1) >= 0]
        sums = {w.rank: {**w.facts["own_seconds"], "steps": w.facts["step"]} for w in timed}
        if self._since is None or sums.keys() != self._before.keys():
            self._since, self._before = now, sums
            return
        steps = min((sums[r]["steps"] - self._before[r]["steps"] for r in sums), default=0)
        if len(sums) < 2 or steps < 1 or now - self._since < self._seconds:
            return
        before, self._since, self._before = self._before, now, sums
        per_step = {part: {r: (sums[r][part] - before[r][part]) / steps for r in sums} for part in OWN_PARTS}
        for rank in sums:
            usual = {
                part: statistics.median(s for r, s in seconds.items() if r != rank)
                for part, seconds in per_step.items()
            }
            excess = {part: per_step[part][rank] - usual[part] for part in OWN_PARTS}
            slow = any(
                per_step[part][rank] > SLOW_FACTOR * usual[part] and excess[part] > LEAST_SECONDS
                for part in OWN_PARTS
            )
            if slow and now - self._warned_at.get(rank, -AGAIN_SECONDS) >= AGAIN_SECONDS:
                self._warned_at[rank] = now
                # The step's sum includes the wait for its input.
                part = "input" if excess["input"] > excess["step"] / 2 else "step"
                yield (
                    f"warning: rank {rank} is slow: it {_PARTS[part]} for {per_step[part][rank]:.2f} s a step, "
                    f"the others for {usual[part]:.2f} s"
                )
