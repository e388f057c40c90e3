"""Simulates a run with jitter, stragglers, lost workers and restarts, for up to 100,000 accelerators.

A step of N workers ends when the slowest worker ends. Within a step, groups that share batch-norm statistics or an
image wait for each other at several barriers. So a group pays for the slowest worker at each barrier, not for the
slowest over the step. The maximum of G normal variables is drawn directly (a uniform number to the power 1 / G,
through the inverse of the distribution), never as G numbers. A group's sum over its barriers is drawn as a normal
variable of the right mean and variance. So 100,000 workers cost no more than 100.

A failure anywhere ends the step for all: the run continues from the last checkpoint after `restart` seconds. Without
faults the simulation takes exactly the run's time.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from common.errors import UserError

LARGEST = 100_000  # Workers of a simulation.
_SAMPLED = 256  # Distinct step times drawn; a run's steps are sampled from these.
_FAILURES = 20_000  # A run with more failures counts as making no progress.
_DRAWS = 4096  # Samples for a barrier's mean and variance.
_HOUR = 3600.0
_MOST = 1e9  # Maximum of any flag.
# Times that a group waits within a step: batch norms of ResNet-50, forward and backward.
_BARRIERS = 106
_STEPS = 20_000_000  # Maximum steps of a run: they are held in memory.


@dataclasses.dataclass(frozen=True)
class Faults:
    """A run's faults; none by default.

    Attributes:
      jitter: standard deviation of a worker's step time, relative to the step.
      stragglers, slowdown: this fraction of the workers always takes `slowdown` times as long.
      mtbf: mean hours between failures of one worker; 0: no failures.
      restart: seconds from a failure to the next step.
      checkpoint: seconds between checkpoints; 0: the best interval; none without failures.
      save: seconds to write a checkpoint.
      group: number of workers that wait for each other within a step; 0: one.
    """

    jitter: float = 0.0
    stragglers: float = 0.0
    slowdown: float = 1.3
    mtbf: float = 0.0
    restart: float = 120.0
    checkpoint: float = 0.0
    save: float = 5.0
    group: int = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not 0 <= value <= _MOST:
                raise UserError(f"--{field.name}={value:g}: must be at least 0 and at most {_MOST:g}")
        if self.stragglers > 1:
            raise UserError(f"--stragglers={self.stragglers:g}: is a part of the workers, at most 1")
        if self.slowdown < 1:
            raise UserError(f"--slowdown={self.slowdown:g}: must be at least 1")
        if self.jitter >= 1:
            raise UserError(f"--jitter={self.jitter:g}: is relative to a step, below 1")


@dataclasses.dataclass(frozen=True)
class Result:
    """A simulated run.

    Attributes:
      total: seconds of the run; `closed` is that of the run without faults.
      step: mean seconds of a step.
      failures: their number; `lost`: seconds of repeated steps and restarts.
      checkpoint: seconds between checkpoints; `young`: sqrt(2 save mtbf / N), Young 1974; 0 without failures.
      saving: seconds spent on all checkpoints.
    """

    total: float
    closed: float
    step: float
    failures: int
    lost: float
    checkpoint: float
    young: float
    saving: float

    def table(self) -> str:
        lines = [
            "",
            f"simulated: {self.total / 60:.4g} minutes, {self.total / self.closed:.3f} of the run without faults",
        ]
        lines.append(f"  {self.failures} failures, {self.lost:.1f} s lost to them")
        if self.young:
            lines.append(
                f"  a checkpoint every {self.checkpoint:.1f} s (Young: {self.young:.1f}), {self.saving:.1f} s in all"
            )
        return "\n".join(lines)


def simulate(total: float, steps: float, workers: int, faults: Faults, seed: int = 0) -> Result:
    """Simulates a run with faults.

    Args:
      total: seconds of the run without faults, all of them spread evenly over its `steps`.
      workers: number of accelerators that can be slow or fail.

    Raises UserError: too many workers or steps, a group size that does not divide the workers, or no progress due to
    failures.
    """
    if not 1 <= workers <= LARGEST:
        raise UserError(f"{workers} accelerators: the simulation takes 1 to {LARGEST:,}")
    group = faults.group or 1
    if workers % group:
        raise UserError(f"--group={group}: does not divide {workers} accelerators; use a divisor")
    rng = np.random.default_rng(seed)
    count = max(1, round(steps))
    if count > _STEPS:
        raise UserError(
            f"{count:.3g} steps: the simulation takes up to {_STEPS:,}; lower --epochs or raise --batch"
        )
    barriers = _BARRIERS if group > 1 else 1
    sampled = step_seconds(total / count, workers, faults, group, barriers, rng)
    durations = rng.choice(sampled, count) if faults.jitter else np.full(count, sampled[0])
    rate = workers / (faults.mtbf * _HOUR) if faults.mtbf else 0.0
    young = math.sqrt(2 * faults.save / rate) if rate else 0.0
    every = faults.checkpoint or (best_interval(durations, rate, faults, young, seed) if rate else math.inf)
    timeline = _Timeline(durations, rate, faults, every, np.random.default_rng(seed))
    return Result(
        total=math.fsum(durations) if not rate and not faults.checkpoint else timeline.total, closed=total,
        step=float(sampled.mean()), failures=timeline.failures, lost=timeline.lost,
        checkpoint=every if rate or faults.checkpoint else 0.0, young=young, saving=timeline.saving,
    )  # fmt: skip


def step_seconds(
    step: float, workers: int, faults: Faults, group: int, barriers: int, rng: np.random.Generator
) -> np.ndarray:
    """Seconds of sampled steps, [256]: a group sums its slowest workers over barriers; the slowest group decides."""
    groups = workers // group
    slow = round(workers * faults.stragglers)
    factor = faults.slowdown if slow else 1.0
    if not faults.jitter:
        return np.full(_SAMPLED, step * factor)
    if barriers == 1 or group == 1:
        fast = 1 + faults.jitter * _largest(workers - slow, _SAMPLED, rng)
        return step * np.maximum(fast, factor * (1 + faults.jitter * _largest(slow, _SAMPLED, rng)))
    # A group's number of stragglers decides its distribution; groups with equal numbers are alike.
    members = (
        rng.multivariate_hypergeometric([group] * groups, slow, method="marginals")
        if slow
        else np.zeros(groups)
    )
    result = np.zeros(_SAMPLED)
    for late, alike in zip(*np.unique(members, return_counts=True)):
        mean, deviation = _barrier(
            group - int(late), int(late), factor, faults.jitter * math.sqrt(barriers), rng
        )
        slowest = _largest(int(alike), _SAMPLED, rng)
        result = np.maximum(result, mean + deviation / math.sqrt(barriers) * slowest)
    return step * result


def _barrier(
    fast: int, late: int, factor: float, jitter: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Mean and deviation of the slowest worker's time at a barrier, relative to the time between two barriers."""
    times = 1 + jitter * _largest(fast, _DRAWS, rng)
    times = np.maximum(times, factor * (1 + jitter * _largest(late, _DRAWS, rng)))
    return float(times.mean()), float(times.std())


def _largest(count: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Draws the maximum of `count` standard normal variables `draws` times; -inf if `count` is 0."""
    from scipy.special import ndtri_exp

    if not count:
        return np.full(draws, -np.inf)
    return ndtri_exp(np.log(rng.random(draws)) / count)


def best_interval(durations: np.ndarray, rate: float, faults: Faults, young: float, seed: int) -> float:
    """Finds the interval (a quarter to four times Young's) whose runs end first under equal failures."""
    choices = young * np.geomspace(0.25, 4, 9)
    totals = []
    for every in choices:
        seeds = (np.random.default_rng((seed, number)) for number in range(5))
        totals.append(np.mean([_Timeline(durations, rate, faults, float(every), one).total for one in seeds]))
    # Among equally good intervals, choose the one nearest to Young's.
    return float(min(zip(totals, choices), key=lambda pair: (pair[0], abs(math.log(pair[1] / young))))[1])


class _Timeline:
    """Steps, checkpoints and failures in time order."""

    def __init__(
        self, durations: np.ndarray, rate: float, faults: Faults, every: float, rng: np.random.Generator
    ):
        steps = len(durations)
        per = steps if math.isinf(every) else max(1, round(every / float(durations.mean())))
        saves = np.zeros(steps)
        saves[per - 1 : steps - 1 : per] = faults.save
        ends = np.cumsum(durations + saves)
        self.failures, self.lost = 0, 0.0
        self.saving = float(saves.sum())
        done, now = 0, 0.0
        while True:
            start = ends[done - 1] if done else 0.0
            left = float(ends[-1] - start)
            until = rng.exponential(1 / rate) if rate else math.inf
            if until >= left:
                self.total = now + left
                return
            self.failures += 1
            if self.failures > _FAILURES:
                raise UserError(
                    f"{self.failures} failures before the run ended: shorten --checkpoint or --restart, or raise --mtbf"
                )
            reached = int(np.searchsorted(ends, start + until, side="right"))
            saved = reached // per * per
            begun = (ends[saved - 1] if saved else 0.0) - start
            # A failure loses the steps since the last checkpoint; a failure before the first step loses none.
            self.lost += until - max(begun, 0.0) + faults.restart
            now += until + faults.restart
            done = max(done, saved)
