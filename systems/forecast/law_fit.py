"""Tests the law by leaving scores out, beside two look-ups in the table, and fits what data/law.json keeps.

A row of `errors` predicts each score without a group of scores: all later rounds, its accelerator, its accelerator and
count, its submitter, or its system. The command that a user calls makes the prediction: benchmark, accelerator, count.
Rounds are predicted by a law fitted to earlier ones alone. For the other rows, which follow in closed form, the
weights of the noise are those of the whole fit; the kernel's numbers are for all rows.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from systems.forecast import accelerators, law, scores
from systems.forecast.law import Law
from systems.forecast.scores import Score

ERRORS = Path(__file__).parent / "data/errors.json"
LATER, NEWEST = "later rounds", "the newest round"
GROUPS: dict[str, Callable[[Score], str]] = {
    "accelerator": lambda row: row.chip,
    "accelerator and count": lambda row: f"{row.chip}/{row.accelerators}",
    "submitter": lambda row: row.org,
    "system": lambda row: row.key,
}
_FEWEST = 5  # Earlier scores that a benchmark needs.
_INSIDE = 90  # Percent of runs in an interval.


@dataclasses.dataclass(frozen=True)
class Tested:
    """A score predicted without its group: `wrong` is ln(published / predicted), `deviation` its standard deviation;
    `median` and `scaled` are the same by the two look-ups, None where they have no score to look up.
    """

    row: Score
    wrong: float
    deviation: float
    median: float | None
    scaled: float | None


def look_up(row: Score, rows: Iterable[Score]) -> tuple[float | None, float | None]:
    """ln(published / looked up): the median of the accelerator's scores with its count, of the nearest round; and the
    score with the nearest count, divided by the counts' ratio.
    """
    same = [other for other in rows if (other.benchmark, other.chip) == (row.benchmark, row.chip)]
    if not same:
        return None, None
    exact = [other for other in same if other.accelerators == row.accelerators]
    middle = None
    if exact:
        gap = min(abs(other.year - row.year) for other in exact)
        nearest = [other.minutes for other in exact if abs(other.year - row.year) == gap]
        middle = math.log(row.minutes / float(np.median(nearest)))

    def apart(other: Score) -> tuple[float, float]:
        return abs(math.log(other.accelerators / row.accelerators)), abs(other.year - row.year)

    near = min(same, key=apart)
    return middle, math.log(row.minutes * row.accelerators / near.minutes / near.accelerators)


def _tested(one: Law, rows: Sequence[Score], others: Sequence[Score]) -> list[Tested]:
    """Scores of one benchmark and accelerator, predicted by a law, dated by their rounds."""
    chip = accelerators.table()[rows[0].chip] | {"name": rows[0].chip}
    errors = []
    for year in sorted({row.year for row in rows}):
        mine = [row for row in rows if row.year == year]
        sizes = sorted({row.accelerators for row in mine})
        logs, deviation = one.curve(mine[0].benchmark, chip, sizes, year)
        at = {size: (log, spread) for size, log, spread in zip(sizes, logs, deviation)}
        for row in mine:
            log, spread = at[row.accelerators]
            errors.append(Tested(row, math.log(row.minutes) - log, float(spread), *look_up(row, others)))
    return errors


def _groups(rows: Iterable[Any], key: Callable[[Any], Any]) -> list[list[Any]]:
    found: dict[Any, list[Any]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return list(found.values())


def later(numbers: Mapping[str, float], only: Sequence[str] = ()) -> list[Tested]:
    """Every score of every round, or of `only` some, predicted from earlier rounds alone."""
    rows_ = []
    for name, year in scores.ROUNDS.items():
        if only and name not in only:
            continue
        earlier = [row for row in scores.rows() if row.year < year]
        seen = [row.benchmark for row in earlier]
        mine = [r for r in scores.rows() if r.round == name and seen.count(r.benchmark) >= _FEWEST]
        if mine:
            one = Law.fit(earlier, numbers)
            for rows in _groups(mine, lambda row: (row.benchmark, row.chip)):
                rows_ += _tested(one, rows, earlier)
    return rows_


def left_out(whole: Law, group: str) -> list[Tested]:
    """Every score, predicted without its group's scores of its benchmark, before the limits along sizes.

    The closed form of Rasmussen and Williams, section 5.4.2, for groups.
    """
    noise, rows = whole.numbers["noise"] ** 2, whole.rows
    prior = law.kernel(whole.at, whole.at, whole.numbers)
    inverse = np.linalg.inv(prior + np.diag(noise / whole.weights))
    pull = inverse @ (law.goal(rows, whole.at) - whole.mean)
    of_benchmark = _groups(range(len(rows)), lambda i: rows[i].benchmark)
    tests = []
    for mine in of_benchmark:
        for members in _groups(mine, lambda i: GROUPS[group](rows[i])):
            own = np.linalg.inv(inverse[np.ix_(members, members)])
            wrong = own @ pull[members]
            variance = np.diag(own) - noise / whole.weights[members] + noise
            gone = set(members)
            others = [rows[i] for i in mine if i not in gone]
            for i, error, spread in zip(members, wrong, np.sqrt(np.maximum(variance, 1e-9))):
                tests.append(Tested(rows[i], float(error), float(spread), *look_up(rows[i], others)))
    return tests


def summary(tests: Sequence[Tested], width: float) -> dict[str, Any]:
    """The errors of left-out scores, in percent: of the law, and of law and look-up where the look-up has a score."""

    def error(values: Iterable[float]) -> list[float]:
        each = [100 * math.expm1(abs(value)) for value in values]
        return [round(float(np.median(each)), 1), round(float(np.percentile(each, 90)), 1)] if each else []

    all_errors: dict[str, Any] = {"scores": len(tests), "law": error(t.wrong for t in tests)}
    all_errors["inside"] = round(
        sum(bool(abs(t.wrong) <= width * t.deviation) for t in tests) / len(tests), 3
    )
    for name in ("median", "scaled"):
        told = [t for t in tests if getattr(t, name) is not None]
        all_errors[name] = {
            "scores": len(told),
            "look-up": error(getattr(t, name) for t in told),
            "law": error(t.wrong for t in told),
        }
    return all_errors


def refit(numbers: Mapping[str, float]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The contents of data/law.json and of data/errors.json, by what was left out.

    The interval's width holds nine of ten scores of later rounds.
    """
    whole, tests = Law.fit(scores.rows(), numbers), later(numbers)
    width = round(float(np.percentile([abs(t.wrong) / t.deviation for t in tests], _INSIDE)), 3)
    content = {
        "kernel": dict(numbers),
        "width": width,
        "mean": round(whole.mean, 6),
        "weights": [float(f"{x:.4g}") for x in whole.weights],
        "pull": [float(f"{x:.6g}") for x in whole.pull],
    }
    newest = max(scores.ROUNDS, key=lambda name: scores.ROUNDS[name])
    errors = {
        LATER: summary(tests, width),
        NEWEST: summary([t for t in tests if t.row.round == newest], width),
    }
    return content, errors | {group: summary(left_out(whole, group), width) for group in GROUPS}


def write(content: Any, path: Path) -> None:
    """Writes a file of data/: a line for each entry."""
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in content.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
