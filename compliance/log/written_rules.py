"""Compares a closed log with what the written rules fix and the stock checker does not look at. Gives advice only.

rules/written.json has the hyperparameters and the evaluation schedules of each round, with their source.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from compliance.log.formulas import FAILURES, compile_condition, compile_formula, describe_formula, plain

_FILE = Path(__file__).parents[1] / "rules" / "written.json"
# Two numbers that agree to this part are one: 0.1 x 0.0008 is not 0.00008 in floating point.
_CLOSE = 1e-6
_WITHIN = 1e-3  # of an interval: how far an evaluation may be from its place, unless the schedule says more
_MAX_PLACES = 100_000  # of a schedule that a log's places span; no published log has a hundredth as many
_SHOWN = 5
UNITS = {"samples": "samples_count", "tokens": "epoch_num", "epochs": "epoch_num"}


class Difference(NamedTuple):
    """A value that the written rules do not allow: its key, what they ask for, and what the log has."""

    key: str
    expected: str
    actual: object


class Plan(NamedTuple):
    """The places of a run's evaluations: `first`, then every `every`."""

    first: float
    every: float


@cache
def _rows() -> dict[str, list[dict]]:
    return json.loads(_FILE.read_text(encoding="utf-8"))


def _applies(row: dict, ruleset: str, benchmark: str) -> bool:
    first, last = row["rounds"]
    return benchmark in row["benchmarks"] and first <= ruleset <= last


@cache
def keys(ruleset: str, benchmark: str) -> frozenset[str]:
    """Returns the keys whose values `differences` reads."""
    names = {row["key"] for row in _rows()["values"] if _applies(row, ruleset, benchmark)}
    return frozenset(names | {"global_batch_size", "opt_base_learning_rate"} if names else ())


def differences(ruleset: str, benchmark: str, values: Mapping[str, object]) -> Iterator[Difference]:
    """Yields the hyperparameters that differ from the written rules. A key that was not logged is not a difference."""
    state = dict(values)
    for row in _rows()["values"]:
        key = row["key"]
        if key not in state or not _applies(row, ruleset, benchmark):
            continue
        if "if" in row and not compile_condition(row["if"])(None, {}, state):
            continue
        allowed = [(value, one) for one in row["allowed"] if (value := _number(one, state)) is not None]
        if allowed and not any(_same(state[key], value, row.get("within", 0)) for value, _ in allowed):
            texts = [
                plain(value) + (f" = {describe_formula(one)}" if isinstance(one, str) else "")
                for value, one in allowed
            ]
            yield Difference(key, " or ".join(texts), state[key])


def fixed(ruleset: str, benchmark: str, key: str) -> str:
    """Returns what the written rules fix a hyperparameter to in every run, as a phrase; "" if they do not."""
    return " or ".join(
        describe_formula(one) if isinstance(one, str) else plain(one)
        for one in allowed(ruleset, benchmark, key)
    )


def allowed(ruleset: str, benchmark: str, key: str) -> list[object]:
    """Returns the values, or formulas of them, that the written rules fix a hyperparameter to in every run."""
    rows = [row for row in _rows()["values"] if row["key"] == key and _applies(row, ruleset, benchmark)]
    return [one for row in rows if "if" not in row for one in row["allowed"]]


def _number(formula: object, state: dict) -> float | None:
    try:
        value = compile_formula(formula)(None, {}, state)
    except FAILURES:
        return None
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def _same(value: object, allowed: float, within: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isclose(value, allowed, rel_tol=_CLOSE, abs_tol=within or 1e-15)
    except OverflowError:
        return False


# ------------------------------------------------------------------------------------------------ schedules


def schedule(ruleset: str, benchmark: str) -> dict | None:
    """Returns the row of the table of evaluation frequencies for a benchmark of a round; None if it has none."""
    return next((row for row in _rows()["schedules"] if _applies(row, ruleset, benchmark)), None)


def places(ruleset: str, benchmark: str, values: Mapping[str, object]) -> Plan | None:
    """Returns where a run with these hyperparameters is evaluated; None if the rules have no schedule for it."""
    row = schedule(ruleset, benchmark)
    return row and _plan(row, row, values, ())


def off_schedule(row: dict, values: Mapping[str, object], places: Sequence[float]) -> tuple[str, str] | None:
    """Compares a run's evaluations with the schedule.

    Args:
      row: the schedule.
      values: the log's hyperparameters.
      places: where the log evaluated, in the schedule's unit.

    Returns:
      (what the schedule asks for, what the log did), or None if they agree or cannot be compared.
    """
    places = sorted(set(places))
    plans = [plan for one in (row, *row.get("or", ())) if (plan := _plan(row, one, values, places))]
    if not places or not plans or len(places) > _MAX_PLACES:
        return None
    deviations = [(plan, *_deviations(row, plan, places)) for plan in plans]
    plan, extra, missing = min(deviations, key=lambda one: len(one[1]) + len(one[2]))
    if not extra and not missing:
        return None
    unit = row["unit"]
    expected = f"an evaluation every {plain(plan.every)} {unit}, the first at {plain(plan.first)}"
    parts = [f"none at {_listed(missing)}"] if missing else []
    parts += [f"also at {_listed(extra)}"] if extra else []
    return expected, "; ".join(parts)


def _plan(row: dict, one: dict, values: Mapping[str, object], places: Sequence[float]) -> Plan | None:
    state = dict(values)
    every, skip = _number(one["every"], state), _number(one.get("skip", 0), state)
    if every is None or not every > 0:
        return None
    first = _number(one["first"], state) if "first" in one else (skip or 0) * every + every
    if first is not None and row.get("offset") and places:
        first = min(first, places[0])
    return None if first is None else Plan(first, every)


def _deviations(row: dict, plan: Plan, places: Sequence[float]) -> tuple[list[float], list[float]]:
    """Returns (evaluations that the schedule has no place for, places up to the last without an evaluation)."""
    (first, every), extra, numbers = plan, [], set()
    for place in places:
        number = round((place - first) / every)
        if number < 0 or abs(place - first - number * every) > row.get("within", _WITHIN) * every:
            extra.append(place)
        else:
            numbers.add(number)
    last = 0 if row.get("sparse") else min(round((places[-1] - first) / every), _MAX_PLACES)
    return extra, [first + n * every for n in range(last) if n not in numbers]


def _listed(places: Sequence[float]) -> str:
    examples = ", ".join(plain(round(place, 4)) for place in places[:_SHOWN])
    return examples + (f", ... ({len(places)} in all)" if len(places) > _SHOWN else "")
