"""Computes the geometry of the report's charts in percent of the plot, so that one SVG fits every width."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compliance.submission.runs import Run, Span

Interval = tuple[float, float]
_HUGE = 1e100  # only broken logs hold larger values, and a sum of a few of them overflows
_FINEST = 0.15  # percent: marks closer together than this become one


@dataclass(frozen=True)
class Axis:
    """A linear axis from `low` to `high`; `ticks` holds (percent, label) at round values."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...] = ()

    def __call__(self, value: float) -> float:
        """Returns the value's position in percent of the axis, clipped to the axis."""
        return round(min(max(100 * (value - self.low) / (self.high - self.low), 0.0), 100.0), 3)


def axis(values: Iterable[float], count: int = 5, widen: bool = False) -> Axis:
    """Returns an axis over the values with about `count` ticks; `widen` moves the ends out to ticks."""
    finite = [value for value in values if abs(value) < _HUGE]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if not high > low:
        low, high = low - 0.5, low + 0.5
    if not high > low:  # the values are so large that adding 0.5 changes nothing
        low, high = 0.0, 1.0
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    if widen:
        low, high = first * step, last * step
    plain = Axis(low, high)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    places = [n * step for n in range(first, last + 1) if low - 1e-9 * step <= n * step <= high + 1e-9 * step]
    return Axis(low, high, tuple((plain(value), f"{value:,.{digits}f}") for value in places))


# ------------------------------------------------------------------------------------------------ intervals


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merges overlapping intervals into disjoint ones, in order."""
    merged: list[Interval] = []
    for start, stop in sorted(i for i in intervals if i[1] > i[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def without(whole: Sequence[Interval], holes: Sequence[Interval]) -> list[Interval]:
    """Returns the parts of `whole` outside every hole, in linear time. Both arguments must be disjoint and sorted."""
    parts, first = [], 0
    for start, stop in whole:
        while first < len(holes) and holes[first][1] <= start:
            first += 1
        index = first
        while index < len(holes) and holes[index][0] < stop:
            if holes[index][0] > start:
                parts.append((start, holes[index][0]))
            start = max(start, holes[index][1])
            index += 1
        if stop > start:
            parts.append((start, stop))
    return parts


def length(intervals: Iterable[Interval]) -> float:
    return sum(stop - start for start, stop in intervals)


# ------------------------------------------------------------------------------------------------ one run


@dataclass(frozen=True)
class Lane:
    """One row of the timeline: rectangles (left %, width %) and their total time in ms."""

    name: str
    about: str
    bars: list[tuple[float, float]]
    total_ms: float


@dataclass(frozen=True)
class Curve:
    """One metric of one run: points (x %, y % from the top); `path` is the SVG line through them.

    `first` and `last` are the values at the ends; `count` is the number of evaluations in the log.
    """

    points: list[tuple[float, float]]
    first: float | None = None
    last: float | None = None
    count: int = 0

    @property
    def path(self) -> str:
        return " ".join(f"{'L' if i else 'M'}{x} {y}" for i, (x, y) in enumerate(self.points))


@dataclass(frozen=True)
class Timeline:
    """One run on a time axis that starts at run_start."""

    x: Axis
    unit: str
    start: float
    stop: float
    lanes: list[Lane]


UNITS = {"seconds": 1000.0, "minutes": 60_000.0, "hours": 3_600_000.0}  # in ms


def time_unit(span_ms: float) -> tuple[str, float]:
    """Returns (name, milliseconds) of the largest unit that suits a span."""
    name = "seconds" if span_ms < 180_000 else "minutes" if span_ms < 400 * 60_000 else "hours"
    return name, UNITS[name]


def timeline(run: Run) -> Timeline | None:
    """Builds the lanes init, training, evaluation and gaps; None for a run without a valid start and end."""
    if run.minutes is None:
        return None
    start, stop = run.run_start, run.run_stop
    first = min(start, run.init_start) if run.init_start is not None else start
    unit, size = time_unit(stop - first)
    x = axis([(first - start) / size, (stop - start) / size], count=7)
    whole = [(start, stop)]
    # Of a log that closes no block, those count that were open when the run ended.
    closed = any(span.stop is not None for span in run.blocks)
    trained = run.blocks if closed else [span._replace(stop=stop) for span in run.blocks]
    evals, blocks = _inside(run.evals, whole), _inside(trained, whole)
    init = [] if None in (run.init_start, run.init_stop) else [(run.init_start, run.init_stop)]
    busy = union([*evals, *blocks])
    lanes_of = (
        ("init", "from init_start to init_stop, off the clock", union(init)),
        ("train", "in a block, not in an evaluation", without(blocks, evals)),
        ("eval", "from eval_start to eval_stop", evals),
        ("gap", "on the clock, in neither a block nor an evaluation", without(whole, busy)),
    )
    # The milliseconds between two log lines count but are not drawn.
    shortest = dict.fromkeys(("gap", "train"), (stop - first) / 1000)
    lanes = [
        Lane(name, about, _bars(intervals, start, size, x, shortest.get(name, 0.0)), length(intervals))
        for name, about, intervals in lanes_of
    ]
    return Timeline(x, unit, x(0.0), x((stop - start) / size), lanes)


def _inside(spans: Iterable[Span], whole: list[Interval]) -> list[Interval]:
    """Returns the parts of the closed spans that lie in `whole`."""
    low, high = whole[0]
    return union((max(s.start, low), min(s.stop, high)) for s in spans if s.stop is not None)


def _bars(
    intervals: Sequence[Interval], zero: float, size: float, x: Axis, shortest: float
) -> list[tuple[float, float]]:
    bars: list[tuple[float, float]] = []
    for start, stop in intervals:
        if stop - start < shortest:
            continue
        left, right = x((start - zero) / size), x((stop - zero) / size)
        if bars and left - sum(bars[-1]) < _FINEST and right - left < 1:
            bars[-1] = (bars[-1][0], round(right - bars[-1][0], 3))
        else:
            bars.append((left, round(max(right - left, _FINEST), 3)))
    return bars


# ------------------------------------------------------------------------------------------------ curves


def metrics(runs: Iterable[Run]) -> list[str]:
    """Returns the metrics that the runs evaluate: the target's first, then in the order of the logs."""
    tables = (table for run in runs for table in (run.target, *(one.values for one in run.evaluations)))
    return list(dict.fromkeys(name for table in tables for name in table))[:4]


def quality_axis(runs: Sequence[Run], metric: str) -> Axis:
    """Returns a common axis for one metric of several runs, with room for the target line."""
    values = [e.values[metric] for run in runs for e in run.evaluations if metric in e.values]
    return axis([*values, *(run.target[metric] for run in runs if metric in run.target)], 4, widen=True)


def curve(run: Run, metric: str, x: Axis, y: Axis, size: float) -> Curve:
    """Returns the metric over the time since run_start; `size` is the unit of `x` in ms."""
    valid = [e for e in run.evaluations if metric in e.values and run.run_start is not None]
    if not valid:
        return Curve([])
    points = [(x((e.time_ms - run.run_start) / size), round(100 - y(e.values[metric]), 3)) for e in valid]
    thinned = points[:: max(1, len(points) // 400)]
    thinned += points[-1:] if thinned[-1] != points[-1] else []
    return Curve(thinned, valid[0].values[metric], valid[-1].values[metric], run.evaluated)
