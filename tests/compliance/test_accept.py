"""Tests what `accept` computes: the estimate."""

import math
import random

import pytest

from compliance.acceptance import probability
from compliance.acceptance.probability import Question

ROUND = "5.0.0"


def case(*to_converge, mean=100.0, stdev=5.0, least=97.0, runs=10, **more):
    return Question(mean, stdev, least, runs, 1, to_converge, **more)


def weighted(question):
    """The model's probability in its naive form: draws from the prior, weighted by the known runs' likelihood."""
    draw, total, passing = random.Random(2), 0.0, 0.0
    to_converge = list(question.to_converge)
    fails = probability.FAILS / (probability.RUNS + len(to_converge))
    for _ in range(15_000):
        sigma = question.stdev * math.sqrt(probability.NU / 2 / draw.gammavariate(probability.NU / 2, 1))
        near, far = (
            (probability.NEAR_CENTER, probability.NEAR_TAU),
            (probability.FAR_CENTER, probability.FAR_TAU),
        )
        mu = question.mean * draw.gauss(*(far if draw.random() < probability.FAR else near))
        weight = math.prod(math.exp(-(((one - mu) / sigma) ** 2) / 2) / sigma for one in to_converge)
        future = [draw.gauss(mu, sigma) for _ in range(question.runs - len(to_converge))]
        future = [math.inf if draw.random() < fails else one for one in future]
        values = sorted([*to_converge, *future])[1:-1]
        total += weight
        passing += weight * (values[-1] < math.inf and sum(values) / len(values) >= question.least)
    return passing / total


@pytest.mark.parametrize("to_converge", [(98.0,), (96.0, 99.0, 95.0), (93.0, 97.0, 96.0, 95.0, 99.0, 97.0)])
def test_the_probability_is_the_models(to_converge):
    question = case(*to_converge)
    assert probability.estimate(question).passes == pytest.approx(weighted(question), abs=0.06)


def test_more_samples_make_it_more_probable_and_the_factor_smaller():
    estimates = [probability.estimate(case(level, level + 4, level - 4)) for level in (90, 94, 97, 100, 106)]
    chances = [one.passes for one in estimates]
    assert chances == sorted(chances) and chances[0] < 0.3 and chances[-1] > 0.97
    assert estimates[1].factor > estimates[-1].factor >= 1 and estimates[0].low < estimates[0].high
    assert probability.estimate(case(100.0)) == probability.estimate(case(100.0))


def test_all_runs_leave_no_doubt():
    assert probability.estimate(case(*[98.0] * 10))[:3] == (1.0, 1.0, pytest.approx(100 / 98))
    assert probability.estimate(case(*[96.0] * 10)).passes == 0.0
    assert probability.estimate(case(*[120.0] * 10))[:3] == (1.0, 0.0, 1.0)


def test_failed_runs_count():
    assert (
        probability.estimate(case(100.0, None)).passes
        < probability.estimate(case(100.0, 100.0)).passes - 0.05
    )
    assert probability.estimate(case(100.0, None, None)).passes == 0.0
    assert probability.estimate(case(100.0, None, 100.0, spoiled=1)).passes == 0.0


def test_a_drawn_run_ends_at_an_evaluation():
    futures = probability._futures(case(100.0, step=8.0), 9, 50)
    assert {one % 8 for future in futures for one in future if one < math.inf} == {100 % 8}
