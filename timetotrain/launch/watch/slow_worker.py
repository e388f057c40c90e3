"""Finds the process that the others wait for."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from timetotrain.launch.watch.worker import Worker

# A process is slow if its own share of the steps takes this many times the others' median.
FACTOR = 2.0
# A smaller excess per step counts as noise.
LEAST_SECONDS = 0.05
# Seconds before a warning repeats.
AGAIN_SECONDS = 60.0


# The sums of common/train/step_timing.py, and what a slow process spends each one on.
PARTS = {"input": "waits for its input", "step": "computes"}


class Detector:
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
        sums = {w.rank: {**w.told["own_seconds"], "steps": w.told["step"]} for w in workers if _is_timed(w)}
        if self._since is None or sums.keys() != self._before.keys():
            self._since, self._before = now, sums
            return
        steps = min((sums[r]["steps"] - self._before[r]["steps"] for r in sums), default=0)
        if len(sums) < 2 or steps < 1 or now - self._since < self._seconds:
            return
        before, self._since, self._before = self._before, now, sums
        spent = {part: {r: (sums[r][part] - before[r][part]) / steps for r in sums} for part in PARTS}
        for rank in sums:
            usual = {
                part: statistics.median(s for r, s in seconds.items() if r != rank)
                for part, seconds in spent.items()
            }
            excess = {part: spent[part][rank] - usual[part] for part in PARTS}
            slow = any(
                spent[part][rank] > FACTOR * usual[part] and excess[part] > LEAST_SECONDS for part in PARTS
            )
            if slow and now - self._warned_at.get(rank, -AGAIN_SECONDS) >= AGAIN_SECONDS:
                self._warned_at[rank] = now
                # The step's sum includes the wait for its input.
                part = "input" if excess["input"] > excess["step"] / 2 else "step"
                yield (
                    f"warning: rank {rank} is slow: it {PARTS[part]} for {spent[part][rank]:.2f} s a step, "
                    f"the others for {usual[part]:.2f} s"
                )


def _is_timed(worker: Worker) -> bool:
    return bool(worker.told.get("own_seconds")) and worker.told.get("step", -1) >= 0
