"""Says which convergence points were public on a day.

data/rcp_origins.csv, from the history of mlcommons/logging, has every point, and who gave it.
"""

import csv
from datetime import date
from functools import cache
from pathlib import Path

from compliance.submission import rcp

_DATA = Path(__file__).parents[1] / "data" / "rcp_origins.csv"


@cache
def _since() -> dict[tuple[str, str, str], date]:
    """Returns {(benchmark, batch, sum of the runs): the day since which the repository has the point}."""
    with _DATA.open(encoding="utf-8", newline="") as file:
        return {
            (row["benchmark"], row["batch"], row["sum"]): date.fromisoformat(row["since"])
            for row in csv.DictReader(file)
        }


def since(benchmark: str, ruleset: str, batch: float) -> date | None:
    """Returns the day since which a round's point is in the repository; None if the table lacks it."""
    runs = dict(rcp.table(benchmark, ruleset)).get(batch, ())
    return _since().get((benchmark, f"{batch:g}", f"{sum(runs):.9g}"))


def known_on(benchmark: str, ruleset: str, day: date | None) -> tuple[tuple[rcp.Point, date | None], ...]:
    """Returns (point, since) of a round's batch sizes that had a point on a day; None: all of today's.

    Of a point that was replaced later, only the mean is known: it gets the deviation and the runs of today's.
    """
    rows = []
    for point in rcp.points(benchmark, ruleset):
        day_of_point = since(benchmark, ruleset, point.batch)
        if day is None or day_of_point is None or day_of_point <= day:
            rows.append((point, day_of_point))
            continue
        runs = len(dict(rcp.table(benchmark, ruleset))[point.batch])
        keys = [key for key in _since() if key[:2] == (benchmark, f"{point.batch:g}")]
        if before := [key for key in keys if _since()[key] <= day]:
            key = max(before, key=_since().__getitem__)
            ratio = float(key[2]) / runs / point.mean
            scaled = (point.mean * ratio, point.stdev * ratio, point.least * ratio)
            rows.append((rcp.Point(point.batch, *scaled), _since()[key]))
    return tuple(rows)
