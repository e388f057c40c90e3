"""What a round admits for one benchmark: batch sizes with their convergence points, hyperparameters, evaluations."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import compliance
from common.errors import UserError, near
from compliance.log import rules, written_rules
from compliance.log.formulas import (
    FAILURES,
    bounds,
    compile_formula,
    describe_formula,
    formula_of_value,
    plain,
)
from compliance.log.predicates import describe
from compliance.submission import point_days, rcp, rounds
from systems.forecast import memory, scores
from timetotrain.forecast.measured import MOST_EPOCHS

_SETTINGS = Path(compliance.__file__).parent / "data/published_settings.csv"
# Keys that a plan says elsewhere.
_ELSEWHERE = frozenset(("global_batch_size", "eval_accuracy", "seed"))
NO, POINT, BETWEEN, BELOW, ABOVE = "no points", "point", "between", "below all points", "above all points"


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch size in a round.

    Attributes:
      kind: POINT, BETWEEN two points (their line counts), BELOW or ABOVE all of them, NO for a round without
        points, or `none` of a day before the first.
      since: the day since which the point (of two, the later one) is public; None if unknown.
      mean, stdev, least: to converge, in `unit`: the reference's, and the least mean that passes; None without points.
      first, every: of the evaluations, in `unit`; None if the rules have no schedule.
    """

    size: int
    kind: str
    unit: str
    since: date | None = None
    mean: float | None = None
    stdev: float | None = None
    least: float | None = None
    first: float | None = None
    every: float | None = None

    @property
    def admitted(self) -> bool:
        """Whether the convergence test can judge runs with this batch size, or the round has none."""
        return self.kind in (POINT, BETWEEN, NO)

    def evaluations(self, at: float) -> int:
        """Evaluations of a run that converges at `at`."""
        if not self.every:
            return 1
        return max(1, 1 + math.ceil((at - (self.first or self.every)) / self.every - 1e-9))


def ruleset_of(text: str, benchmark: str) -> str:
    """The ruleset of a round as 6.1, v6.1 or 6.1.0. Raises UserError if no such round, or it lacks the benchmark."""
    ruleset = rules.ruleset_name(text)
    if ruleset not in rules.RULESETS:
        versions = ", ".join(one.removesuffix(".0") for one in rules.RULESETS)
        raise UserError(f"--round={text}: no such round{near(ruleset, rules.RULESETS)}; known: {versions}")
    names = rounds.benchmarks(ruleset)
    if benchmark not in names:
        had = [one.removesuffix(".0") for one in rules.RULESETS if benchmark in rounds.benchmarks(one)]
        other = f"; rounds with it: {', '.join(had)}" if had else near(benchmark, names)
        raise UserError(f"{benchmark}: round {ruleset.removesuffix('.0')} has {', '.join(names)}{other}")
    return ruleset


def batches(benchmark: str, ruleset: str, day: date | None, sizes: Sequence[int]) -> list[Batch]:
    """The batch sizes with a point on a day (None: today's), and those that are asked for."""
    dates = dict(point_days.known_on(benchmark, ruleset, day))
    runs = rounds.required_runs(benchmark, ruleset)
    points, since = rcp.prune(tuple(dates), runs), {point.batch: when for point, when in dates.items()}
    rows = []
    for size in sorted({*(int(point.batch) for point in dates), *sizes}):
        point, kind = rcp.nearest(points, size, runs)
        if not points:
            kind = none(benchmark, ruleset, day)
        elif point is None or kind == "smallest":
            point, kind = None, ABOVE if point is None else BELOW
        state = _state(benchmark, ruleset, size)
        facts = {"unit": _unit(benchmark, ruleset)} | _schedule(benchmark, ruleset, size, state)
        if point:
            near_ = [one for one in points if one.batch == size] or _around(points, size)
            days = [since[one.batch] for one in near_]
            facts |= {"mean": point.mean, "stdev": point.stdev, "least": point.least}
            facts["since"] = max(days) if all(days) else None
        rows.append(Batch(size, POINT if kind == "point" else kind, **facts))
    return rows


def none(benchmark: str, ruleset: str, day: date | None) -> str:
    """The kind of every batch if a day has no point: NO if the round has none at all."""
    return f"no point was public on {day}" if rcp.points(benchmark, ruleset) else NO


def _around(points: Sequence[rcp.Point], size: int) -> list[rcp.Point]:
    return [*[p for p in points if p.batch < size][-1:], *[p for p in points if p.batch > size][:1]]


def _unit(benchmark: str, ruleset: str) -> str:
    """What the points count: as the schedule or the log's key say, but no benchmark has so many epochs."""
    row = written_rules.schedule(ruleset, benchmark)
    metadata = (
        rules.benchmark_section(ruleset, benchmark)
        .get("keys", {})
        .get("eval_accuracy", {})
        .get("metadata", {})
    )
    unit = row["unit"] if row else "samples" if "samples_count" in metadata else "epochs"
    many = any(point.mean > MOST_EPOCHS for point in rcp.points(benchmark, ruleset))
    return "samples" if unit == "epochs" and many else unit


def _state(benchmark: str, ruleset: str, size: int) -> dict[str, Any]:
    """What the rules remember of a log with a batch size, as far as it follows from that alone."""
    state: dict[str, Any] = {"global_batch_size": size}
    for key, spec in rules.benchmark_section(ruleset, benchmark).get("keys", {}).items():
        value = size if key == "global_batch_size" else _value(spec, state)
        for name, formula in spec.get("remembers", ()):
            if key != "eval_accuracy" and (number := _computed(formula, value, state)) is not None:
                state[name] = number
        if value is not None:
            state.setdefault(key, value)
    return state


def _value(spec: Mapping[str, Any], state: Mapping[str, Any]) -> Any:
    """The one value that a key may have; None if there are several, or it depends on what is free."""
    if "equal" in spec.get("value", {}):
        return spec["value"]["equal"]
    values = [formula_of_value(formula) for formula in spec.get("formula", ())]
    return _computed(values[0], None, state) if values and values[0] is not None else None


def _computed(formula: str | float, value: object, state: Mapping[str, Any]) -> Any:
    try:
        return compile_formula(formula)(value, {}, dict(state))
    except FAILURES:
        return None


def _schedule(benchmark: str, ruleset: str, size: int, state: Mapping[str, Any]) -> dict[str, float]:
    """The evaluations' first place and distance, by the written rules or by what a log remembers; {} if neither."""
    if plan := written_rules.places(ruleset, benchmark, {"global_batch_size": size}):
        factor = 1.0
        if written_rules.schedule(ruleset, benchmark)["unit"] != _unit(benchmark, ruleset):
            factor = memory.facts().get(scores.title(benchmark, f"v{ruleset}"), {}).get("epoch", 0.0)
        return {"first": factor * plan.first, "every": factor * plan.every} if factor else {}
    if "eval_interval_samples" in state:
        every = state["eval_interval_samples"]
        return {"first": state.get("first_eval_samples", every), "every": every}
    if "validation_start_samples" in state:
        return {"first": state["validation_start_samples"], "every": size}
    return {}


def hyperparameters(
    benchmark: str, ruleset: str, sizes: Sequence[int]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """({name: value at each batch size} of those that the rules fix, {name: [bound by the rules, what accepted runs of
    earlier rounds used]} of the free ones).
    """
    fixed, free = {}, {}
    states = [_state(benchmark, ruleset, size) for size in sizes]
    specs = dict(rules.benchmark_section(ruleset, benchmark).get("keys", {}))
    for key in (*specs, *sorted(written_rules.keys(ruleset, benchmark) - specs.keys())):
        spec, phrase = specs.get(key, {}), written_rules.fixed(ruleset, benchmark, key)
        if key in _ELSEWHERE:
            continue
        values = [_value(spec, state) for state in states]
        if any(value is not None for value in values):
            fixed[key] = [plain(value) if value is not None else "" for value in values]
        elif spec.get("formula"):
            fixed[key] = [_formula(spec["formula"], state) for state in states] or [""]
        elif phrase:
            fixed[key] = [_values(benchmark, ruleset, key, state) or phrase for state in states] or [phrase]
        elif spec or phrase:
            free[key] = [describe(spec["value"]) if "value" in spec else "any", used(benchmark, ruleset, key)]
    return fixed, free


def _formula(formulas: Sequence[str], state: Mapping[str, Any]) -> str:
    """A condition with the bounds that it computes, else in words."""
    sides_text = []
    for pair in (pair for formula in formulas for pair in bounds(formula)):
        sides = [_computed(side, None, state) for side in pair]
        if sides.count(None) == 1:
            sides_text.append(f">= {sides[0]:.6g}" if sides[1] is None else f"<= {sides[1]:.6g}")
    return " and ".join(sides_text) or " and ".join(
        describe_formula(one).removeprefix("value = ") for one in formulas
    )


def _values(benchmark: str, ruleset: str, key: str, state: Mapping[str, Any]) -> str:
    values = [_computed(one, None, state) for one in written_rules.allowed(ruleset, benchmark, key)]
    return " or ".join(plain(value) for value in values) if values and None not in values else ""


@cache
def _settings() -> tuple[dict[str, str], ...]:
    with _SETTINGS.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def used(benchmark: str, ruleset: str, key: str) -> str:
    """What accepted runs of the newest earlier round used, by batch size; "" if none is known."""
    short = f"v{ruleset.removesuffix('.0')}"
    rows = [
        row
        for row in _settings()
        if (row["benchmark"], row["key"]) == (benchmark, key) and row["round"] < short
    ]
    if not rows:
        return ""
    newest = max(row["round"] for row in rows)
    parts = []
    for row in sorted((row for row in rows if row["round"] == newest), key=lambda row: float(row["batch"])):
        ends = dict.fromkeys((row["least"], row["most"]))
        parts.append(f"{' to '.join(ends)} at {row['batch']}")
    return f"{newest}: {'; '.join(parts)}"


def since(text: str | None, before: Sequence[str]) -> str:
    """The earlier round to compare with: that of a flag, else the one before; "" if there is none.

    Raises UserError if it is not an earlier round.
    """
    if text is None:
        return before[-1] if before else ""
    ruleset = rules.ruleset_name(text)
    if ruleset not in before:
        raise UserError(f"--since={text}: not an earlier round; earlier ones: {', '.join(before)}")
    return ruleset
