"""Fits the constants of compiled programs to published TPU v3 rows, and tests them by leaving each system out in turn.

TPU v4 is left out of every fit: its rows, of compiled programs alone, are predicted with what TPU v3 gave. Rows without
a compiled program have the prediction by formulas (fitting.py).
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from systems.predict import compiled, convergence, fitting, published
from systems.predict.collectives import LINK_SHARE
from systems.predict.compiled import Scale, Scaled
from systems.predict.compute import Constants
from systems.predict.fitting import Test
from systems.predict.published import Row

FAMILY = "tpu-v3"
LEFT_OUT = Path(__file__).parent / "data/left_out_programs.json"
FEWEST = 3  # Rows with a program, below which nothing is fitted.
_START = Scale(cycles=1.0, link=LINK_SHARE, turnaround=0.5)
_LOW = Scale(cycles=0.2, link=LINK_SHARE, turnaround=0.02)
_HIGH = Scale(cycles=3.0, link=LINK_SHARE, turnaround=10.0)
# LINK_SHARE is the formulas' assumption, and is not fitted: in every row the exchange is a small part.
_FITTED = ("cycles", "turnaround")


@functools.cache
def scale() -> Scale | None:
    """The committed constants, fitted to all rows with a program; None where there are too few."""
    found = fitting.committed()[FAMILY].get("programs")
    return Scale(**found["constants"]) if found else None


def errors() -> dict[str, list[float]]:
    """[median, 90th percentile] of the errors of TPU v3's rows with a program, each left out with its system."""
    return fitting.committed()[FAMILY]["programs"]["left_out"]


def program_of(row: Row) -> compiled.Program | None:
    """The compiled program of a row's preset."""
    return compiled.load(row.benchmark, row.preset) if row.preset else None


def fit(rows: Iterable[Row], values: Constants, start: Scale = _START) -> Scale:
    """The constants that fit rows with a program best; `values` predict evaluations that are not compiled."""
    from scipy.optimize import least_squares

    chosen = [(row, program) for row in rows if (program := program_of(row))]
    target = np.log([row.seconds for row, _ in chosen])
    low, high, first = (np.log([getattr(s, name) for name in _FITTED]) for s in (_LOW, _HIGH, start))

    def scaled(logs: np.ndarray) -> Scale:
        return dataclasses.replace(start, **dict(zip(_FITTED, map(float, np.exp(logs)), strict=True)))

    def wrong(logs: np.ndarray) -> np.ndarray:
        tried = scaled(logs)
        found = [fitting.seconds(row, values, None, Scaled(program, tried)) for row, program in chosen]
        return np.log(found) - target

    first = np.clip(first, low + 1e-6, high - 1e-6)
    found = least_squares(
        wrong, first, bounds=(low, high), loss="soft_l1", f_scale=fitting.SCALE, diff_step=1e-4
    )
    best = scaled(found.x)
    return dataclasses.replace(best, **{name: float(f"{getattr(best, name):.4g}") for name in _FITTED})


def refit(values: Constants) -> tuple[dict | None, list[list]]:
    """Fits all rows anew and tests the fit: the entry of data/constants.json, and data/left_out_programs.json."""
    rows = [row for row in published.tested() if row.is_tpu and program_of(row)]
    if len(rows) < FEWEST:
        return None, []
    whole = fit(rows, values)
    tests = leave_one_out(rows, values, whole)
    rounded = {k: [round(x, 4) for x in v] for k, v in fitting.summary(tests).items()}
    tests += [_predicted(row, values, whole, "") for row in published.held_out() if program_of(row)]
    entry = {"constants": dataclasses.asdict(whole), "rows": len(rows), "left_out": rounded}
    return entry, [fitting.saved(test) for test in tests]


def leave_one_out(rows: list[Row], values: Constants, start: Scale) -> list[Test]:
    """Predicts every row by a fit without any row of its system."""
    tests = []
    every = [row for row in published.tested() if row.family == FAMILY]
    for key in dict.fromkeys(row.key for row in rows):
        kept = [row for row in rows if row.key != key]
        without = fitting.fit([row for row in every if row.key != key], values)
        found = fit(kept, without, start)
        tests += [_predicted(row, without, found, key) for row in rows if row.key == key]
    return tests


def _predicted(row: Row, values: Constants, found: Scale, without: str) -> Test:
    made = Scaled(program_of(row), found)
    epochs = convergence.curve(row.benchmark, row.round, without).epochs(row.batch)
    at = fitting.seconds(row, values, None, made)
    return Test(row, at, epochs, fitting.seconds(row, values, epochs, made))


def committed_tests() -> list[Test]:
    """The tests of data/left_out_programs.json: TPU v3's rows, then TPU v4's."""
    found = {(row.key, row.benchmark): row for row in (*published.tested(), *published.held_out())}
    saved = json.loads(LEFT_OUT.read_text(encoding="utf-8"))
    return [Test(found[key, name], *numbers) for key, name, *numbers in saved]
