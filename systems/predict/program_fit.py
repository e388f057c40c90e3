"""Fits the constants of compiled programs to published TPU v3 rows; tests them by leaving out each system in turn.

Published programs differ from ours, so each benchmark has its own factor; the fit with one factor for all is kept for
comparison. TPU v4's rows have one additional factor, the same for all benchmarks. Each v4 system is also left out in
turn; the result with TPU v3's constants alone is kept for comparison. Rows without a compiled program are predicted by
formulas (fitting.py).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

import numpy as np

from systems.predict import compiled, convergence, fitting, published
from systems.predict.collectives import LINK_SHARE
from systems.predict.compiled import Scale, Scaled
from systems.predict.compute import Constants
from systems.predict.fitting import Test
from systems.predict.published import Row

FAMILY = "tpu-v3"
FEWEST = 5  # Minimum number of rows with a program; below it nothing is fitted.
# LINK_SHARE is the formulas' assumption and is not fitted: the exchange is a small part in every row.
_START = Scale(cycles=1.0, link=LINK_SHARE, turnaround=0.5)
_FACTOR, _TURNAROUND = (0.1, 4.0), (0.02, 10.0)  # Bounds.
ONE, EACH = "one factor", "a factor a benchmark"
NONE = "tpu-v4 without a factor"  # One factor per benchmark, from TPU v3's rows alone.


@functools.cache
def scale() -> Scale | None:
    """The committed constants, fitted to all rows with a program; None if there are too few."""
    found = fitting.committed()[FAMILY].get("programs")
    return Scale(**found["constants"]) if found else None


def errors() -> dict[str, list[float]]:
    """[median, 90th percentile] of the errors of TPU v3's rows with a program, each left out with its system."""
    return fitting.committed()[FAMILY]["programs"]["left_out"]


def program_of(row: Row) -> compiled.Program | None:
    """The compiled program of a row's preset."""
    return compiled.load(row.benchmark, row.preset) if row.preset else None


def fit(rows: Iterable[Row], values: Constants, each: bool, start: Scale = _START) -> Scale:
    """Returns the constants that best fit the rows with a program.

    Args:
      values: constants that predict evaluations without a compiled program.
      each: fit a factor for every benchmark among the rows; `cycles` stays the common factor.
      start: starting point of the search.
    """
    from scipy.optimize import least_squares

    chosen = [(row, program) for row in rows if (program := program_of(row))]
    start = fit(rows, values, False, start) if each else dataclasses.replace(start, benchmarks={})
    names = sorted({row.benchmark for row, _ in chosen}) if each else ["cycles"]
    target = np.log([row.seconds for row, _ in chosen])
    low, high = np.log([*[_FACTOR] * len(names), _TURNAROUND]).T

    def scaled(logs: np.ndarray) -> Scale:
        *factors, turnaround = map(float, np.exp(logs))
        if each:
            factors = {"benchmarks": dict(zip(names, factors, strict=True))}
        else:
            factors = {"cycles": factors[0]}
        return dataclasses.replace(start, turnaround=turnaround, **factors)

    def wrong(logs: np.ndarray) -> np.ndarray:
        tried = scaled(logs)
        found = [fitting.seconds(row, values, None, Scaled(program, tried)) for row, program in chosen]
        return np.log(found) - target

    first = np.log([*[start.cycles] * len(names), start.turnaround])
    found = least_squares(
        wrong,
        np.clip(first, low + 1e-6, high - 1e-6),
        bounds=(low, high),
        loss="soft_l1",
        f_scale=fitting.SCALE,
        diff_step=1e-4,
    )
    return _rounded(scaled(found.x))


def fit_v4(rows: Iterable[Row], values: Constants, scale: Scale) -> Scale:
    """`scale` (fitted to TPU v3) with the factor that best fits TPU v4's rows; unchanged without such rows."""
    from scipy.optimize import least_squares

    chosen = [(row, program) for row in rows if (program := program_of(row))]
    if not chosen:
        return scale
    target = np.log([row.seconds for row, _ in chosen])

    def wrong(logs: np.ndarray) -> np.ndarray:
        tried = dataclasses.replace(scale, v4=float(np.exp(logs[0])))
        return (
            np.log([fitting.seconds(row, values, None, Scaled(program, tried)) for row, program in chosen])
            - target
        )

    found = least_squares(
        wrong, [0.0], bounds=np.log(_FACTOR), loss="soft_l1", f_scale=fitting.SCALE, diff_step=1e-4
    )
    return _rounded(dataclasses.replace(scale, v4=float(np.exp(found.x[0]))))


def _rounded(found: Scale) -> Scale:
    def short(x: float) -> float:
        return float(f"{x:.4g}")

    own = {name: short(factor) for name, factor in found.benchmarks.items()}
    return Scale(short(found.cycles), found.link, short(found.turnaround), own, short(found.v4))


def refit(values: Constants) -> tuple[dict | None, dict[str, list[list]]]:
    """Refits all rows and tests the fit; returns entries for data/constants.json and data/left_out.json."""
    rows = [row for row in published.tested() if row.is_tpu and program_of(row)]
    if len(rows) < FEWEST:
        return None, {ONE: [], EACH: [], NONE: []}
    fourth = [row for row in published.held_out() if program_of(row)]
    saved, entry = {}, {}
    for name, each in ((ONE, False), (EACH, True)):
        whole = fit(rows, values, each)
        tests = leave_one_out(rows, values, each, whole)
        rounded = {k: [round(x, 4) for x in v] for k, v in fitting.summary(tests).items()}
        tests += leave_one_out_v4(fourth, values, whole)
        saved[name] = [fitting.saved(test) for test in tests]
        entry = {
            "constants": dataclasses.asdict(fit_v4(fourth, values, whole)),
            "rows": len(rows),
            "left_out": rounded,
        }
    saved[NONE] = [fitting.saved(_predicted(row, values, whole, "")) for row in fourth]
    return entry, saved


def leave_one_out_v4(rows: list[Row], values: Constants, whole: Scale) -> list[Test]:
    """Predicts every TPU v4 row with a factor fitted without any row of its system."""
    tests = []
    for key in dict.fromkeys(row.key for row in rows):
        found = fit_v4([row for row in rows if row.key != key], values, whole)
        tests += [_predicted(row, values, found, key) for row in rows if row.key == key]
    return tests


def leave_one_out(rows: list[Row], values: Constants, each: bool, start: Scale) -> list[Test]:
    """Predicts every row with a fit that excludes all rows of its system."""
    tests = []
    every = [row for row in published.tested() if row.family == FAMILY]
    for key in dict.fromkeys(row.key for row in rows):
        kept = [row for row in rows if row.key != key]
        without = _formulas(tuple(row for row in every if row.key != key), values)
        found = fit(kept, without, each, start)
        tests += [_predicted(row, without, found, key) for row in rows if row.key == key]
    return tests


@functools.cache
def _formulas(rows: tuple[Row, ...], start: Constants) -> Constants:
    return fitting.fit(rows, start)


def _predicted(row: Row, values: Constants, found: Scale, without: str) -> Test:
    made = Scaled(program_of(row), found)
    epochs = convergence.curve(row.benchmark, row.round, without).epochs(row.batch)
    at = fitting.seconds(row, values, None, made)
    return Test(row, at, epochs, fitting.seconds(row, values, epochs, made))


def committed_tests(kind: str = EACH) -> list[Test]:
    """The tests of programs from data/left_out.json: TPU v3's rows, then TPU v4's."""
    return tests_of(fitting.left_out()[kind])


def tests_of(saved: Iterable[list]) -> list[Test]:
    """The tests that `refit` saved."""
    found = {(row.key, row.benchmark): row for row in (*published.tested(), *published.held_out())}
    return [Test(found[key, name], *numbers) for key, name, *numbers in saved]
