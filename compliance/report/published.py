"""Reads the published scores of all rounds, and finds those to compare a result with."""

from dataclasses import dataclass
from functools import cache

from compliance.log.logs import numeral
from compliance.submission.published_tables import table
from compliance.submission.scores import ScoreCard

# Google and NVIDIA in v0.6 and v0.7; every submitter from v1.0 (sources: data/README.md).
_TABLES = ("published_scores.csv", "published_scores_later.csv", "published_scores_v6.0.csv")


@dataclass(frozen=True, slots=True)
class PublishedScore:
    """One row of the tables. `epochs`: epochs (or samples) to converge as the logs count them; None if unknown."""

    round: str
    org: str
    system: str
    benchmark: str
    accelerators: int
    minutes: float
    epochs: float | None


@cache
def published_scores() -> tuple[PublishedScore, ...]:
    """Returns the closed-division scores of rounds v0.6 to v5.1, and those of v6.0 that are public (data/README.md)."""
    rows: list[PublishedScore] = []
    for row in (row for name in _TABLES for row in table(name)):
        names = (row[name] for name in ("round", "org", "system", "benchmark"))
        epochs = numeral(row.get("epochs_to_converge") or row.get("to_converge") or "")
        rows.append(PublishedScore(*names, int(row["n_accelerators"]), float(row["score_minutes"]), epochs))
    return tuple(rows)


@cache
def distinct_scores() -> tuple[PublishedScore, ...]:
    """Returns the scores without those that repeat an earlier one: same benchmark, accelerators and minutes."""
    first: dict[tuple[str, int, str], PublishedScore] = {}
    for row in sorted(published_scores(), key=lambda row: row.round):
        first.setdefault((row.benchmark, row.accelerators, f"{row.minutes:.4f}"), row)
    return tuple(first.values())


def scores_beside(card: ScoreCard) -> tuple[int | None, list[PublishedScore]]:
    """Returns (accelerator count, published scores of the benchmark at that count, fastest first).

    Leaves out the card's own row. If the system's description has no count, the published row of the same name gives
    it. If nobody published the benchmark at that count, it takes the nearest count.
    """
    rows = [row for row in distinct_scores() if row.benchmark == card.benchmark]
    every = (row for row in published_scores() if row.benchmark == card.benchmark)
    own_rows = [row for row in every if row.system == card.system and row.org.lower() == card.org.lower()]
    count = own_rows[0].accelerators if card.accelerators is None and own_rows else card.accelerators
    if not count or not rows:
        return count, []
    near = min({row.accelerators for row in rows}, key=lambda n: (abs(n - count), n))
    others = [row for row in rows if row.accelerators == near and row not in own_rows]
    return count, sorted(others, key=lambda row: row.minutes)


def published_score(ruleset: str, org: str, system: str, benchmark: str) -> float | None:
    """Returns the minutes that a round's table has for a system, by the names of its folders; None if it has none."""
    key = f"v{ruleset[:3]}", org.casefold(), system.casefold(), benchmark
    for row in published_scores():
        if (row.round, row.org.casefold(), row.system.casefold(), row.benchmark) == key:
            return row.minutes
    return None


@cache
def _best() -> dict[tuple[str, str], float]:
    models = {
        (row["round"], row["org"], row["system"]): row["accelerator_model_name"].casefold()
        for row in table("published_systems.csv")
    }
    best: dict[tuple[str, str], float] = {}
    for row in published_scores():
        key = row.benchmark, models.get((row.round, row.org, row.system), "")
        best[key] = min(row.accelerators * row.minutes, best.get(key, float("inf")))
    return best


def best_of_accelerator(benchmark: str, model: str) -> float | None:
    """Returns the least accelerator-minutes of a published score on such accelerators; None if unknown."""
    return _best().get((benchmark, model.casefold())) if model else None
