"""Fits a family's four constants to published scores, and tests the fit by leaving out each system in turn.

The fit minimises the log ratio of predicted to published seconds at the published epochs, so convergence, which is
fitted separately, plays no part. Deviations above about 15 % count linearly (soft L1), so no single outlier decides
the fit.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from systems.predict import convergence, model, published
from systems.predict.compiled import Scaled
from systems.predict.compute import Constants, committed
from systems.predict.published import Row

LEFT_OUT = Path(__file__).parent / "data/left_out.json"
FORMULAS = "formulas"  # Key of the tests of the formulas' constants; program_fit.py names those of programs.
FAMILIES = ("tpu-v3", "v100")
# The search's starting point, and the physical bounds: fractions of a peak, microseconds, seconds.
_START = Constants(matrix=0.5, memory=0.7, launch=5e-6, turnaround=1.0)
_LOW = Constants(matrix=0.15, memory=0.2, launch=1e-7, turnaround=0.02)
_HIGH = Constants(matrix=0.95, memory=0.95, launch=1e-4, turnaround=10.0)
SCALE = 0.15


@functools.cache
def constants(family: str) -> Constants:
    """A family's committed constants, fitted to all its rows."""
    return Constants(**committed()[family]["constants"])


def errors(family: str) -> dict[str, list[float]]:
    """[median, 90th percentile] of the leave-one-out errors: "seconds", "epochs", "together"; {} if it has none."""
    return committed()[family].get("left_out", {})


def refit() -> tuple[dict[str, dict], list[list]]:
    """Refits and tests every family; returns the contents of data/constants.json and data/left_out.json."""
    result, left_out = {}, []
    for family in FAMILIES:
        values = fit([row for row in published.tested() if row.family == family])
        tests = leave_one_out(family, values)
        rounded = {k: [round(x, 4) for x in v] for k, v in summary(tests).items()}
        result[family] = {"constants": dataclasses.asdict(values), "left_out": rounded}
        left_out += [saved(test) for test in tests]
    return result, left_out


def saved(test: Test) -> list:
    numbers = (float(f"{x:.5g}") for x in (test.seconds, test.epochs, test.together))
    return [test.row.key, test.row.benchmark, *numbers]


def committed_tests() -> list[Test]:
    """The tests of the formulas' constants from data/left_out.json."""
    found = {(row.key, row.benchmark): row for row in published.tested()}
    return [Test(found[key, name], *numbers) for key, name, *numbers in left_out()[FORMULAS]]


def left_out() -> dict[str, list[list]]:
    """Reads {kind of fit: rows of its tests}, each row in the form of `saved`."""
    return json.loads(LEFT_OUT.read_text(encoding="utf-8"))


def write_left_out(kinds: dict[str, list[list]]) -> None:
    """Writes what `left_out` reads, one row per line."""
    parts = []
    for kind, rows in kinds.items():
        lines = ",\n  ".join(map(json.dumps, rows))
        parts.append(f"{json.dumps(kind)}: [\n  {lines}\n ]")
    LEFT_OUT.write_text("{\n " + ",\n ".join(parts) + "\n}\n", encoding="utf-8")


def seconds(row: Row, values: Constants, epochs: float | None = None, made: Scaled | None = None) -> float:
    """Predicted seconds of a row's run, at its published epochs or `epochs`; with `made`, from its compiled program."""
    work, machine = published.workload_of(row), published.machine_of(row)
    return model.run(work, machine, values, row.epochs if epochs is None else epochs, made).total


def fit(rows: Iterable[Row], start: Constants = _START) -> Constants:
    """Returns the constants that best fit the rows of one family."""
    from scipy.optimize import least_squares

    chosen = list(rows)
    target = np.log([row.seconds for row in chosen])
    low, high, first = (np.log(dataclasses.astuple(c)) for c in (_LOW, _HIGH, start))

    def wrong(logs: np.ndarray) -> np.ndarray:
        values = Constants(*np.exp(logs))
        return np.log([seconds(row, values) for row in chosen]) - target

    found = least_squares(
        wrong,
        np.clip(first, low + 1e-6, high - 1e-6),
        bounds=(low, high),
        loss="soft_l1",
        f_scale=SCALE,
        diff_step=1e-4,
    )
    return Constants(*(float(f"{x:.4g}") for x in np.exp(found.x)))


@dataclasses.dataclass(frozen=True)
class Test:
    """A row predicted by a fit without its system: seconds at its published epochs, epochs, and both together."""

    row: Row
    seconds: float
    epochs: float
    together: float

    @property
    def errors(self) -> tuple[float, float, float]:
        """Relative errors of: the time at the published epochs, the epochs, the time at the predicted epochs."""
        row = self.row
        return self.seconds / row.seconds - 1, self.epochs / row.epochs - 1, self.together / row.seconds - 1


def leave_one_out(family: str, start: Constants | None = None) -> list[Test]:
    """Predicts every row of a family with a fit that excludes all rows of its system."""
    rows = [row for row in published.tested() if row.family == family]
    whole = start or constants(family)
    tests = []
    for key in dict.fromkeys(row.key for row in rows):
        values = fit([row for row in rows if row.key != key], whole)
        for row in (row for row in rows if row.key == key):
            epochs = convergence.curve(row.benchmark, row.round, key).epochs(row.batch)
            at, free = seconds(row, values), seconds(row, values, epochs)
            tests.append(Test(row, at, epochs, free))
    return tests


def interval(
    total: float, errors: dict[str, list[float]], epochs: tuple[float, float, float]
) -> tuple[float, float]:
    """The 90 % interval around a total: the leave-one-out error at given epochs, and the interval of the epochs.

    Args:
      errors: as `errors` returns them.
      epochs: (low, expected, high).
    """
    low, expected, high = epochs
    miss = math.log(1 + errors["seconds"][1])
    below, above = math.hypot(miss, math.log(expected / low)), math.hypot(miss, math.log(high / expected))
    return total * math.exp(-below), total * math.exp(above)


def coverage(tests: Iterable[Test], errors: dict[str, list[float]]) -> float:
    """The share of tests whose published time lies in the interval; epochs are of a curve without the test's system."""
    inside = []
    for test in tests:
        row = test.row
        curve = convergence.curve(row.benchmark, row.round, row.key)
        low, high = curve.interval(row.batch)
        least, most = interval(test.together, errors, (low, curve.epochs(row.batch), high))
        inside.append(least <= row.seconds <= most)
    return sum(inside) / len(inside)


def shared(tests: Iterable[Test]) -> int:
    """Number of rows whose epoch curve still includes another system with the same benchmark, round and batch."""
    kept = published.rows()
    return sum(
        any(
            other.key != test.row.key
            and (other.benchmark, other.round, other.batch)
            == (test.row.benchmark, test.row.round, test.row.batch)
            for other in kept
        )
        for test in tests
    )


def stricter(tests: Iterable[Test]) -> tuple[float, float]:
    """`summary` of the epochs alone, with curves fitted without any row of the test's benchmark and batch."""
    found = []
    for row in (test.row for test in tests):
        curve = convergence.curve(row.benchmark, row.round, row.key, row.batch)
        found.append(abs(np.log(curve.epochs(row.batch) / row.epochs)))
    ratios = np.exp(found) - 1
    return float(np.median(ratios)), float(np.percentile(ratios, 90))


def summary(tests: Iterable[Test]) -> dict[str, tuple[float, float]]:
    """(median, 90th percentile) of |ln(predicted / published)|, as a ratio minus one: time, epochs, together."""
    errors = np.array([test.errors for test in tests])
    ratios = np.exp(np.abs(np.log1p(errors))) - 1
    names = ("seconds", "epochs", "together")
    return {
        name: (float(np.median(ratios[:, i])), float(np.percentile(ratios[:, i], 90)))
        for i, name in enumerate(names)
    }
