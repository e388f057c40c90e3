"""Predicts the epochs to reach the target as a function of the batch, fitted to the published points.

    epochs(B) = least * (1 + B / critical)

This is the trade-off between steps and examples in McCandlish et al., "An Empirical Model of Large-Batch Training"
(2018): below the critical batch the number of examples is constant, above it the number of steps. Both numbers are
fitted, per benchmark and recipe (round), to the logarithms of the published epochs of all submitters and accelerators,
since the number of epochs does not depend on the machine.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

# A recipe with fewer points has no curve of its own.
FEWEST = 3
# Two-sided 90 % quantiles of Student's t distribution by degrees of freedom (any table), for the prediction interval.
_T90 = {1: 6.31, 2: 2.92, 3: 2.35, 4: 2.13, 5: 2.02, 6: 1.94, 8: 1.86, 10: 1.81, 15: 1.75, 30: 1.70}


@dataclasses.dataclass(frozen=True)
class Curve:
    """Attributes:
    least, critical: the law's two numbers; `critical` may be infinite, if the batch does not matter.
    deviation: standard deviation of ln(epochs) around the curve, corrected for the degrees of freedom.
    points: number of points in the fit.
    batches: smallest and largest batch in the fit.
    """

    least: float
    critical: float
    deviation: float
    points: int
    batches: tuple[float, float]

    def epochs(self, batch: float) -> float:
        return self.least * (1 + batch / self.critical)

    def interval(self, batch: float) -> tuple[float, float]:
        """The 90 % interval of a run's epochs; beyond the fitted batches it widens by a quarter per doubling."""
        freedom = max(1, self.points - 2)
        t = next((v for k, v in sorted(_T90.items(), reverse=True) if k <= freedom), _T90[1])
        beyond = max(0.0, math.log2(batch / self.batches[1]), math.log2(self.batches[0] / batch))
        width = t * self.deviation * math.sqrt(1 + 2 / self.points) + 0.25 * beyond * math.log(2)
        return self.epochs(batch) * math.exp(-width), self.epochs(batch) * math.exp(width)


def fit(batches: Sequence[float], epochs: Sequence[float]) -> Curve:
    """Fits ln(epochs) by least squares over a fine grid of critical batches; `least` follows in closed form."""
    b, e = np.asarray(batches, dtype=np.float64), np.log(np.asarray(epochs, dtype=np.float64))
    grid = np.append(np.geomspace(b.min() / 4, b.max() * 100, 2000), np.inf)
    law = np.log1p(b[None, :] / grid[:, None])
    least = (e[None, :] - law).mean(axis=1)
    wrong = e[None, :] - law - least[:, None]
    best = int(np.argmin((wrong**2).sum(axis=1)))
    freedom = max(1, len(b) - 2)
    deviation = math.sqrt(float((wrong[best] ** 2).sum()) / freedom)
    return Curve(
        math.exp(least[best]),
        float(grid[best]),
        max(deviation, 0.02),
        len(b),
        (float(b.min()), float(b.max())),
    )


@functools.cache
def curve(benchmark: str, recipe: str, without: str = "", without_batch: float | None = None) -> Curve | None:
    """The curve of a benchmark under a round's recipe.

    `without` leaves out a system ("v0.6/tpu-v3-32"); `without_batch` leaves out all rows with that batch, in both
    rounds.

    A round with fewer than three points also uses the other round's. None if nothing was published.
    """
    from systems.predict import published

    rows = [
        r
        for r in published.rows()
        if r.benchmark == benchmark and r.key != without and r.batch != without_batch
    ]
    mine = [r for r in rows if r.round == recipe]
    chosen = mine if len({r.batch for r in mine}) >= FEWEST else rows
    return fit([r.batch for r in chosen], [r.epochs for r in chosen]) if chosen else None


# Training Kinetics in 15 Minutes, Table 3: {batch: top-1 accuracy after 100 epochs}; every batch trains 100 epochs.
KINETICS = {
    96: 0.7412,
    384: 0.7412,
    768: 0.7418,
    1536: 0.7414,
    3072: 0.7410,
    6144: 0.7399,
    12288: 0.7399,
    18432: 0.7252,
    24576: 0.6980,
    49152: 0.6222,
}


def kinetics_accuracy(batch: float) -> float:
    """TSM's top-1 accuracy after 100 epochs at a batch: Table 3, interpolated linearly in ln(batch)."""
    sizes = np.log(np.array(sorted(KINETICS), dtype=np.float64))
    return float(np.interp(math.log(batch), sizes, [KINETICS[b] for b in sorted(KINETICS)]))
