"""Reads all published scores, v0.6 to v5.1, with the accelerator that each system's description names.

Sources: compliance/data/published_scores.csv, published_scores_later.csv and published_systems.csv. A benchmark whose
task changed has two names: SSD's rows from v2.0 on are RetinaNet's, and the graph network of v4.0 and v4.1 is R-GAT.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
from pathlib import Path

from systems.predict import chips

_DATA = Path(__file__).resolve().parents[2] / "compliance/data"
SEQUENCE = 256  # Tokens per packed sequence; NVIDIA counts the transformer's batch in tokens.
# When the results of a round appeared, in years (mlcommons.org/benchmarks/training, dates of the announcements).
ROUNDS = {
    "v0.6": 2019.5,
    "v0.7": 2020.6,
    "v1.0": 2021.5,
    "v1.1": 2021.9,
    "v2.0": 2022.5,
    "v2.1": 2022.85,
    "v3.0": 2023.5,
    "v3.1": 2023.85,
    "v4.0": 2024.45,
    "v4.1": 2024.85,
    "v5.0": 2025.4,
    "v5.1": 2025.85,
}
# Machines of v0.6 whose descriptions are no JSON: their names' beginnings.
_UNDESCRIBED = {"dgx1": "V100-SXM2", "dgx2": "V100-SXM3"}


@dataclasses.dataclass(frozen=True)
class Score:
    """A published score: minutes on `accelerators` of a chip. `batch` is in examples, 0 if no log says it."""

    round: str
    org: str
    system: str
    benchmark: str
    chip: str
    accelerators: int
    minutes: float
    batch: float

    @property
    def key(self) -> str:
        """The system, its submitter and its round, which a test leaves out together."""
        return f"{self.round}/{self.org}/{self.system}"

    @property
    def year(self) -> float:
        return ROUNDS[self.round]


@functools.cache
def descriptions() -> tuple[dict[str, str], ...]:
    """The fields of all published descriptions that name the accelerators and hosts, v0.6 to v5.1."""
    with (_DATA / "published_systems.csv").open(encoding="utf-8") as lines:
        return tuple(csv.DictReader(lines))


@functools.cache
def rows() -> tuple[Score, ...]:
    """The published scores of machines with accelerators."""
    known = {(r["round"], r["org"], r["system"]): chips.recognise(r) for r in descriptions()}
    found = []
    for name in ("published_scores.csv", "published_scores_later.csv"):
        with (_DATA / name).open(encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                chip = known.get((row["round"], row["org"], row["system"])) or _UNDESCRIBED.get(
                    row["system"][:4], ""
                )
                if chip and not chips.chips()[chip].get("host"):
                    found.append(_score(row, chip))
    return tuple(found)


def _score(row: dict[str, str], chip: str) -> Score:
    benchmark, batch = row["benchmark"], float(row["global_batch_size"] or 0)
    if benchmark == "transformer" and row["org"] == "NVIDIA":
        batch /= SEQUENCE
    return Score(
        row["round"],
        row["org"],
        row["system"],
        title(benchmark, row["round"]),
        chip,
        int(row["n_accelerators"]),
        float(row["score_minutes"]),
        batch,
    )


def title(benchmark: str, when: str) -> str:
    """A benchmark's name across rounds: "ssd" of v2.0 and later is RetinaNet, "gnn" is R-GAT."""
    if benchmark == "ssd" and when >= "v2.0":
        return "retinanet"
    return "rgat" if benchmark == "gnn" else benchmark


def benchmarks() -> tuple[str, ...]:
    """The benchmarks with published scores."""
    return tuple(sorted({row.benchmark for row in rows()}))
