"""Tells which process the others wait for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from common.launch.worker import Worker

# A process is slow when its own part of the steps took so many times as long as the others' (their median).
FACTOR = 2.0
# Told again when it has lasted so long.
AGAIN_SECONDS = 60.0


class Detector:
    """Compares, over windows of `seconds`, the time that the processes spent on their own part of the steps.

    Processes that train together have the same step count: what differs is how long each worked before it joined the
    step's first communication. Each tells the sum of that, `own_seconds`, with its heartbeat.
    """

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._since: float | None = None
        self._before: dict[int, tuple[float, int]] = {}
        self._told: dict[int, float] = {}

    def look(self, workers: Sequence[Worker], now: float) -> Iterator[str]:
        """Yields a line for each slow process, at most one a minute and process."""
        own = {
            w.rank: (float(w.told["own_seconds"]), int(w.told["step"]))
            for w in workers
            if w.told.get("own_seconds") is not None and w.told.get("step", -1) >= 0
        }
        if len(own) < 2:
            return
        if self._since is None or own.keys() != self._before.keys():
            self._since, self._before = now, own
            return
        steps = min(own[r][1] - self._before[r][1] for r in own)
        if now - self._since < self._seconds or not steps:
            return
        spent = {r: (own[r][0] - self._before[r][0]) / steps for r in own}
        self._since, self._before = now, own
        for rank, seconds in spent.items():
            others = sorted(s for r, s in spent.items() if r != rank)
            usual = others[len(others) // 2]
            if seconds > FACTOR * usual and now - self._told.get(rank, -AGAIN_SECONDS) >= AGAIN_SECONDS:
                self._told[rank] = now
                yield (
                    f"rank {rank} is slow: {seconds:.2f} s per step before it communicates, "
                    f"the others {usual:.2f} s; they wait for it"
                )
