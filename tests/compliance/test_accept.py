"""Tests what `accept` computes: prediction, both prunings, signs of selection, scores of its benchmark."""

import itertools
import math
import random

import pytest

from compliance.accept import hull, predict, selection
from compliance.accept.predict import Question
from compliance.submission import rcp
from compliance.submission.facts import Facts
from lab.bench import accept_calibration

ROUND = "5.0.0"
# The reference of llama2_70b_lora at batch size 8.
POINT, _ = rcp.find("llama2_70b_lora", ROUND, 8, rcp.pruned("llama2_70b_lora", ROUND))


# ------------------------------------------------------------------------------------------------ both prunings


def naive_hull(points):
    """The points that no line between two others passes below."""
    return [
        point
        for point in points
        if not any(
            low.batch < point.batch < high.batch
            and point.mean
            > low.mean + (high.mean - low.mean) * (point.batch - low.batch) / (high.batch - low.batch)
            for low, high in itertools.combinations(points, 2)
        )
    ]


def test_the_hull_is_what_the_written_rule_says():
    draw = random.Random(0)
    for _ in range(200):
        batches = sorted(draw.sample(range(1, 100), draw.randint(1, 9)))
        points = [rcp.Point(batch, draw.uniform(1, 2), 0.1, 1.0) for batch in batches]
        assert list(hull.lower_hull(points)) == naive_hull(points)


def test_the_prunings_differ_in_24_of_90_tables():
    tables = [(name, ruleset) for name, entry in rcp.reference().items() for ruleset in entry["rounds"]]
    tables = [table for table in tables if rcp.points(*table)]
    different = [table for table in tables if hull.pruned_by_rule_alone(*table)]
    assert (len(different), len(tables)) == (24, 90)


@pytest.mark.parametrize(
    ("benchmark", "ruleset", "batch", "stock", "rule"),
    [
        ("llama2_70b_lora", "4.0.0", 16, 3733, 3478),
        ("llama31_405b", "5.0.0", 2304, 276_925.5, 317_444.4),
        ("bert", "2.0.0", 3072, 2_643_732, 2_594_782),
    ],
)
def test_three_tables_with_the_least_mean_by_both(benchmark, ruleset, batch, stock, rule):
    extra = [point.batch for point in hull.pruned_by_rule_alone(benchmark, ruleset)]
    assert batch in extra
    for kept, least in ((rcp.pruned(benchmark, ruleset), stock), (hull.written(benchmark, ruleset), rule)):
        point, _ = rcp.find(benchmark, ruleset, batch, kept)
        assert point.least == pytest.approx(least, abs=0.5)


def test_a_result_between_the_prunings_gets_two_factors():
    values = [3900.0] * 10
    judged = rcp.judge("llama2_70b_lora", ROUND, 16, values)
    both = hull.both("llama2_70b_lora", ROUND, judged, values)
    assert both.stock == judged and judged.scaling == pytest.approx(4032 / 3900)
    assert both.rule.verdict == rcp.PASS and both.rule.scaling == 1.0
    assert f"factor {judged.scaling:.4f}" in both.note and "factor 1.0000" in both.note
    same = rcp.judge("llama2_70b_lora", ROUND, 8, [3000.0] * 10)
    assert hull.both("llama2_70b_lora", ROUND, same, [3000.0] * 10).note == ""


# ------------------------------------------------------------------------------------------------ prediction


def asked(*known, mean=100.0, stdev=5.0, least=97.0, runs=10, **more):
    return Question(mean, stdev, least, runs, 1, known, **more)


def weighted(question, draws=15_000):
    """The model's probability in its naive form: draws from the prior, weighted by the known runs' likelihood."""
    draw, total, passed = random.Random(2), 0.0, 0.0
    known = list(question.known)
    fails = predict.FAILS / (predict.RUNS + len(known))
    for _ in range(draws):
        sigma = question.stdev * math.sqrt(predict.NU / 2 / draw.gammavariate(predict.NU / 2, 1))
        near, far = (predict.NEAR_CENTRE, predict.NEAR_TAU), (predict.FAR_CENTRE, predict.FAR_TAU)
        mu = question.mean * draw.gauss(*(far if draw.random() < predict.FAR else near))
        weight = math.prod(math.exp(-(((one - mu) / sigma) ** 2) / 2) / sigma for one in known)
        future = [draw.gauss(mu, sigma) for _ in range(question.runs - len(known))]
        future = [math.inf if draw.random() < fails else one for one in future]
        values = sorted([*known, *future])[1:-1]
        total += weight
        passed += weight * (values[-1] < math.inf and sum(values) / len(values) >= question.least)
    return passed / total


@pytest.mark.parametrize("known", [(98.0,), (96.0, 99.0, 95.0), (93.0, 97.0, 96.0, 95.0, 99.0, 97.0)])
def test_the_probability_is_the_models(known):
    question = asked(*known)
    assert predict.predict(question).passes == pytest.approx(weighted(question), abs=0.06)


def test_more_samples_make_it_more_probable_and_the_factor_smaller():
    found = [predict.predict(asked(level, level + 4, level - 4)) for level in (90, 94, 97, 100, 106)]
    chances = [one.passes for one in found]
    assert chances == sorted(chances) and chances[0] < 0.3 and chances[-1] > 0.97
    assert found[1].factor > found[-1].factor >= 1 and found[0].low < found[0].high
    assert predict.predict(asked(100.0)) == predict.predict(asked(100.0))


def test_all_runs_leave_no_doubt():
    assert predict.predict(asked(*[98.0] * 10))[:3] == (1.0, 1.0, pytest.approx(100 / 98))
    assert predict.predict(asked(*[96.0] * 10)).passes == 0.0
    assert predict.predict(asked(*[120.0] * 10))[:3] == (1.0, 0.0, 1.0)


def test_failed_runs_count():
    assert predict.predict(asked(100.0, None)).passes < predict.predict(asked(100.0, 100.0)).passes - 0.05
    assert predict.predict(asked(100.0, None, None)).passes == 0.0
    assert predict.predict(asked(100.0, None, 100.0, spoiled=1)).passes == 0.0


def test_a_drawn_run_ends_at_an_evaluation():
    futures = predict._futures(asked(100.0, step=8.0), 9, 50)
    assert {one % 8 for future in futures for one in future if one < math.inf} == {100 % 8}


# ---------------------------------------------------------------------------------------- signs of selection


def runs(count=8, minutes=10.0, pause=1.0, values=None, seeds=None, numbers=None, curves=None):
    """Facts of runs that follow each other; each argument but the first three has an entry for each run."""
    draw, clock, found = random.Random(1), 0.0, []
    for index in range(count):
        facts = Facts(f"/x/result_{index if numbers is None else numbers[index]}.txt")
        length = minutes[index] if isinstance(minutes, list) else minutes + draw.random()
        facts.started, facts.stopped = clock, clock + length * 60_000
        clock = facts.stopped + (pause[index] if isinstance(pause, list) else pause) * 60_000
        facts.to_converge = POINT.mean + POINT.stdev * draw.gauss(0.3, 1) if values is None else values[index]
        facts.seeds = [("a.py", "1", draw.randint(0, 10**9) if seeds is None else seeds[index])]
        curve = [draw.random() for _ in range(4)] if curves is None else curves[index]
        facts.evaluations.extend(enumerate(map(str, curve)))
        found.append(facts)
    return found


def kinds(facts):
    return {sign.kind for sign in selection.signs(facts, POINT, 1)}


def test_ordinary_runs_show_no_sign():
    assert kinds(runs()) == set() and selection.could(runs(), POINT) == {*selection.KINDS} - {"overlap"}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("number-gap", {"numbers": [0, 1, 2, 4, 5, 6, 7, 9]}),
        ("number-gap", {"numbers": [3, 4, 5, 6, 7, 8, 9, 10]}),
        ("number-order", {"numbers": [1, 0, 2, 3, 4, 5, 6, 7]}),
        ("result-order", {"minutes": [10.0 + index for index in range(8)]}),
        ("seed-gap", {"seeds": [1, 2, 3, 5, 6, 7, 9, 10]}),
        ("seed-order", {"seeds": [2, 1, 3, 4, 5, 6, 8, 7]}),
        ("time-gap", {"pause": [1.0, 1.0, 30.0, 1.0, 1.0, 1.0, 1.0, 1.0]}),
        ("small-spread", {"values": [POINT.mean + index for index in range(8)]}),
        ("fast", {"values": [POINT.least + (40 if index % 2 else -30) * 5 for index in range(8)]}),
        (
            "same-curve",
            {"curves": [[0.1, 0.2, 0.3 if index in (2, 5) else 0.3 + index] for index in range(8)]},
        ),
    ],
)
def test_a_sign_is_seen_alone(kind, changes):
    found = list(selection.signs(runs(**changes), POINT, 1))
    assert [sign.kind for sign in found] == [kind]
    assert selection.KINDS[kind] in found[0].line and "published folders show this" in found[0].line


def test_a_huge_number_in_a_name_takes_no_memory():
    (sign,) = (one for one in selection.signs(runs(numbers=[*range(7), 999_999_999]), POINT, 1))
    assert sign.seen == "7, 8, 9, 10, 11, 12, 13, 14, ... missing up to 999999999"


def test_runs_of_a_system_that_overlap():
    first, second = runs(3), runs(3)
    (sign,) = selection.overlaps([first, second])
    assert sign.kind == "overlap" and sign.seen.startswith("3 times")
    for one in second:
        one.started, one.stopped = one.started + 1e9, one.stopped + 1e9
    assert list(selection.overlaps([first, second])) == []


@pytest.mark.parametrize(
    ("degrees", "point"), [(1, 0.00015709), (4, 0.29711), (9, 2.0879), (29, 14.2565), (39, 21.4262)]
)
def test_the_points_of_chi_squared_are_those_of_tables(degrees, point):
    """The points are scipy.stats.chi2.ppf(0.01, degrees)."""
    assert selection.chi_squared_low(degrees) == pytest.approx(point, rel=1e-4)


# --------------------------------------------------------------------------------------------- its benchmark


def test_bins_and_brier_scores_are_those_of_the_cases():
    draw = random.Random(3)
    case = accept_calibration.Case(ROUND, asked(100.0), True, 1.0, True, False)
    asks = [case._replace(passed=draw.random() < 0.7, so_far=draw.random() < 0.5) for _ in range(300)]
    made = [predict.Prediction(draw.random(), 0.0, 1.0, None, None, 0.0) for _ in asks]
    found = accept_calibration.calibration(asks, made, accept_calibration.EVENTS["passes"])
    share = sum(one.passed for one in asks) / 300
    assert found["brier"] == pytest.approx(
        sum((said.passes - one.passed) ** 2 for said, one in zip(made, asks)) / 300, abs=1e-5
    )
    assert found["brier_base_rate"] == pytest.approx(
        sum((share - one.passed) ** 2 for one in asks) / 300, abs=1e-5
    )
    assert found["brier_runs_so_far"] == pytest.approx(
        sum(one.so_far != one.passed for one in asks) / 300, abs=1e-5
    )
    for row in found["bins"]:
        inside = [one.passed for said, one in zip(made, asks) if row["from"] <= said.passes < row["to"]]
        assert row["cases"] == len(inside) and row["observed"] == pytest.approx(
            sum(inside) / len(inside), abs=1e-4
        )
