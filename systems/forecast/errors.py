"""How wrong the law is for a question like the one that is asked: data/errors.json, by distance from published scores.

`python -m lab.bench.law_fit` writes the file.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from systems.forecast import accelerators
from systems.forecast.scores import Score

PATH = Path(__file__).parent / "data/errors.json"
# How far the scores of the benchmark on the accelerator are from the count that is asked.
SAME, TWICE, FOUR, FARTHER, NEW = "same count", "within 2x", "within 4x", "farther", "new accelerator"


@functools.cache
def table() -> dict[str, Any]:
    """data/errors.json."""
    return json.loads(PATH.read_text(encoding="utf-8"))


def error_of(benchmark: str, chip: str, count: int, rows: Sequence[Score]) -> tuple[str, list[float]]:
    """(the class of questions in words, [median, 90th percentile] of their errors in percent)."""
    if not any(accelerators.family(row.chip) == accelerators.family(chip) for row in rows):
        return "scores of families without any score", table()["left out"]["family"]["law"]
    far = distance(benchmark, chip, count, rows)
    words = {
        SAME: "later scores on as many as earlier ones", NEW: "later scores of accelerators new to the benchmark",
        FARTHER: "later scores farther than 4x from earlier ones",
    }  # fmt: skip
    return words.get(far, f"later scores {far} of earlier ones"), table()["distance"][far]["law"]


def distance(benchmark: str, chip: str, count: int, rows: Iterable[Score]) -> str:
    """How far the nearest score of a benchmark on an accelerator is from a count."""
    counts = [row.accelerators for row in rows if (row.benchmark, row.chip) == (benchmark, chip)]
    ratio = min((max(count / one, one / count) for one in counts), default=math.inf)
    bounds = ((1, SAME), (2, TWICE), (4, FOUR), (math.inf, FARTHER))
    return next(name for bound, name in bounds if ratio <= bound) if counts else NEW


def middle(benchmark: str, chip: str, count: int, year: float, rows: Iterable[Score]) -> float | None:
    """The median minutes of an accelerator's scores with a count, of the nearest round; None without any."""
    key = (benchmark, chip, count)
    exact = [row for row in rows if (row.benchmark, row.chip, row.accelerators) == key]
    if not exact:
        return None
    gap = min(abs(row.year - year) for row in exact)
    return float(median([row.minutes for row in exact if abs(row.year - year) == gap]))
