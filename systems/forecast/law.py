"""One law for the minutes of a run: all published scores, one Gaussian process, with an interval that is tested.

    ln(minutes * accelerators * speed) = constant + deviations

`speed` is the geometric mean of an accelerator's 16-bit peak and memory bandwidth, relative to an A100's. Without
deviations, time falls as accelerators and speed grow. Deviations have two parts: a benchmark's own (accelerators,
speed, date, accelerator, maker), and one that all benchmarks share, so that a new accelerator's scores of one benchmark
tell of another. Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), chapter 2.

The noise is Student's t, as a mixture of normal deviations (Geweke, 1993): a score far from the others weighs little.
data/law.json keeps what the fit found; an answer takes milliseconds.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import UserError, near
from systems.forecast import accelerators, scores
from systems.forecast.scores import Score

PATH = Path(__file__).parent / "data/law.json"
# Degrees of freedom of the noise, and rounds of reweighting.
FREEDOM, _ROUNDS = 2.0, 6
# The law cannot say if the interval is wider than this, high over low, or if the size is this many times beyond all
# published ones.
WIDEST, BEYOND = 5.0, 4.0
_CENTER, _DATE = math.log(64), 2022.5  # Accelerators and date about which deviations are linear.
_CONSTANT = 9.0  # Prior variance of a benchmark's constant: any.
_ON_CHIP = 3e12  # bytes/s of memory on the chip itself: as the fastest beside one of its time.
# Minutes neither grow with accelerators, nor fall by more than this power of their number.
_STEEPEST = 1.05
_ALIKE = 120  # Scores of other benchmarks on the accelerator that bound a deviation.
# Minutes of ordinary code over the law's: NVIDIA's examples (NVIDIA/DeepLearningExamples, README of each) make
# 16,925 images/s of ResNet-50 on 8 A100-80GB where the law implies 29,414 (1.7), and train GNMT on a DGX-1 in 46.2
# minutes where it says 32.8 (1.4); this project's training loop on one H200 makes 6,947 images/s where it implies
# about 8,300 (1.2; lab/bench/results/gpu/h200.json).
ORDINARY = (1.2, 1.8)
_LARGEST = 1 << 17  # Accelerators of the largest size that is considered.
_PROGRESS = 0.5  # Years beyond a benchmark's last round to which its software's progress is extrapolated.


@dataclasses.dataclass(frozen=True)
class Points:
    """Runs as the law sees them, arrays [runs]: benchmark, chip, maker, logarithms of accelerators, of speed, of peak
    over bandwidth and of the 8-bit over the 16-bit peak, date, and logarithm of the benchmark's age.
    """

    benchmark: np.ndarray
    chip: np.ndarray
    maker: np.ndarray
    many: np.ndarray
    speed: np.ndarray
    ratio: np.ndarray
    narrow: np.ndarray
    date: np.ndarray
    age: np.ndarray

    def __len__(self) -> int:
        return len(self.date)

    def take(self, index: Any) -> Points:
        """The points of an index or a mask."""
        return Points(*(getattr(self, field.name)[index] for field in dataclasses.fields(self)))


def points(
    rows: Sequence[Score], entries: Mapping[str, Mapping[str, Any]] | None = None, years: Any = None
) -> Points:
    """The points of scores, dated `years` where given; `entries` has accelerators that the table lacks, by name."""
    table = accelerators.table() | dict(entries or {})
    date = np.array([row.year for row in rows] if years is None else years, dtype=np.float64)
    first = scores.first_years()
    each = {name: _figures(table[name]) for name in {row.chip for row in rows}}
    peak, wide, narrow = np.array([each[row.chip] for row in rows]).T
    return Points(
        _codes(row.benchmark for row in rows), _codes(row.chip for row in rows),
        _codes(accelerators.maker(row.chip) for row in rows), np.log([row.accelerators for row in rows]),
        (peak + wide) / 2, peak - wide, narrow, date - _DATE,
        np.log(np.maximum(date - [first[row.benchmark] for row in rows], 0.0) + 0.5),
    )  # fmt: skip


def _codes(names: Iterable[str]) -> np.ndarray:
    """Numbers of names, [names]: arrays of numbers compare faster than those of words."""
    return np.array([zlib.crc32(name.encode()) for name in names])


def _figures(chip: Mapping[str, Any]) -> tuple[float, float, float]:
    """Returns three logarithms of an accelerator's figures.

    They are of its 16-bit peak relative to an A100's, of its bandwidth relative to an A100's, and of its 8-bit peak
    divided by its 16-bit peak.
    """
    peak, wide = chip["peak"]["bf16"], chip["memory_bandwidth"] or _ON_CHIP
    return math.log(peak / 312e12), math.log(wide / 2.039e12), math.log(chip["peak"].get("fp8", peak) / peak)


def speed_of(chip: Mapping[str, Any]) -> float:
    """Logarithm of an accelerator's speed, the root of peak times bandwidth, relative to an A100's."""
    peak, wide, _ = _figures(chip)
    return (peak + wide) / 2


def goal(rows: Sequence[Score], at: Points) -> np.ndarray:
    """The law's left side of scores."""
    return np.log([row.minutes for row in rows]) + at.many + at.speed


def parts(a: Points, b: Points, numbers: Mapping[str, float]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (name, matrix [a, b]) of the prior covariance: the kernel is the sum of numbers[name]^2 times matrix.

    Numbers of the part that benchmarks share begin with "all_"; those that begin with "l_" are lengths over which
    smooth parts change. The constant has the name "".
    """

    def product(part: str, center: float = 0.0, power: int = 1) -> np.ndarray:
        x, z = ((getattr(one, part) - center) ** power for one in (a, b))
        return x[:, None] * z[None, :]

    def smooth(length: str, *names: str) -> np.ndarray:
        apart = sum((getattr(a, part)[:, None] - getattr(b, part)[None, :]) ** 2 for part in names)
        return np.exp(-apart / (2 * numbers[length] ** 2))

    def same(part: str) -> np.ndarray:
        return (getattr(a, part)[:, None] == getattr(b, part)[None, :]).astype(float)

    benchmark, chip, maker = same("benchmark"), same("chip"), same("maker")
    dates, over = smooth("l_date", "date"), smooth("l_many", "many")
    many, squared = product("many", _CENTER), product("many", _CENTER, 2) / 100
    yield "", _CONSTANT * benchmark
    for name, matrix in (("many", many), ("many2", squared), ("maker", maker), ("smooth_date", dates)):
        yield name, benchmark * matrix
    for name in ("speed", "ratio", "date", "age", "narrow"):
        yield name, benchmark * product(name)
    yield "smooth", benchmark * over * smooth("l_speed", "speed", "ratio") * dates
    yield "chip", benchmark * chip
    yield "smooth_chip", benchmark * chip * over * dates
    yield "all_many", many
    yield "all_many2", squared
    for name in ("speed", "ratio", "date", "age"):
        yield f"all_{name}", product(name)
    yield "all_maker", maker
    yield "all_maker_date", maker * dates
    yield "all_chip", chip
    yield "all_chip_date", chip * dates


def kernel(a: Points, b: Points, numbers: Mapping[str, float]) -> np.ndarray:
    """Prior covariance of the deviations of two sets of points, [a, b]."""
    total = np.zeros((len(a), len(b)))
    for name, matrix in parts(a, b, numbers):
        total += (numbers[name] ** 2 if name else 1.0) * matrix
    return total


@dataclasses.dataclass(frozen=True)
class Law:
    """A law fitted to scores.

    Attributes:
      rows, at: the scores and their points.
      numbers: of the kernel; `noise` is the scale of the noise.
      mean: of the scores' left side.
      weights: of the scores, [rows]: 1 as a normal deviation, less for one far from the others.
      pull: the inverse of the scores' covariance times their left side, less the mean, [rows].
      inverse: that inverse, [rows, rows]; None where deviations are to be bounded instead.
    """

    rows: Sequence[Score]
    at: Points
    numbers: Mapping[str, float]
    mean: float
    weights: np.ndarray
    pull: np.ndarray
    inverse: np.ndarray | None = None

    @classmethod
    def fit(cls, rows: Sequence[Score], numbers: Mapping[str, float]) -> Law:
        """The law of scores: the noise's deviations are reweighted by their expected size, `_ROUNDS` times."""
        at = points(rows)
        prior, noise = kernel(at, at, numbers), numbers["noise"] ** 2
        goals = goal(rows, at)
        mean, weights = float(goals.mean()), np.ones(len(rows))
        for turn in range(_ROUNDS):
            noises = noise / weights
            inverse = np.linalg.inv(prior + np.diag(noises))
            pull = inverse @ (goals - mean)
            if turn < _ROUNDS - 1:
                spread = np.maximum(noises - noises**2 * np.diag(inverse), 0.0)
                weights = (FREEDOM + 1) / (FREEDOM + ((noises * pull) ** 2 + spread) / noise)
        return cls(rows, at, numbers, mean, weights, pull, inverse)

    def predict(self, query: Points) -> tuple[np.ndarray, np.ndarray]:
        """(ln of the minutes, standard deviation), [query], of runs of one benchmark on one accelerator.

        Without the inverse, the deviation follows from the scores of the benchmark and of the accelerator alone, so it
        is an upper bound.
        """
        across = kernel(query, self.at, self.numbers)
        logs = self.mean + across @ self.pull - query.many - query.speed
        prior = np.diag(kernel(query, query, self.numbers)) + self.numbers["noise"] ** 2
        if self.inverse is None:
            mine, alike = self.at.benchmark == query.benchmark[0], self.at.chip == query.chip[0]
            others = np.flatnonzero(alike & ~mine)
            near = np.append(np.flatnonzero(mine), others[:: -(-len(others) // _ALIKE) or 1])
            at, across = self.at.take(near), across[:, near]
            matrix = kernel(at, at, self.numbers) + np.diag(self.numbers["noise"] ** 2 / self.weights[near])
            gain = np.linalg.solve(matrix, across.T)
        else:
            gain = self.inverse @ across.T
        variance = prior - np.einsum("ij,ji->i", across, gain)
        return logs, np.sqrt(np.maximum(variance, 1e-9))

    def curve(
        self, benchmark: str, chip: Mapping[str, Any], sizes: Sequence[int], year: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """(ln of the minutes, standard deviation) of a benchmark on `sizes` accelerators, [sizes], dated `year`.

        Along sizes, from the best known one outwards, minutes neither grow nor fall by more than the size's power
        _STEEPEST: scores that say otherwise are of different submitters.
        """
        octaves = [1 << i for i in range(_LARGEST.bit_length())]
        grid = np.array(sorted({*octaves, *sizes}))
        name = str(chip["name"])
        rows = [Score("", "", "", benchmark, name, int(n), 1.0) for n in grid]
        logs, deviation = self.predict(points(rows, {name: chip}, [year] * len(grid)))
        anchor = int(np.argmin(np.where(np.isin(grid, octaves), deviation, np.inf)))
        for i in range(anchor + 1, len(grid)):
            fall = _STEEPEST * math.log(grid[i] / grid[i - 1])
            logs[i] = np.clip(logs[i], logs[i - 1] - fall, logs[i - 1])
        for i in range(anchor - 1, -1, -1):
            rise = _STEEPEST * math.log(grid[i + 1] / grid[i])
            logs[i] = np.clip(logs[i], logs[i + 1], logs[i + 1] + rise)
        places = np.searchsorted(grid, sizes)
        return logs[places], deviation[places]


@functools.cache
def committed() -> dict[str, Any]:
    """data/law.json: the kernel's numbers, the width of the interval in deviations, and the fit to all scores."""
    return json.loads(PATH.read_text(encoding="utf-8"))


@functools.cache
def law() -> Law:
    """The law of all published scores, fitted by `python -m lab.bench.law_fit`; UserError if fitted to others."""
    saved, rows = committed(), scores.rows()
    if len(saved["pull"]) != len(rows):
        raise UserError(f"{PATH.name}: fitted to other scores; run `python -m lab.bench.law_fit`")
    weights, pull = (np.array(saved[name]) for name in ("weights", "pull"))
    return Law(rows, points(rows), saved["kernel"], saved["mean"], weights, pull)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What published systems take.

    Attributes:
      minutes, low, high: expected, and the interval of nine runs of ten.
      evidence: the scores that it stands on, in words.
      reason: why the law cannot say; "" if it can.
    """

    benchmark: str
    accelerators: int
    minutes: float
    low: float
    high: float
    evidence: str
    reason: str = ""


def require_scores(benchmark: str) -> str:
    """The benchmark. Raises UserError if nothing is published of it."""
    names = scores.benchmarks()
    if benchmark not in names:
        raise UserError(
            f"{benchmark}: no scores are published{near(benchmark, names)}; known: {', '.join(names)}"
        )
    return benchmark


def year_of(benchmark: str, rows: Sequence[Score] | None = None) -> float:
    """The date of a forecast: that of the newest round, at most half a year after the benchmark's last of `rows`."""
    last = max(row.year for row in rows or scores.rows() if row.benchmark == benchmark)
    return min(max(scores.ROUNDS.values()), last + _PROGRESS)


def estimates(
    benchmark: str, chip: Mapping[str, Any], sizes: Sequence[int], one: Law | None = None
) -> list[Estimate]:
    """What published systems of these sizes take, with the newest software.

    Args:
      chip: the accelerator's entry with its `name`.
      one: another law than that of all scores, as one of earlier rounds.

    Raises UserError if nothing is published of the benchmark.
    """
    one = one or law()
    rows = [row for row in one.rows if row.benchmark == require_scores(benchmark)]
    if not rows:
        reason = f"no earlier scores of {benchmark} are published"
        return [Estimate(benchmark, size, 0.0, 0.0, 0.0, reason, reason) for size in sizes]
    if chip.get("host"):
        reason = "no score in the tables is of processors without accelerators"
        return [Estimate(benchmark, size, 0.0, 0.0, 0.0, reason, reason) for size in sizes]
    logs, deviation = one.curve(benchmark, chip, sizes, year_of(benchmark, rows))
    least, most = (end(row.accelerators for row in rows) for end in (min, max))
    answers = []
    for size, log, spread in zip(sizes, logs, committed()["width"] * deviation):
        evidence, reason = _evidence(rows, str(chip["name"]), size), ""
        if not least / BEYOND <= size <= most * BEYOND:
            reason = f"published scores have {least} to {most} accelerators, not {size}"
        elif 2 * spread > math.log(WIDEST):
            reason = f"the interval spans a factor of {math.exp(2 * spread):.0f}: {evidence}"
        minutes = math.exp(log)
        low, high = minutes * math.exp(-spread), minutes * math.exp(spread)
        answers.append(Estimate(benchmark, size, minutes, low, high, evidence, reason))
    return answers


def _evidence(rows: Sequence[Score], chip: str, size: int) -> str:
    """The submitters and rounds of the scores on an accelerator, those of the size where there are any."""
    same = [row for row in rows if row.chip == chip]
    if not same:
        return f"none of {len(rows)} published scores is on {chip}"
    exact = [row for row in same if row.accelerators == size]
    matches = exact or same
    ends = {min(row.accelerators for row in same), max(row.accelerators for row in same)}
    where = f"{size}" if exact else " to ".join(map(str, sorted(ends)))
    orgs = list(dict.fromkeys(row.org for row in sorted(matches, key=lambda row: -row.year)))
    names = ", ".join(orgs[:3]) + (f" and {len(orgs) - 3} more" if len(orgs) > 3 else "")
    rounds = list(dict.fromkeys(row.round for row in sorted(matches, key=lambda row: row.year)))
    when = rounds[0] if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    count = f"{len(matches)} score{'s' if len(matches) > 1 else ''}"
    return f"{count} on {where} {chip}, {when}, of {names}"
