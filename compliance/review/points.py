"""Says who gave the convergence points that scores are compared with, since when, and whether that was in time.

data/rcp_origins.csv, from the history of mlcommons/logging, has every point. Rounds up to 6.0 take missing points until
a day after the deadline of submissions, of the largest models until five weeks before it (mlcommons/training_policies,
training_rules.adoc, "RCP Rules and Guidelines"). From 6.1 on they are due seven days before it (#589 there).
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from pathlib import Path

from compliance.submission import rcp, rounds

_DATA = Path(__file__).parents[1] / "data" / "rcp_origins.csv"
# Last days of submission. Sources: training_policies #380 (1.0) and #590 (6.1), tinygrad/tinygrad #3756 (4.0) and
# #11304 (5.1). Of the others no public source was at hand.
DEADLINES = {
    "1.0.0": date(2021, 5, 21), "4.0.0": date(2024, 5, 10), "5.1.0": date(2025, 10, 10), "6.1.0": date(2026, 10, 16),
}  # fmt: skip
_STRICT_FROM = (6, 1)
_STRICT, _LARGE, _USUAL = timedelta(days=-7), timedelta(weeks=-5), timedelta(days=1)
_LARGE_MODELS = frozenset({"gpt3", "llama31_405b"})


@dataclass(frozen=True)
class Origin:
    """One point: who ran it, where, when by the file's own words, and the day since which it is in the repository."""

    benchmark: str
    batch: float
    creator: str
    platform: str
    said: str
    since: date | None

    @property
    def text(self) -> str:
        return f"{self.batch:g} by {self.creator or 'nobody named'}, {self.since or 'unknown day'}"


@cache
def _origins() -> dict[tuple[str, str, str], Origin]:
    origins = {}
    with _DATA.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            told = row["creator"], row["platform"], row["when"], date.fromisoformat(row["since"])
            key = row["benchmark"], row["batch"], row["sum"]
            origins[key] = Origin(row["benchmark"], float(row["batch"]), *told)
    return origins


def origin(benchmark: str, ruleset: str, batch: float) -> Origin:
    """Returns the origin of a round's point; with empty fields and no day if the table lacks it."""
    runs = dict(rcp.table(benchmark, ruleset)).get(batch, ())
    key = benchmark, f"{batch:g}", f"{sum(runs):.9g}"
    return _origins().get(key) or Origin(benchmark, batch, "", "", "", None)


def compared(benchmark: str, ruleset: str, judged: rcp.Convergence | None) -> tuple[Origin, ...]:
    """Returns the points that a folder was compared with: one, the two around its batch size, or none."""
    if judged is None or judged.batch is None or judged.reference is None:
        return ()
    batches = [point.batch for point in rcp.pruned(benchmark, ruleset)]
    below = [one for one in batches if one < judged.batch]
    above = [one for one in batches if one > judged.batch]
    near = [judged.batch] if judged.batch in batches else [*below[-1:], *above[:1]]
    return tuple(origin(benchmark, ruleset, batch) for batch in near)


def due(benchmark: str, ruleset: str, deadline: date | None) -> date | None:
    """Returns the last day on which a point of the round could come; None if the round's deadline is unknown."""
    deadline = deadline or DEADLINES.get(ruleset)
    if deadline is None:
        return None
    if rounds.number(ruleset) >= _STRICT_FROM:
        return deadline + _STRICT
    return deadline + (_LARGE if benchmark in _LARGE_MODELS else _USUAL)


def in_time(points: Sequence[Origin], last: date | None) -> str:
    """Returns "yes", "no", or "unknown" without a deadline or a day; "" without points."""
    if not points:
        return ""
    days = [one.since for one in points]
    if last is None or any(day is None for day in days):
        return "unknown"
    return "yes" if all(day <= last for day in days) else "no"
