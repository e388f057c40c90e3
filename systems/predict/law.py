"""A scaling law per benchmark: what published systems of a kind take, with an interval that is tested.

    ln(minutes * accelerators * speed) = constant + deviations

`speed` is the geometric mean of an accelerator's 16-bit peak and memory bandwidth, relative to an A100's. Without
deviations, time falls as accelerators and speed grow. The deviations form a Gaussian process per benchmark: linear in
the logarithms of accelerators (imperfect scaling), of speed and of peak over bandwidth, and in the round's date; one
value per accelerator and per vendor; smooth ones over accelerators, speed and date; for our five benchmarks the
batch (epochs grow with it). Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), chapters 2 and 5;
errors of groups left out follow in closed form (section 5.4.2). All benchmarks share the kernel's few numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import UserError
from systems.predict import chips, scores
from systems.predict.scores import Score

PATH = Path(__file__).parent / "data/law.json"
OURS = ("resnet", "ssd", "maskrcnn", "transformer", "gnmt")
NORMAL = 1.645  # Two-sided 90 % quantile of the normal distribution.
# The law cannot say if the interval is wider than this, high over low, or if the size is this many times beyond all
# published ones.
WIDEST, BEYOND = 5.0, 4.0
_CENTRE, _DATE = math.log(64), 2022.5  # Accelerators and date about which deviations are linear.
_CONSTANT = 9.0  # Prior variance of a benchmark's constant: any.
_ON_CHIP = 3e12  # bytes/s: memory on the chip itself counts as the fastest beside it.
# The starting point of the kernel's numbers: deviations of logarithms, and lengths l_* over which smooth parts change.
START = {
    "accelerators": 0.12,
    "accelerators2": 0.1,
    "speed": 0.15,
    "ratio": 0.1,
    "date": 0.07,
    "chip": 0.15,
    "vendor": 0.25,
    "smooth_date": 0.1,
    "smooth": 0.15,
    "smooth_chip": 0.1,
    "batch": 0.2,
    "smooth_batch": 0.1,
    "noise": 0.06,
    "l_date": 1.0,
    "l_accelerators": 1.5,
    "l_speed": 0.6,
    "l_batch": 0.5,
}


@dataclasses.dataclass(frozen=True)
class Points:
    """Runs as the law sees them, arrays [runs]: chip and vendor, logarithms of accelerators, of speed, of peak over
    bandwidth, of the batch (`with_batch`: it is known), and the date; `y` is the law's left side.
    """

    chip: np.ndarray
    vendor: np.ndarray
    accelerators: np.ndarray
    speed: np.ndarray
    ratio: np.ndarray
    date: np.ndarray
    batch: np.ndarray
    with_batch: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)


# Beginnings of accelerators' names by maker; their runs share its software.
_VENDORS = {
    "Google": ("TPU",),
    "AMD": ("MI", "RX"),
    "Intel": ("Gaudi",),
    "Huawei": ("Ascend",),
    "Graphcore": ("Bow", "IPU"),
    "NVIDIA": ("V100", "A100", "A30", "A40", "A10G", "RTX", "L4", "H100", "H200", "GH", "GB", "B200", "B300"),
}


def vendor(chip: str) -> str:
    """The maker of an accelerator; a processor, or an accelerator that nobody knows, is a maker of its own."""
    return next((name for name, starts in _VENDORS.items() if chip.startswith(starts)), chip)


def points(rows: Sequence[Score], entries: Mapping[str, Mapping[str, Any]] | None = None) -> Points:
    """The points of scores; `entries` has accelerators that chips.py lacks, by name."""
    known = chips.chips() | dict(entries or {})
    peaks = np.log([known[row.chip]["peak"]["bf16"] / 312e12 for row in rows])
    wide = np.log([min(known[row.chip]["memory_bandwidth"], _limit(row.chip)) / 2.039e12 for row in rows])
    many = np.log([row.accelerators for row in rows])
    speed = (peaks + wide) / 2
    with_batch = np.array([row.batch > 0 and row.benchmark in OURS for row in rows])
    batch = np.log([max(row.batch, 1.0) for row in rows])
    return Points(
        np.array([row.chip for row in rows]),
        np.array([vendor(row.chip) for row in rows]),
        many,
        speed,
        peaks - wide,
        np.array([row.year for row in rows]) - _DATE,
        np.where(with_batch, batch, 0.0),
        with_batch,
        np.log([row.minutes for row in rows]) + many + speed,
    )


def _limit(chip: str) -> float:
    return _ON_CHIP if "IPU" in chip else math.inf


def kernel(a: Points, b: Points, numbers: Mapping[str, float], centre: float) -> np.ndarray:
    """Prior covariance of the deviations of two sets of points, [a, b]; `centre` is the benchmark's mean ln(batch)."""
    v = {name: x * x for name, x in numbers.items()}

    def product(x: np.ndarray, z: np.ndarray) -> np.ndarray:
        return x[:, None] * z[None, :]

    def near(x: np.ndarray, z: np.ndarray, length: str) -> np.ndarray:
        return np.exp(-((x[:, None] - z[None, :]) ** 2) / (2 * v[length]))

    many, others = a.accelerators - _CENTRE, b.accelerators - _CENTRE
    same_chip = a.chip[:, None] == b.chip[None, :]
    same_vendor = a.vendor[:, None] == b.vendor[None, :]
    over = near(a.accelerators, b.accelerators, "l_accelerators")
    dates = near(a.date, b.date, "l_date")
    alike = near(a.speed, b.speed, "l_speed") * near(a.ratio, b.ratio, "l_speed")
    both = product(a.with_batch.astype(float), b.with_batch.astype(float))
    mine, theirs = a.batch - centre, b.batch - centre
    return (
        _CONSTANT
        + v["accelerators"] * product(many, others)
        + v["accelerators2"] * product(many**2, others**2) / 100
        + v["speed"] * product(a.speed, b.speed)
        + v["ratio"] * product(a.ratio, b.ratio)
        + v["date"] * product(a.date, b.date)
        + v["vendor"] * same_vendor
        + v["smooth_date"] * dates
        + v["smooth"] * over * alike * dates
        + same_chip * (v["chip"] + v["smooth_chip"] * over * dates)
        + v["batch"] * both * product(mine, theirs)
        + v["smooth_batch"] * both * near(mine, theirs, "l_batch") * over * alike
    )


@dataclasses.dataclass(frozen=True)
class Law:
    """A benchmark's law, fitted to `rows`; `mean` is that of `y`, `centre` that of ln(batch)."""

    rows: tuple[Score, ...]
    points: Points
    mean: float
    centre: float
    numbers: Mapping[str, float]

    @classmethod
    def of(cls, rows: Sequence[Score], numbers: Mapping[str, float]) -> Law:
        found = points(rows)
        centre = float(found.batch[found.with_batch].mean()) if found.with_batch.any() else 0.0
        return cls(tuple(rows), found, float(found.y.mean()), centre, numbers)

    @functools.cached_property
    def inverse(self) -> np.ndarray:
        """The inverse of the scores' prior covariance, noise included."""
        found = kernel(self.points, self.points, self.numbers, self.centre)
        return np.linalg.inv(found + self.numbers["noise"] ** 2 * np.eye(len(self.points)))

    def predict(self, wanted: Points) -> tuple[np.ndarray, np.ndarray]:
        """(ln of the minutes, its standard deviation), both [wanted]."""
        across = kernel(wanted, self.points, self.numbers, self.centre)
        prior = np.diag(kernel(wanted, wanted, self.numbers, self.centre)) + self.numbers["noise"] ** 2
        weights = across @ self.inverse
        variance = prior - np.einsum("ij,ij->i", weights, across)
        logs = self.mean + weights @ (self.points.y - self.mean) - wanted.accelerators - wanted.speed
        return logs, np.sqrt(np.maximum(variance, 1e-9))

    def left_out(self, group: Callable[[Score], str]) -> tuple[np.ndarray, np.ndarray]:
        """(ln(published / predicted), standard deviation) of each score, predicted without its whole group."""
        inverse = self.inverse
        pull = inverse @ (self.points.y - self.mean)
        wrong, deviation = np.zeros(len(pull)), np.zeros(len(pull))
        names: dict[str, list[int]] = {}
        for i, row in enumerate(self.rows):
            names.setdefault(group(row), []).append(i)
        for members in names.values():
            own = np.linalg.inv(inverse[np.ix_(members, members)])
            wrong[members], deviation[members] = own @ pull[members], np.sqrt(np.diag(own))
        return wrong, deviation


@functools.cache
def committed() -> dict[str, Any]:
    """data/law.json: the kernel's numbers, and by benchmark the deviations that nine of ten left-out scores lie in."""
    return json.loads(PATH.read_text(encoding="utf-8"))


@functools.cache
def law(benchmark: str) -> Law:
    """A benchmark's law, fitted to all its published scores.

    Raises:
      UserError: nothing is published.
    """
    rows = [row for row in scores.rows() if row.benchmark == benchmark]
    if not rows:
        raise UserError(f"{benchmark}: no scores are published; known: {', '.join(scores.benchmarks())}")
    return Law.of(rows, committed()["kernel"])


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What published systems of a kind take: minutes with a 90 % interval, and the evidence in words.

    `reason` says why the law cannot say; "" if it can.
    """

    benchmark: str
    round: str
    minutes: float
    low: float
    high: float
    evidence: str
    reason: str = ""


def estimate(
    benchmark: str, chip: Mapping[str, Any], accelerators: int, batch: float = 0.0, when: str = ""
) -> Estimate:
    """Predicts a run on a machine by the law of its benchmark.

    Args:
      chip: the accelerator's entry, as in chips.py, with its `name`.
      batch: global batch in examples, for our five benchmarks; 0 if unknown.
      when: the round whose software it has; "" for the benchmark's last.

    Raises:
      UserError: nothing is published of the benchmark.
    """
    own = law(benchmark)
    when = when or max(row.round for row in own.rows)
    name = str(chip["name"])
    wanted = points([Score(when, "", "", benchmark, name, accelerators, 1.0, batch)], {name: chip})
    logs, deviation = own.predict(wanted)
    half = committed()["deviations"][benchmark] * float(deviation[0])
    minutes = math.exp(float(logs[0]))
    same = [row.accelerators for row in own.rows if row.chip == name]
    evidence = (
        f"{len(same)} published scores on {name}, {min(same)} to {max(same)} accelerators"
        if same
        else f"none of {len(own.rows)} published scores is on {name}"
    )
    reason = ""
    sizes = [row.accelerators for row in own.rows]
    if chip.get("host"):
        reason = "no score in the tables is of processors without accelerators"
    elif not min(sizes) / BEYOND <= accelerators <= max(sizes) * BEYOND:
        reason = f"published scores have {min(sizes)} to {max(sizes)} accelerators, not {accelerators}"
    elif 2 * half > math.log(WIDEST):
        reason = f"{evidence}, so that the interval spans a factor of {math.exp(2 * half):.0f}"
    return Estimate(
        benchmark, when, minutes, minutes * math.exp(-half), minutes * math.exp(half), evidence, reason
    )
