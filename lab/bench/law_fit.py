"""Tests the law by leaving scores out, beside look-ups in the table, and fits what systems/forecast/data keeps.

A test predicts each score without a group of scores. The command that a user calls makes the prediction: benchmark,
accelerator, count. A round is predicted from earlier rounds alone: the kernel's numbers, the law and the width of the
interval come from them. For the other groups, which follow in closed form, kernel and weights are those of all scores.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import UserError, answering
from lab.bench import kernel_fit
from systems.forecast import accelerators, errors, law, scores
from systems.forecast.errors import FARTHER, FOUR, NEW, SAME, TWICE, distance, middle
from systems.forecast.law import Law
from systems.forecast.scores import Score

LATER, NEWEST = "later rounds", "the newest round"
# What is left out together, and whether of all benchmarks or of the score's own.
GROUPS: dict[str, tuple[Callable[[Score], str], bool]] = {
    "accelerator": (lambda row: row.chip, True),
    "family": (lambda row: accelerators.family(row.chip), True),
    "accelerator and count": (lambda row: f"{row.chip}/{row.accelerators}", False),
    "submitter": (lambda row: row.org, False),
    "system": (lambda row: row.key, False),
}
LOOK_UPS = ("same count", "nearest count", "same submitter", "simple rule")
_FEWEST, _FEW_TESTS = 5, 30  # Earlier scores that a benchmark needs, and tests that a width needs.
_INSIDE = 90  # Percent of runs in an interval.
_SLOWER = 0.8  # Minutes fall with this power of the count, in the simple rule.


@dataclasses.dataclass(frozen=True)
class Tested:
    """A score predicted without its group: `wrong` is ln(published / predicted), `deviation` its standard deviation.

    Attributes:
      distance: of the other scores, as `distance` names it.
      looked: the same as `wrong` by each look-up that has a score to look up.
      widths: of the intervals of 90 and 99 % in deviations, by earlier rounds; () if they have too few tests.
    """

    row: Score
    wrong: float
    deviation: float
    distance: str
    looked: Mapping[str, float]
    widths: tuple[float, ...] = ()

    @property
    def inside(self) -> bool:
        return abs(self.wrong) <= self.widths[0] * self.deviation


def look_up(row: Score, rows: Iterable[Score]) -> dict[str, float]:
    """ln(published / looked up) by each look-up of LOOK_UPS that has a score: the median of the accelerator's scores
    with its count, of the nearest round; the score with the nearest count, divided by the counts' ratio; the
    submitter's newest score on as many; and a rule: the first, else the nearest count by the power 0.8, else another
    accelerator's by the root of peak times bandwidth as well.
    """
    of_benchmark = [other for other in rows if other.benchmark == row.benchmark]
    same = [other for other in of_benchmark if other.chip == row.chip]
    minutes_of = {}
    if usual := middle(row.benchmark, row.chip, row.accelerators, row.year, same):
        minutes_of["same count"] = usual

    def apart(other: Score) -> tuple[float, float]:
        return abs(math.log(other.accelerators / row.accelerators)), abs(other.year - row.year)

    if same:
        score = min(same, key=apart)
        minutes_of["nearest count"] = score.minutes * score.accelerators / row.accelerators
    of_submitter = [other for other in same if (other.org, other.accelerators) == (row.org, row.accelerators)]
    if of_submitter:
        minutes_of["same submitter"] = min(of_submitter, key=lambda other: abs(other.year - row.year)).minutes
    if of_benchmark:
        score = min(same or of_benchmark, key=apart)
        faster = law.speed_of(accelerators.table()[score.chip]) - law.speed_of(accelerators.table()[row.chip])
        scaled = score.minutes * (score.accelerators / row.accelerators) ** _SLOWER * math.exp(faster)
        minutes_of["simple rule"] = minutes_of.get("same count", scaled)
    return {name: math.log(row.minutes / minutes) for name, minutes in minutes_of.items()}


def _tested(one: Law, rows: Sequence[Score], others: Sequence[Score]) -> list[Tested]:
    """Scores of one benchmark and accelerator, predicted by a law, dated by their rounds."""
    chip = accelerators.table()[rows[0].chip] | {"name": rows[0].chip}
    tests = []
    for year in sorted({row.year for row in rows}):
        of_year = [row for row in rows if row.year == year]
        sizes = sorted({row.accelerators for row in of_year})
        logs, deviation = one.curve(of_year[0].benchmark, chip, sizes, year)
        at = {size: (log, spread) for size, log, spread in zip(sizes, logs, deviation)}
        for row in of_year:
            log, spread = at[row.accelerators]
            how_far = distance(row.benchmark, row.chip, row.accelerators, others)
            wrong = math.log(row.minutes) - log
            tests.append(Tested(row, wrong, float(spread), how_far, look_up(row, others)))
    return tests


def _groups(rows: Iterable[Any], key: Callable[[Any], Any]) -> list[list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())


def later(numbers: Mapping[str, float] | None = None, only: Sequence[str] = ()) -> list[Tested]:
    """Every score of every round, or of `only` some, predicted from earlier rounds alone.

    `numbers`: the kernel's; None fits them to the earlier rounds, anew for each round.
    """
    tests: list[Tested] = []
    fitted: Mapping[str, float] = kernel_fit.START
    for name, year in scores.ROUNDS.items():
        if only and name not in only:
            continue
        earlier = [row for row in scores.rows() if row.year < year]
        benchmarks = [row.benchmark for row in earlier]
        of_round = [r for r in scores.rows() if r.round == name and benchmarks.count(r.benchmark) >= _FEWEST]
        if of_round:
            fitted = numbers or kernel_fit.fit(earlier, fitted)
            one, widths = Law.fit(earlier, fitted), widths_of(tests)
            for rows in _groups(of_round, lambda row: (row.benchmark, row.chip)):
                tests += [dataclasses.replace(t, widths=widths) for t in _tested(one, rows, earlier)]
    return tests


def widths_of(tests: Sequence[Tested]) -> tuple[float, ...]:
    """The widths, in deviations, that hold 90 and 99 % of tests; () for too few tests."""
    each = [abs(t.wrong) / t.deviation for t in tests]
    return tuple(float(x) for x in np.percentile(each, (_INSIDE, 99))) if len(each) >= _FEW_TESTS else ()


def left_out(whole: Law, group: str, widths: tuple[float, ...]) -> list[Tested]:
    """Every score, predicted without its group's scores, before the limits along sizes.

    The closed form of Rasmussen and Williams, section 5.4.2, for groups.
    """
    noise, rows = whole.numbers["noise"] ** 2, whole.rows
    prior = law.kernel(whole.at, whole.at, whole.numbers)
    inverse = np.linalg.inv(prior + np.diag(noise / whole.weights))
    pull = inverse @ (law.goal(rows, whole.at) - whole.mean)
    key, everywhere = GROUPS[group]
    tests = []
    for members in _groups(range(len(rows)), lambda i: (key(rows[i]), everywhere or rows[i].benchmark)):
        covariance = np.linalg.inv(inverse[np.ix_(members, members)])
        wrong = covariance @ pull[members]
        variance = np.diag(covariance) - noise / whole.weights[members] + noise
        excluded = set(members)
        others = [row for i, row in enumerate(rows) if i not in excluded]
        for i, error, spread in zip(members, wrong, np.sqrt(np.maximum(variance, 1e-9))):
            row = rows[i]
            how_far = distance(row.benchmark, row.chip, row.accelerators, others)
            tests.append(Tested(row, float(error), float(spread), how_far, look_up(row, others), widths))
    return tests


def summary(tests: Sequence[Tested]) -> dict[str, Any]:
    """The errors of left-out scores, in percent: of the law, and of law and look-up where the look-up has a score."""

    def error(values: Iterable[float]) -> list[float]:
        each = [100 * math.expm1(abs(value)) for value in values]
        return [round(float(np.median(each)), 1), round(float(np.percentile(each, 90)), 1)] if each else []

    all_errors: dict[str, Any] = {"scores": len(tests), "law": error(t.wrong for t in tests)}
    covered = [t.inside for t in tests if t.widths]
    all_errors["inside"] = round(sum(covered) / len(covered), 3) if covered else None
    for name in LOOK_UPS:
        has = [t for t in tests if name in t.looked]
        all_errors[name] = {
            "scores": len(has),
            "look-up": error(t.looked[name] for t in has),
            "law": error(t.wrong for t in has),
        }
    return all_errors


def coverage(tests: Sequence[Tested]) -> dict[str, dict[str, list[float]]]:
    """[scores, share inside 90 %, share inside 99 %] of later rounds' scores, by what they have in common."""
    sizes = ((8, "up to 8"), (64, "9 to 64"), (512, "65 to 512"), (math.inf, "above 512"))
    first: dict[str, float] = {}
    for row in scores.rows():
        first[row.chip] = min(row.year, first.get(row.chip, math.inf))
    ways: dict[str, Callable[[Tested], str]] = {
        "round": lambda t: t.row.round,
        "benchmark": lambda t: t.row.benchmark,
        "accelerators": lambda t: next(name for most, name in sizes if t.row.accelerators <= most),
        "accelerator": lambda t: "its first round" if t.row.year == first[t.row.chip] else "a later round",
    }
    with_widths = [t for t in tests if t.widths]
    shares: dict[str, dict[str, list[float]]] = {}
    for way, key in ways.items():
        for group in _groups(with_widths, key):
            wide = sum(abs(t.wrong) <= t.widths[1] * t.deviation for t in group)
            share = [round(x / len(group), 3) for x in (sum(t.inside for t in group), wide)]
            shares.setdefault(way, {})[key(group[0])] = [len(group), *share]
    return shares


def refit() -> tuple[dict[str, Any], dict[str, Any]]:
    """The contents of data/law.json and of data/errors.json, from the published scores."""
    tests = later(None)
    kernel, widths = kernel_fit.fit(scores.rows()), widths_of(tests)
    whole = Law.fit(scores.rows(), kernel)
    content = {
        "kernel": dict(kernel),
        "width": round(widths[0], 3),
        "mean": round(whole.mean, 6),
        "weights": [float(f"{x:.4g}") for x in whole.weights],
        "pull": [float(f"{x:.6g}") for x in whole.pull],
    }
    newest = max(scores.ROUNDS, key=lambda name: scores.ROUNDS[name])
    by_distance = {
        name: [t for t in tests if t.distance == name] for name in (SAME, TWICE, FOUR, FARTHER, NEW)
    }
    wrong = {
        "left out": {
            LATER: summary(tests),
            NEWEST: summary([t for t in tests if t.row.round == newest]),
            **{group: summary(left_out(whole, group, widths)) for group in GROUPS},
        },
        "distance": {name: summary(group) for name, group in by_distance.items()},
        "coverage": coverage(tests),
    }
    return content, wrong


def write(content: Any, path: Path) -> None:
    """Writes a file of data/: a line for each entry."""
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in content.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


@answering()
def main(arguments: Sequence[str]) -> int:
    """Fits the kernel and the law, tests them, and writes data/law.json and data/errors.json; returns 0."""
    if arguments:
        raise UserError("python -m lab.bench.law_fit takes no words; it takes ten minutes on one processor")
    content, wrong = refit()
    write(content, law.PATH)
    write(wrong, errors.PATH)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
