"""Fits the kernel's numbers of law.py, and tests the law by leaving out systems, rounds and families.

The numbers minimise the mean negative log density of scores left out with their system and with their round, under
Student's t distribution with five degrees of freedom, so that no outlier decides them. A coordinate search suffices:
one value takes a quarter of a second.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from systems.predict import law, scores
from systems.predict.law import NORMAL, Law
from systems.predict.scores import Score

_FREEDOM = 5
_STEPS = (0.7, 0.4, 0.3)
GROUPS: dict[str, Callable[[Score], str]] = {"system": lambda row: row.key, "round": lambda row: row.round}
# A family is predicted from older ones alone: (rows to predict, rows to fit), by the beginning of the chip's name.
FAMILIES = (("H100-SXM5", ("A100", "V100")), ("B200", ("A100", "V100", "H100", "H200")))
_FEWEST = 5  # Scores of older families that a benchmark needs.


@dataclasses.dataclass(frozen=True)
class Tested:
    """A score predicted without its group: `wrong` is ln(published / predicted), `deviation` its standard deviation."""

    row: Score
    wrong: float
    deviation: float

    @property
    def minutes(self) -> float:
        """The predicted minutes."""
        return self.row.minutes * math.exp(-self.wrong)

    @property
    def error(self) -> float:
        """The ratio of the larger of predicted and published to the smaller, less one."""
        return math.exp(abs(self.wrong)) - 1


def _laws(numbers: dict[str, float]) -> list[Law]:
    return [
        Law.of([row for row in scores.rows() if row.benchmark == name], numbers)
        for name in scores.benchmarks()
    ]


def loss(laws: Iterable[Law]) -> float:
    """The mean negative log density of the scores, left out by system and by round; ours count half as much again."""
    total = number = 0.0
    for one in laws:
        weight = 1.5 if one.rows[0].benchmark in law.OURS else 1.0
        for group in GROUPS.values():
            wrong, deviation = one.left_out(group)
            scale = deviation**2 * (_FREEDOM - 2) / _FREEDOM
            tail = (_FREEDOM + 1) / 2 * np.log1p(wrong**2 / scale / _FREEDOM)
            total += weight * float((0.5 * np.log(scale) + tail).sum())
            number += weight * len(wrong)
    return total / number


def fit(start: dict[str, float] | None = None) -> dict[str, float]:
    """The kernel's numbers, by coordinate search from `start`."""
    numbers = dict(start or law.START)
    laws = _laws(numbers)
    best = loss(laws)
    for step in _STEPS:
        for name in numbers:
            for sign in (1, -1):
                tried = numbers | {name: numbers[name] * math.exp(sign * step)}
                found = loss([dataclasses.replace(one, numbers=tried) for one in laws])
                if found < best - 1e-5:
                    best, numbers = found, tried
                    break
    return {name: float(f"{value:.4g}") for name, value in numbers.items()}


def refit() -> dict[str, Any]:
    """The contents of data/law.json."""
    numbers = fit()
    tests = _left_out("system", numbers)
    deviations = {
        name: _quantile([t for t in tests if t.row.benchmark == name]) for name in scores.benchmarks()
    }
    return {"kernel": numbers, "deviations": deviations}


def _quantile(tests: Sequence[Tested]) -> float:
    """The standard deviations that nine of ten scores lie in."""
    return round(float(np.percentile([abs(t.wrong) / t.deviation for t in tests], 90)), 3)


def write(content: dict[str, Any]) -> None:
    """Writes data/law.json."""
    law.PATH.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


@functools.cache
def left_out(group: str) -> tuple[Tested, ...]:
    """Every score, predicted without its system or without its round."""
    return tuple(_left_out(group, law.committed()["kernel"]))


def _left_out(group: str, numbers: dict[str, float]) -> list[Tested]:
    found = []
    for one in _laws(numbers):
        wrong, deviation = one.left_out(GROUPS[group])
        found += [Tested(*each) for each in zip(one.rows, map(float, wrong), map(float, deviation))]
    return found


@functools.cache
def family(newer: str, older: tuple[str, ...]) -> tuple[Tested, ...]:
    """The scores of a family, predicted from scores of older families alone."""
    found = []
    for name in scores.benchmarks():
        rows = [row for row in scores.rows() if row.benchmark == name]
        base = [row for row in rows if row.chip.startswith(older)]
        wanted = [row for row in rows if row.chip == newer]
        if len(base) < _FEWEST or not wanted:
            continue
        logs, deviation = Law.of(base, law.committed()["kernel"]).predict(law.points(wanted))
        wrong = [math.log(row.minutes) - at for row, at in zip(wanted, logs)]
        found += [Tested(*each) for each in zip(wanted, map(float, wrong), map(float, deviation))]
    return tuple(found)


def errors(tests: Sequence[Tested]) -> tuple[float, float]:
    """(median, 90th percentile) of the errors."""
    each = [test.error for test in tests]
    return float(np.median(each)), float(np.percentile(each, 90))


def coverage(tests: Sequence[Tested]) -> float:
    """The share of scores inside their 90 % interval, whose width comes from other systems than the score's.

    The systems are dealt into five parts in turn; the deviations of a part are those of the other four.
    """
    keys = {key: i % 5 for i, key in enumerate(dict.fromkeys(test.row.key for test in tests))}
    inside = 0
    for part in range(5):
        others = [test for test in tests if keys[test.row.key] != part]
        by_name = {
            name: _quantile(mine)
            for name in {test.row.benchmark for test in tests}
            if (mine := [test for test in others if test.row.benchmark == name])
        }
        inside += sum(
            abs(test.wrong) <= by_name.get(test.row.benchmark, NORMAL) * test.deviation
            for test in tests
            if keys[test.row.key] == part
        )
    return inside / len(tests)


def held(tests: Sequence[Tested]) -> float:
    """The share of scores inside the interval that a forecast prints, whose width comes from systems left out."""
    widths = law.committed()["deviations"]
    return sum(abs(t.wrong) <= widths[t.row.benchmark] * t.deviation for t in tests) / len(tests)


def ours(tests: Iterable[Tested]) -> list[Tested]:
    """The tests of our five benchmarks."""
    return [test for test in tests if test.row.benchmark in law.OURS]
