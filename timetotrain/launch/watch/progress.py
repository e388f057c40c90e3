"""Finds out that a run no longer makes progress although every process lives, and which rank the others wait for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from timetotrain.launch import procfs
from timetotrain.launch.watch.worker import Worker

# A run is stuck when a step takes this many times as long as its longest step so far.
FACTOR = 20.0
# What has no steps (a long compilation, evaluation or checkpoint) may take this many times its bound while the process
# works: it uses this part of a core, or moves this many bytes a second from or to a disk. This project's choices.
WORKING_FACTOR, WORKING_CORES, WORKING_BYTES = 10.0, 0.05, 1024.0
TRAINS = "trains"  # The phase that has steps (timetotrain/run/run.py).
# What a process does in a part of its step (common/train/step_timing.py); the first are the likelier causes.
_PARTS = {"input": "waits for its input", "step": "computes", "sum": "waits for the sums of all ranks"}


@dataclasses.dataclass
class _Seen:
    """A worker's last sign of progress, when it came, its work until then, and the longest time between two steps."""

    mark: Any = None
    at: float = 0.0
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
        self._seen: dict[int, _Seen] = {}

    def stuck(self, workers: Sequence[Worker], now: float) -> list[tuple[Worker, str]]:
        """Returns what each rank does, the one that the others wait for first; [] if the run makes progress.

        One process that saves, or compiles, holds up all others, so that the run is stuck only if every process has
        exceeded its bound.
        """
        late = [self._late(worker, now) for worker in workers]
        if not workers or not all(late):
            return []
        last = max(worker.told.get("step", -1) for worker in workers)

        def guilt(worker: Worker) -> tuple[bool, int]:
            parts = list(_PARTS)
            part = worker.told.get("part")
            known = worker.told.get("phase") == TRAINS and part in parts
            return worker.told.get("step", -1) == last, parts.index(part) if known else 0

        return [(worker, self._doing(worker, now)) for worker in sorted(workers, key=guilt)]

    def _late(self, worker: Worker, now: float) -> bool:
        facts = worker.told
        if "phase" not in facts:
            return False  # It is not a program of ours, or has not begun.
        seen = self._seen.setdefault(worker.rank, _Seen(at=now))
        mark = facts["phase"], facts.get("step")
        if mark != seen.mark:
            if seen.mark and seen.mark[0] == mark[0] == TRAINS:
                seen.longest = max(seen.longest, now - seen.at)
            seen.mark, seen.at, seen.work = mark, now, _work(worker)
        bound = max(self._least, FACTOR * seen.longest)
        if mark[0] != TRAINS or not seen.longest:
            bound = max(bound, self._phase)
        if (waited := now - seen.at) < bound:
            return False
        if mark[0] == TRAINS or waited >= WORKING_FACTOR * bound:
            return True
        seconds, moved = (there - here for there, here in zip(_work(worker), seen.work))
        return seconds < WORKING_CORES * waited and moved < WORKING_BYTES * waited

    def _doing(self, worker: Worker, now: float) -> str:
        facts = worker.told
        training = facts["phase"] == TRAINS
        does = _PARTS.get(facts.get("part", ""), TRAINS) if training else facts["phase"] or "starts"
        return (
            f"{does} for {now - self._seen[worker.rank].at:.0f} s, after step {max(facts.get('step', 0), 0)}"
        )


def _work(worker: Worker) -> tuple[float, int]:
    return procfs.work(worker.told["pid"]) if "pid" in worker.told else (0.0, 0)
