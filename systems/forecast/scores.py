"""Reads all published scores, with the accelerator that each system's description names.

Sources: compliance/data/published_scores*.csv and published_systems.csv, and one paper's table. A benchmark whose task
changed has two names: SSD's rows from v2.0 on are RetinaNet's, and the graph network of v4.0 and v4.1 is R-GAT.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
from pathlib import Path

from systems.forecast import accelerators

DATA = Path(__file__).resolve().parents[2] / "compliance/data"
# When the results of a round appeared, in years (mlcommons.org/benchmarks/training, dates of the announcements), and
# the paper.
ROUNDS = {
    "v0.6": 2019.5, "paper": 2019.75, "v0.7": 2020.6, "v1.0": 2021.5, "v1.1": 2021.9, "v2.0": 2022.5,
    "v2.1": 2022.85, "v3.0": 2023.5, "v3.1": 2023.85, "v4.0": 2024.45, "v4.1": 2024.85, "v5.0": 2025.4,
    "v5.1": 2025.85, "v6.0": 2026.46,
}  # fmt: skip
# Machines of v0.6 whose descriptions are not JSON: their names' beginnings.
_UNDESCRIBED = {"dgx1": "V100-SXM2", "dgx2": "V100-SXM3"}
# Training Kinetics in 15 Minutes, table 3: seconds of 100 epochs of TSM by nodes of six V100.
KINETICS = {1: 179_700, 8: 25_620, 16: 13_080, 32: 6_600, 64: 3_356, 128: 1_694, 256: 853, 384: 609}


@dataclasses.dataclass(frozen=True)
class Score:
    """A published score: minutes on `accelerators` of a chip."""

    round: str
    org: str
    system: str
    benchmark: str
    chip: str
    accelerators: int
    minutes: float

    @property
    def key(self) -> str:
        """The system, its submitter and its round, which a test leaves out together."""
        return f"{self.round}/{self.org}/{self.system}"

    @property
    def year(self) -> float:
        return ROUNDS[self.round]


def files() -> list[Path]:
    """The tables of scores."""
    return sorted(DATA.glob("published_scores*.csv"))


@functools.cache
def descriptions() -> tuple[dict[str, str], ...]:
    """The fields of all published descriptions that name the accelerators and hosts."""
    with (DATA / "published_systems.csv").open(encoding="utf-8") as lines:
        return tuple(csv.DictReader(lines))


@functools.cache
def published() -> tuple[Score, ...]:
    """Every row of the tables whose machine has accelerators, copies included."""
    by_system = {(r["round"], r["org"], r["system"]): r for r in descriptions()}
    results = []
    for path in files():
        with path.open(encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                chip = _chip(row["system"], by_system.get((row["round"], row["org"], row["system"])))
                if chip and not accelerators.table()[chip].get("host"):
                    results.append(_score(row, chip))
    results += [
        Score("paper", "Training Kinetics", f"summit-{n}", "tsm_kinetics", "V100-SXM2", 6 * n, seconds / 60)
        for n, seconds in KINETICS.items()
    ]
    return tuple(results)


@functools.cache
def rows() -> tuple[Score, ...]:
    """The published scores, once each, in the order of the rounds.

    A score of the same benchmark and number of accelerators that equals another one to four decimals is the same runs:
    submitters send old results again, or one result under several names.
    """
    first: dict[tuple[str, int, str], Score] = {}
    for row in sorted(published(), key=lambda row: row.year):
        first.setdefault((row.benchmark, row.accelerators, f"{row.minutes:.4f}"), row)
    return tuple(first.values())


def _chip(system: str, description: dict[str, str] | None) -> str:
    name = accelerators.recognize(description) if description else ""
    return name or _UNDESCRIBED.get(system[:4], "")


def _score(row: dict[str, str], chip: str) -> Score:
    name = title(row["benchmark"], row["round"])
    size, minutes = int(row["n_accelerators"]), float(row["score_minutes"])
    return Score(row["round"], row["org"], row["system"], name, chip, size, minutes)


def title(benchmark: str, when: str) -> str:
    """A benchmark's name across rounds: "ssd" of v2.0 and later is RetinaNet, "gnn" is R-GAT."""
    if benchmark == "ssd" and when >= "v2.0":
        return "retinanet"
    return "rgat" if benchmark == "gnn" else benchmark


@functools.cache
def benchmarks() -> tuple[str, ...]:
    """The benchmarks with published scores."""
    return tuple(sorted({row.benchmark for row in rows()}))


@functools.cache
def first_years() -> dict[str, float]:
    """When each benchmark's first scores appeared."""
    return {name: min(row.year for row in rows() if row.benchmark == name) for name in benchmarks()}
