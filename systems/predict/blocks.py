"""Reads start and evaluation times of published logs from data/blocks.csv, made by tools/published_blocks.py.

Nothing here is fitted. Each number is the median over the TPU systems of one round and benchmark.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
from pathlib import Path
from statistics import median

PATH = Path(__file__).parent / "data/blocks.csv"
# Rounds and benchmarks whose training waits for the whole evaluation, including its beam search or forward pass
# (docs/prediction-method.md, "Blocks"). Elsewhere the host evaluates while the next block trains.
WAITING = {("v0.7", "gnmt"), ("v0.7", "maskrcnn"), ("v0.7", "transformer")}


BENCHMARKS = ("resnet", "ssd", "maskrcnn", "transformer", "gnmt")
# Epochs per block, by (round, benchmark) or (round, benchmark, system); 1 if not listed. SSD's v0.6 blocks have 20,000
# steps of 32 images (docs/sources.md, mlperf 1.2).
_EPOCHS = {
    ("v0.6", "resnet"): 4.0,
    ("v0.7", "resnet"): 4.0,
    ("v0.6", "ssd"): 20_000 * 32 / 118_287,
    ("v0.7", "ssd"): 5.0,
    ("v0.7", "ssd", "tpu-v3-4096-JAX"): 1.0,
}


@dataclasses.dataclass(frozen=True)
class Block:
    """A row, in seconds: a block with its evaluation, the first block's extra, an evaluation outside the blocks."""

    round: str
    system: str
    benchmark: str
    period: float
    start: float
    evaluation: float | None

    @property
    def key(self) -> str:
        return f"{self.round}/{self.system}"


@functools.cache
def rows() -> tuple[Block, ...]:
    """Returns all rows."""
    with PATH.open(encoding="utf-8") as lines:
        return tuple(
            Block(
                row["round"],
                row["system"],
                row["benchmark"],
                float(row["period"]),
                float(row["start"]),
                float(row["evaluation"]) if row["evaluation"] else None,
            )
            for row in csv.DictReader(lines)
        )


def epochs(block: Block) -> float:
    """Epochs per block."""
    when = (block.round, block.benchmark)
    return _EPOCHS.get((*when, block.system)) or _EPOCHS.get(when, 1.0)


@functools.cache
def evaluation(benchmark: str, recipe: str) -> float:
    """Seconds of an evaluation outside the blocks; 0 if the logs have none."""
    found = [row.evaluation for row in _of(benchmark, recipe) if row.evaluation is not None]
    return median(found) if found else 0.0


@functools.cache
def start(benchmark: str, recipe: str) -> float:
    """Seconds by which a first block takes longer than later ones; 0 for benchmarks without logs."""
    found = [row.start for row in _of(benchmark, recipe)]
    return median(found) if found else 0.0


def _of(benchmark: str, recipe: str) -> list[Block]:
    mine = [row for row in rows() if row.benchmark == benchmark]
    return [row for row in mine if row.round == recipe] or mine
