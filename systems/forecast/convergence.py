"""Predicts the epochs to reach the target as a function of the batch, fitted to the published points.

    epochs(B) = least * (1 + B / critical)

This is the trade-off between steps and examples in McCandlish et al., "An Empirical Model of Large-Batch Training"
(2018): below the critical batch the number of examples is constant, above it the number of steps. Both numbers are
fitted, per benchmark, to the logarithms of the published epochs of all submitters and accelerators,
since the number of epochs does not depend on the machine.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from systems.forecast import scores


@dataclasses.dataclass(frozen=True)
class Curve:
    """Attributes:
    least, critical: the law's two numbers; `critical` may be infinite, if the batch does not matter.
    batches: smallest and largest batch in the fit.
    """

    least: float
    critical: float
    batches: tuple[float, float]

    def epochs(self, batch: float) -> float:
        return self.least * (1 + batch / self.critical)


def fit(batches: Sequence[float], epochs: Sequence[float]) -> Curve:
    """Fits ln(epochs) by least squares over a fine grid of critical batches; `least` follows in closed form."""
    b, e = np.asarray(batches, dtype=np.float64), np.log(np.asarray(epochs, dtype=np.float64))
    grid = np.append(np.geomspace(b.min() / 4, b.max() * 100, 2000), np.inf)
    law = np.log1p(b[None, :] / grid[:, None])
    least = (e[None, :] - law).mean(axis=1)
    wrong = e[None, :] - law - least[:, None]
    best = int(np.argmin((wrong**2).sum(axis=1)))
    return Curve(math.exp(least[best]), float(grid[best]), (float(b.min()), float(b.max())))


# (round, org, benchmark, batch or None, prefix of the system's name, correction added to the logged epoch): logs that
# count from 0, or name a block still in flight (docs/sources.md, mlperf 1, and the numbers of evaluations in the logs).
_EPOCHS = (
    # Logs with three evaluations end at epoch 2, with fifteen at 14, with ten (3, 7, ... 39) at 38.
    ("v0.6", "Google", "transformer", 512, "tpu", 1.0),
    ("v0.6", "Google", "maskrcnn", None, "tpu", 1.0),
    ("v0.7", "Google", "resnet", None, "tpu-v3-32-TF2", 1.0),
    # The eleventh evaluation, at "42", comes after 44 epochs (resnet/presets.py).
    ("v0.7", "Google", "resnet", None, "tpu-v4-16", 2.0),
    ("v0.7", "Google", "resnet", None, "tpu-v4-128", 2.0),
    # The run stops when the evaluation of the second-to-last block is known (docs/sources.md, mlperf 1.2).
    ("v0.6", "Google", "ssd", 1024, "tpu", -5.4),
    ("v0.6", "Google", "ssd", 2048, "tpu", -5.4),
)
# Examples per epoch: ImageNet; COCO's images with boxes; packed sequences (1,637 steps of 320 in NVIDIA's v0.6 DGX-1
# log); sentence pairs up to 75 words (1,938 steps of 2,048, ibid.).
EXAMPLES = {
    "resnet": 1_281_167, "ssd": 117_266, "maskrcnn": 117_266, "transformer": 523_840, "gnmt": 3_969_024,
}  # fmt: skip
_SEQUENCE = 256  # Tokens per packed sequence; NVIDIA counts the transformer's batch in tokens.


@functools.cache
def rows(benchmark: str) -> tuple[tuple[int, float, float], ...]:
    """(accelerators, batch in examples, epochs) of the published runs of v0.6 and v0.7."""
    table = []
    with (scores.DATA / "published_scores.csv").open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["benchmark"] != benchmark:
                continue
            batch, epochs = float(row["global_batch_size"]), float(row["epochs_to_converge"])
            for when, org, name, size, start, extra in _EPOCHS:
                same = (when, org, name) == (row["round"], row["org"], benchmark)
                if same and size in (None, batch) and row["system"].startswith(start):
                    epochs += extra
            if benchmark == "transformer" and row["org"] == "NVIDIA":
                batch /= _SEQUENCE
            table.append((int(row["n_accelerators"]), batch, epochs))
    return tuple(table)


@functools.cache
def curve(benchmark: str) -> Curve | None:
    """The curve of a benchmark; None if no epochs were published with their batches."""
    found = rows(benchmark)
    return fit([batch for _, batch, _ in found], [epochs for _, _, epochs in found]) if found else None


def usual_batch(benchmark: str, accelerators: int) -> float:
    """The batch of the published runs on about as many accelerators: the median of the three nearest sizes."""
    near = sorted(rows(benchmark), key=lambda row: abs(math.log(row[0] / accelerators)))[:3]
    return float(np.median([batch for _, batch, _ in near]))
