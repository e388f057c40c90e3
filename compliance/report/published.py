"""Reads the published scores of all rounds, and finds those that a result may be held against."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

from compliance.submission.runs import number
from compliance.submission.scores import Published, ScoreCard
from compliance.submission.scores import published as first_rounds

_LATER = Path(__file__).parents[1] / "data" / "published_scores_later.csv"


@cache
def published() -> tuple[Published, ...]:
    """The closed-division scores of rounds v0.6 to v5.1 (sources: data/README.md)."""
    if not _LATER.is_file():
        return first_rounds()
    with _LATER.open(encoding="utf-8", newline="") as file:
        later = tuple(
            Published(
                row["round"], row["org"], row["system"], row["benchmark"], int(row["n_accelerators"]),
                float(row["score_minutes"]), number(float(row["to_converge"])) if row["to_converge"] else None,
            )
            for row in csv.DictReader(file)
        )  # fmt: skip
    return first_rounds() + later


def beside(card: ScoreCard) -> tuple[int | None, list[Published]]:
    """(accelerator count, published scores of the benchmark at that count, fastest first).

    The card's own row is left out. Without a count in the system's description, the published row of the
    same name gives it; when nobody published the benchmark at that count, the nearest count is taken.
    """
    rows = [row for row in published() if row.benchmark == card.benchmark]
    own = [row for row in rows if row.system == card.system and row.org.lower() == card.org.lower()]
    count = own[0].accelerators if card.accelerators is None and own else card.accelerators
    if not count or not rows:
        return count, []
    near = min({row.accelerators for row in rows}, key=lambda n: (abs(n - count), n))
    others = [row for row in rows if row.accelerators == near and row not in own]
    return count, sorted(others, key=lambda row: row.minutes)
