"""Looks for signs that a folder's runs were chosen among more runs. Evidence for a reviewer, never a verdict.

Each sign also occurs in folders that nobody chose: `rate` gives the share of published folders that show it
(data/accept.json, measured by lab/bench/accept_calibration.py).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice, pairwise
from math import exp, factorial, lgamma, log
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from compliance.accept.predict import step_of
from compliance.submission.facts import Facts
from compliance.submission.rcp import Point
from compliance.submission.students_t import quantile

_DATA = Path(__file__).parents[1] / "data" / "accept.json"
# A folder shows a sign if chance alone gives it with at most this probability.
CHANCE = 0.01
_SAME_EVALUATIONS = 3  # fewer equal values in a row are no sign of a copy

KINDS = {
    "number-gap": "result numbers that are not 0, 1, 2, ... or 1, 2, 3, ...",
    "number-order": "numbers that do not follow the times of the runs",
    "result-order": "runs numbered by how long they took",
    "seed-gap": "consecutive seeds with gaps",
    "seed-order": "seeds that do not follow the times of the runs, though sorted they are consecutive",
    "time-gap": "a pause that is long enough for another run, among runs that follow each other at once",
    "small-spread": "runs that differ less than the reference's do",
    "fast": "a mean that the convergence test passes, but would not at 0.10",
    "overlap": "runs of one system that overlap in time",
    "same-curve": "runs with the same quality at every evaluation",
}


class Evidence(NamedTuple):
    """One sign: its kind (a key of KINDS), and what was seen."""

    kind: str
    seen: str

    @property
    def line(self) -> str:
        """Returns the sign in a line, with how common it is among published folders."""
        found = rate(self.kind)
        common = f"; {found[0]} of {found[1]:,} published folders show this" if found else ""
        return f"{KINDS[self.kind]}: {self.seen}{common}"


@cache
def _rates() -> dict[str, list[int]]:
    return json.loads(_DATA.read_text(encoding="utf-8"))["signs"]


def rate(kind: str) -> tuple[int, int] | None:
    """Returns (published folders that show a sign, published folders that could); None if not measured."""
    found = _rates().get(kind)
    return (found[0], found[1]) if found else None


def signs(facts: Sequence[Facts], point: Point | None, drop: int) -> Iterator[Evidence]:
    """Yields the signs of one folder of runs.

    Args:
      facts: those of the logs that ended, in file order.
      point: the reference at the folder's batch size; None: no comparison with it.
      drop: how many runs the olympic mean drops at each end.
    """
    if len(facts) < 3:
        return
    yield from _numbers(facts)
    yield from _seeds(facts)
    yield from _pauses(facts)
    yield from _copies(facts)
    if point is not None:
        yield from _against_reference(facts, point, drop)


def could(facts: Sequence[Facts], point: Point | None) -> frozenset[str]:
    """Returns the kinds of signs that a folder could show: it has the numbers that they compare."""
    if len(facts) < 3:
        return frozenset()
    kinds = {"number-gap"} if all(number_of(one.path) is not None for one in facts) else set()
    if all(one.started is not None for one in facts):
        kinds |= {"number-order"} if kinds else set()
    if _minutes(facts):
        kinds |= {"result-order", "time-gap"}
    if all(len({seed for *_, seed in one.seeds}) == 1 for one in facts):
        kinds |= {"seed-gap", "seed-order"}
    if any(len(one.evaluations) >= _SAME_EVALUATIONS for one in facts):
        kinds.add("same-curve")
    if point is not None and point.stdev > 0:
        kinds |= {"small-spread", "fast"} if _resolved(facts, point) else {"fast"}
    return frozenset(kinds)


def number_of(path: str) -> int | None:
    """Returns 3 for result_3.txt; None if the name has no number."""
    match = re.fullmatch(r"result_(\d{1,9})\.txt", Path(path).name)
    return int(match[1]) if match else None


def _numbers(facts: Sequence[Facts]) -> Iterator[Evidence]:
    named = [(number, one) for one in facts if (number := number_of(one.path)) is not None]
    numbers = sorted(number for number, _ in named)
    if not numbers:
        return
    have = {*numbers}
    # Up to len(have) numbers are skipped before each missing one: the search stays short whatever the last number is.
    gaps = (one for one in range(min(1, numbers[0]), numbers[-1] + 1) if one not in have)
    if lacking := list(islice(gaps, 9)):
        text = ", ".join(map(str, lacking[:8])) + (", ..." if len(lacking) > 8 else "")
        yield Evidence("number-gap", f"{text} missing up to {numbers[-1]}")
    named.sort(key=lambda pair: pair[0])
    starts = [one.started for _, one in named]
    if None not in starts and starts != sorted(starts):
        late = sum(after < before for before, after in pairwise(starts))
        yield Evidence(
            "number-order", f"{late} of {len(starts)} runs began before the one with the number below"
        )
    minutes = _minutes([one for _, one in named])
    chance = 2 / factorial(len(minutes)) if minutes else 1
    if chance <= CHANCE and len({*minutes}) == len(minutes):
        for order, word in ((sorted(minutes), "fastest"), (sorted(minutes, reverse=True), "slowest")):
            if minutes == order:
                yield Evidence(
                    "result-order",
                    f"{len(minutes)} runs from the {word} on, by chance 1 in {1 / chance:,.0f}",
                )


def _minutes(facts: Sequence[Facts]) -> list[float]:
    """Returns the minutes of every run, or [] if one has none."""
    if any(one.started is None or one.stopped is None or one.stopped <= one.started for one in facts):
        return []
    return [(one.stopped - one.started) / 60_000 for one in facts]


def _seeds(facts: Sequence[Facts]) -> Iterator[Evidence]:
    """Looks at logs that have one seed each: consecutive ones with gaps, or in another order than the times."""
    each = [{seed for *_, seed in one.seeds} for one in facts]
    if any(len(seeds) != 1 for seeds in each):
        return
    seeds = [next(iter(one)) for one in each]
    ordered = sorted(set(seeds))
    distances = [after - before for before, after in pairwise(ordered)]
    if not distances:
        return
    usual = median(distances)
    # A counter: most seeds are one step apart, and the rest whole steps.
    step = min(distances)
    counted = usual == step and all(distance % step == 0 for distance in distances)
    gaps = sum(distance // step - 1 for distance in distances)
    if counted and 0 < gaps <= len(seeds):
        yield Evidence(
            "seed-gap",
            f"{gaps} of the seeds from {ordered[0]} to {ordered[-1]} in steps of {step} are missing",
        )
    if counted and not gaps and all(one.started is not None for one in facts):
        by_time = [seed for _, seed in sorted((one.started, seed) for one, seed in zip(facts, seeds))]
        if by_time not in (ordered, ordered[::-1]):
            yield Evidence("seed-order", f"by time: {', '.join(map(str, by_time[:12]))}")


def _pauses(facts: Sequence[Facts]) -> Iterator[Evidence]:
    minutes = _minutes(facts)
    if len(minutes) < 4:
        return
    spans = sorted((one.started, one.stopped) for one in facts)
    pauses = [(after[0] - before[1]) / 60_000 for before, after in pairwise(spans)]
    usual = median(pauses)
    run = median(minutes)
    if not 0 <= usual < run:  # at the same time, or far apart anyway
        return
    long = [pause for pause in pauses if pause >= run + 2 * usual]
    if long:
        yield Evidence(
            "time-gap",
            f"{len(long)} of {len(pauses)} pauses, the longest {max(long):,.0f} min; the median run takes {run:,.0f}",
        )


def _copies(facts: Sequence[Facts]) -> Iterator[Evidence]:
    same: dict[tuple, list[str]] = defaultdict(list)
    for one in facts:
        if len(one.evaluations) >= _SAME_EVALUATIONS:
            same[tuple(one.evaluations)].append(Path(one.path).name)
    groups = [" = ".join(names) for names in same.values() if len(names) > 1]
    if groups:
        yield Evidence("same-curve", "; ".join(groups)[:200])


def _against_reference(facts: Sequence[Facts], point: Point, drop: int) -> Iterator[Evidence]:
    values = sorted(one.to_converge for one in facts if one.to_converge is not None)
    if len(values) < 3 or point.stdev <= 0:
        return
    mean = fmean(values)
    squares = sum((one - mean) ** 2 for one in values) / point.stdev**2
    if _resolved(facts, point) and squares <= chi_squared_low(len(values) - 1):
        spread = (squares / (len(values) - 1)) ** 0.5
        yield Evidence("small-spread", f"the standard deviation is {spread:.2f} of the reference's")
    kept = values[drop : len(values) - drop] or values
    distance = (point.mean - fmean(kept)) / (point.mean - point.least) if point.mean > point.least else 0
    if quantile(0.90, 20) / quantile(0.95, 20) < distance <= 1:
        yield Evidence("fast", f"{100 * distance:.0f} % of the way from the reference's mean to the limit")


def _resolved(facts: Sequence[Facts], point: Point) -> bool:
    """Whether evaluations are close enough to show the reference's spread; else most runs end at the same one."""
    return 0 < step_of(facts) <= point.stdev


@cache
def chi_squared_low(degrees: int) -> float:
    """Returns the lower CHANCE point of the chi-squared distribution, by bisection of its regularized series."""
    low, high = 0.0, float(degrees)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _chi_squared(middle, degrees) < CHANCE else (low, middle)
    return (low + high) / 2


def _chi_squared(value: float, degrees: int) -> float:
    """Returns P(chi-squared <= value): Abramowitz and Stegun, Handbook of Mathematical Functions, 6.5.29."""
    if value <= 0:
        return 0.0
    half, x = degrees / 2, value / 2
    term = total = 1 / half
    count = half
    while term > 1e-16 * total:
        count += 1
        term *= x / count
        total += term
    return total * exp(half * log(x) - x - lgamma(half))


def overlaps(folders: Sequence[Sequence[Facts]]) -> Iterator[Evidence]:
    """Looks for runs of one system that overlap in time; `folders` holds the facts of each of its folders."""
    spans = sorted(
        (one.started, one.stopped, f"{Path(one.path).parent.name}/{Path(one.path).name}")
        for facts in folders
        for one in facts
        if one.started is not None and one.stopped is not None and one.stopped > one.started
    )
    pairs = [(before[2], after[2]) for before, after in pairwise(spans) if after[0] < before[1]]
    if pairs:
        yield Evidence("overlap", f"{len(pairs)} times, first {pairs[0][0]} and {pairs[0][1]}")
