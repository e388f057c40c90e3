"""Tells which process the others wait for."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from common.launch.worker import Worker

# A process is slow when its own part of the steps took so many times as long as the others' (their median).
FACTOR = 2.0
# Less than this per step is noise.
LEAST_SECONDS = 0.05
# Told again when it has lasted so long.
AGAIN_SECONDS = 60.0


# What each sum of common/pace.py is about, the more telling first.
PARTS = {"input": "waits for its input", "step": "computes"}


class Detector:
    """Compares, over windows of `seconds`, the time that the processes spent by themselves in each step.

    Processes that train together have the same step count: what differs is how long each worked before it needed the
    others. Each tells the sums of that, `own_seconds`, with its heartbeat.
    """

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._since: float | None = None
        self._before: dict[int, dict[str, float]] = {}
        self._told: dict[int, float] = {}

    def look(self, workers: Sequence[Worker], now: float) -> Iterator[str]:
        """Yields a line for each slow process, at most one a minute and process."""
        sums = {w.rank: {**w.told["own_seconds"], "steps": w.told["step"]} for w in workers if _tells(w)}
        if self._since is None or sums.keys() != self._before.keys():
            self._since, self._before = now, sums
            return
        steps = min((sums[r]["steps"] - self._before[r]["steps"] for r in sums), default=0)
        if len(sums) < 2 or steps < 1 or now - self._since < self._seconds:
            return
        before, self._since, self._before = self._before, now, sums
        for part, does in PARTS.items():
            spent = {r: (sums[r][part] - before[r][part]) / steps for r in sums}
            for rank, seconds in spent.items():
                usual = statistics.median(s for r, s in spent.items() if r != rank)
                recent = now - self._told.get(rank, -AGAIN_SECONDS) < AGAIN_SECONDS
                if seconds > FACTOR * usual and seconds - usual > LEAST_SECONDS and not recent:
                    self._told[rank] = now
                    yield (
                        f"warning: rank {rank} is slow: it {does} for {seconds:.2f} s a step, "
                        f"the others for {usual:.2f} s"
                    )


def _tells(worker: Worker) -> bool:
    return bool(worker.told.get("own_seconds")) and worker.told.get("step", -1) >= 0
