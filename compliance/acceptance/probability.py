"""Estimates, with k of n runs in, how likely it is that the olympic mean of all n runs passes the test, and the factor.

The model, for one folder of runs; m and s are the reference's mean and standard deviation at the folder's batch size:

- Run i converges after y_i epochs (or samples), normal with mean mu and standard deviation sigma.
- sigma^2 has a scaled inverse chi-squared prior with NU degrees of freedom and scale s^2, as in the reference. If the
  reference's runs are all alike, s is FLOOR * m.
- Most submitters converge like the reference: mu / m is normal with mean NEAR_CENTER and standard deviation NEAR_TAU.
  A share FAR of them converges otherwise, mostly slower: with mean FAR_CENTER and standard deviation FAR_TAU.
- A run fails to converge with a probability whose prior is Beta(FAILS, RUNS - FAILS).

Given the runs so far, a draw takes sigma^2 from its posterior, mu given sigma^2, and the other runs given both: their
posterior predictive is close to a Student t. If the logs tell how far apart evaluations are, a drawn run ends at an
evaluation. The olympic mean of known and drawn runs is compared with the least accepted one. Every call uses the same
random numbers, so the same logs give the same answer.

The constants were chosen for their Brier score on published folders of rounds 1.0 to 4.1. Rounds from 5.0 on took no
part.
"""

import math
from collections.abc import Sequence
from functools import cache, partial
from itertools import pairwise
from random import Random
from statistics import fmean, median
from typing import NamedTuple

from compliance.submission.runs import Run

DRAWS = 1000
MOST_RUNS = 40  # data/rounds.json: unet3d
NU = 16.0
FLOOR = 0.005
NEAR_CENTER, NEAR_TAU = 1.0, 0.01
FAR, FAR_CENTER, FAR_TAU = 0.3, 1.08, 0.05
FAILS, RUNS = 0.5, 50.0
LEAST_STEP = 1e-9  # of the mean; the rounding of a run's end to a multiple of less is no more exact


class Question(NamedTuple):
    """What is asked.

    `mean`, `stdev` and `least` are the reference's at the batch size (rcp.Point). A score takes `runs` runs, and the
    olympic mean drops `drop` at each end; `drop` may fail. `to_converge` holds the epochs (or samples) of the runs so
    far, None for a failed one. `spoiled` converged runs have a log that breaks a rule. `step` is the distance between
    evaluations; 0: unknown.
    """

    mean: float
    stdev: float
    least: float
    runs: int
    drop: int
    to_converge: tuple[float | None, ...]
    spoiled: int = 0
    step: float = 0.0


class Estimate(NamedTuple):
    """`passes`: the probability that all runs together pass; `scaled`: that they pass with a factor above 1.

    `factor`: the expected factor of the score if they pass; 1.0 if no draw passes. `low` and `high` bound the olympic
    mean of all runs with 90 % probability; None if more runs fail than may. `most`: the probability to pass if the next
    run is as slow as the slowest of twenty. `lost`: the probability that more runs fail than may.
    """

    passes: float
    scaled: float
    factor: float
    low: float | None
    high: float | None
    most: float
    lost: float = 0.0


def estimate(question: Question, draws: int = DRAWS, look_ahead: bool = True) -> Estimate:
    """Returns the estimate for a folder; `look_ahead` False leaves `most` at `passes`."""
    remaining = question.runs - len(question.to_converge)
    means = [_olympic(question, future) for future in _futures(question, remaining, draws)]
    finite = sorted(mean for mean in means if mean < math.inf)
    passing = [mean for mean in finite if mean >= question.least]
    passes = len(passing) / len(means)
    factors = [max(1.0, question.mean / mean) for mean in passing]
    scaled = sum(factor > 1 for factor in factors) / len(means)
    low = finite[int(0.05 * len(finite))] if finite else None
    high = finite[int(0.95 * (len(finite) - 1))] if finite else None
    most = passes
    if look_ahead and remaining and 0 < passes < 1:
        nexts = sorted(future[0] for future in _futures(question, remaining, draws) if future[0] < math.inf)
        slow = nexts[int(0.95 * (len(nexts) - 1))]
        most = estimate(
            question._replace(to_converge=(*question.to_converge, slow)), draws, look_ahead=False
        ).passes
    lost = 1 - len(finite) / len(means)
    return Estimate(passes, scaled, fmean(factors) if factors else 1.0, low, high, most, lost)


def step_of(runs: Sequence[Run]) -> float:
    """Returns how far apart the evaluations of the logs are, in epochs or samples; 0.0 if they do not say.

    A distance below `LEAST_STEP` of the evaluations' mean place is none.
    """
    distances, everywhere = [], []
    for run in runs:
        places = sorted({result.at for result in run.results if result.at is not None})
        distances += [after - before for before, after in pairwise(places)]
        everywhere += places
    step = median(distances) if distances else 0.0
    return step if distances and step >= LEAST_STEP * fmean(everywhere) else 0.0


def _olympic(question: Question, future: Sequence[float]) -> float:
    """Returns the olympic mean of known and drawn runs; infinite if more fail than may."""
    values = sorted([*(math.inf if one is None else one for one in question.to_converge), *future])
    may_fail = question.drop - question.spoiled
    if may_fail < 0 or len(values) <= may_fail or values[len(values) - 1 - may_fail] == math.inf:
        return math.inf
    middle = values[question.drop : len(values) - question.drop]
    return sum(middle) / len(middle) if middle else math.inf


def _futures(question: Question, remaining: int, draws: int) -> list[list[float]]:
    """Returns `draws` draws of the `remaining` runs that are not in yet; infinite for one that fails."""
    if remaining <= 0:
        return [[]]
    places = [one for one in question.to_converge if one is not None]
    fails = (FAILS + len(question.to_converge) - len(places)) / (RUNS + len(question.to_converge))
    spread = max(question.stdev, FLOOR * question.mean)
    center = fmean(places) if places else 0.0
    squares = sum((one - center) ** 2 for one in places)
    degrees = NU + max(0, len(places) - 1)
    scale = math.sqrt((NU * spread**2 + squares) / 2)
    anchor, step = (places[0] if places else 0.0), question.step
    futures = []
    for chi, level, pick, normals, uniforms in _noise(degrees, draws):
        sigma = scale / chi
        mu = _mean_of_runs(question.mean, center, len(places), sigma, level, pick)
        runs = [max(mu + sigma * normal, 0.0) for normal in normals[:remaining]]
        if step > LEAST_STEP * question.mean:
            runs = [anchor + round((one - anchor) / step) * step for one in runs]
        if fails > min(uniforms[:remaining]):
            runs = [math.inf if chance < fails else one for one, chance in zip(runs, uniforms)]
        futures.append(runs)
    return futures


def _mean_of_runs(
    reference: float, center: float, count: int, sigma: float, level: float, pick: float
) -> float:
    """Draws mu from its posterior, given sigma and the mean `center` of `count` runs.

    `level` is a normal variate, `pick` a uniform one that chooses between the two parts of the prior.
    """
    near, far = (NEAR_TAU * reference) ** 2, (FAR_TAU * reference) ** 2
    if count:
        noise = sigma**2 / count
        close = (1 - FAR) * _density(center - NEAR_CENTER * reference, noise + near)
        total = close + FAR * _density(center - FAR_CENTER * reference, noise + far)
        # Far from both parts, floating point has 0 for each: then the wide part is the likelier one.
        is_near = pick * total < close
    else:
        is_near = pick < 1 - FAR
    ratio, variance = (NEAR_CENTER, near) if is_near else (FAR_CENTER, far)
    weight = count / sigma**2
    precision = weight + 1 / variance
    return (weight * center + ratio * reference / variance) / precision + level / math.sqrt(precision)


def _density(distance: float, variance: float) -> float:
    """Returns the density of a normal distribution at a distance from its mean, without the factor 1 / sqrt(2 pi)."""
    return math.exp(-(distance**2) / (2 * variance)) / math.sqrt(variance)


@cache
def _noise(degrees: float, draws: int) -> list[tuple[float, float, float, list[float], list[float]]]:
    """Returns the random numbers of each draw.

    They are the root of a gamma variate (for sigma), a normal and a uniform variate (for mu), and normal and uniform
    ones for as many runs as any benchmark needs.
    """
    random = Random(1)
    return [(math.sqrt(random.gammavariate(degrees / 2, 1.0)), *row) for row in _common(draws)]


@cache
def _common(draws: int) -> list[tuple[float, float, list[float], list[float]]]:
    """Returns what every number of degrees shares; most of the time goes into it."""
    random, runs = Random(0), range(MOST_RUNS)
    normal, uniform = partial(random.gauss, 0, 1), random.random
    return [(normal(), uniform(), [normal() for _ in runs], [uniform() for _ in runs]) for _ in range(draws)]
