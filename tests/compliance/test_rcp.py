"""Tests the reference convergence points against the stock rcp_checker, its tables, and scipy."""

import json
import random
from pathlib import Path

import pytest

from compliance.submission import point_days, rcp, rounds, students_t

rcp_checker = pytest.importorskip("mlperf_logging.rcp_checker.rcp_checker")
STOCK = Path(rcp_checker.__file__).parent
TABLES = [
    (file.stem.removeprefix("rcps_"), file.parent.name.removeprefix("training_"))
    for file in sorted(STOCK.glob("training_*/rcps_*.json"))
]


def stock_checker(benchmark, ruleset):
    runs = rcp_checker.submission_runs["training"]
    runs.setdefault("dlrm", 5)  # absent there, which is a KeyError
    return rcp_checker.RCP_Checker("training", ruleset, benchmark, False)


def stock_judges(checker, benchmark, batch, values):
    """(verdict, scaling) as check_directory composes them from a checker's parts."""
    values = [1e9 if value is None else value for value in values]
    record = checker._find_rcp(batch, "pruned_rcps")
    low, high = (
        find(batch, "pruned_rcps") for find in (checker._find_top_min_rcp, checker._find_bottom_max_rcp)
    )
    smallest = False
    if record is None:
        if high is None:
            return rcp.NO_REFERENCE, 1.0
        if low is None:
            record, smallest = checker._find_min_rcp("pruned_rcps"), True
        else:
            record = checker._create_interp_rcp(batch, low, high)[1]
    passes, scaling = checker._eval_submission_record(dict(record), values, "")
    if passes:
        return rcp.PASS, scaling
    return (rcp.NO_REFERENCE if smallest else rcp.FAIL), scaling


def test_the_tables_are_those_of_the_stock_checker():
    assert set(rcp.reference()) == {benchmark for benchmark, _ in TABLES}
    for benchmark, ruleset in TABLES:
        raw = json.loads((STOCK / f"training_{ruleset}" / f"rcps_{benchmark}.json").read_text())
        theirs = sorted(
            (row["BS"], tuple(row.get("Epochs to converge") or row["samples to converge"]))
            for row in raw.values()
        )
        assert list(rcp.table(benchmark, ruleset)) == theirs, (benchmark, ruleset)
    assert rcp.table("bert", "0.7.0") == rcp.table("../bert", "5.0.0") == ()


@pytest.mark.parametrize(("benchmark", "ruleset"), TABLES)
def test_points_bounds_and_verdicts_equal_the_stock_checkers(benchmark, ruleset):
    checker = stock_checker(benchmark, ruleset)
    theirs = sorted(
        (r["BS"], r["RCP Mean"], r["RCP Stdev"], r["Min Epochs"]) for r in checker.rcp_data.values()
    )
    assert [tuple(point) for point in rcp.points(benchmark, ruleset)] == [
        pytest.approx(row, rel=1e-9) for row in theirs
    ]
    expected = sorted(record["BS"] for record in checker.pruned_rcp_data.values())
    assert [point.batch for point in rcp.pruned(benchmark, ruleset)] == expected

    draw, runs = random.Random(f"{benchmark}{ruleset}"), rounds.required_runs(benchmark, ruleset)
    batches = [point.batch for point in rcp.points(benchmark, ruleset)]
    spread = [*batches, *(draw.randint(1, int(2 * batches[-1])) for _ in range(8))]
    for batch in spread:
        near = min(rcp.points(benchmark, ruleset), key=lambda point: abs(point.batch - batch))
        for _ in range(3):
            level = near.mean * draw.uniform(0.8, 1.1)
            values = [level * draw.uniform(0.97, 1.03) for _ in range(runs)]
            # The stock checker takes 1e9 for a run that did not converge: less than gpt3's samples.
            values[0] = None if draw.random() < 0.3 and benchmark != "gpt3" else values[0]
            ours = rcp.judge(benchmark, ruleset, batch, values)
            assert (ours.verdict, pytest.approx(ours.scaling)) == stock_judges(
                checker, benchmark, batch, values
            ), (batch, values)


def test_students_t_equals_scipy():
    from scipy.stats import t

    for df in (*range(1, 120), 999):
        assert students_t.cdf(-1.3, df) == pytest.approx(t.cdf(-1.3, df), abs=1e-13)
        assert students_t.quantile(0.95, df) == pytest.approx(t.ppf(0.95, df), rel=1e-11)


def test_what_cannot_be_judged_says_why():
    twenty = [20.0] * 10
    assert rcp.judge("bert", "1.0.0", None, twenty).reason == "the logs give no global_batch_size"
    assert "2 runs did not converge" in rcp.judge("bert", "5.0.0", 448, [None, None, *[3e6] * 8]).reason
    assert rcp.judge("bert", "5.0.0", 448, [3e6, 3e6]).verdict == rcp.UNDECIDED
    assert rcp.judge("bert", "5.0.0", 10**9, [3e6] * 10).verdict == rcp.NO_REFERENCE
    assert rcp.judge("rnnt", "5.0.0", 448, [3e6] * 10).verdict == rcp.NO_REFERENCE
    assert not rcp.applies("0.7.0", "bert", "closed")
    assert not rcp.applies("5.0.0", "bert", "open")
    assert not rcp.applies("1.0.0", "minigo", "closed")
    assert rcp.applies("5.0.0", "bert", "closed")


def test_the_examples_of_the_rules(monkeypatch):
    """training_rules.adoc, "RCP Examples"; its deviations leave out the extremes, the checker's do not."""
    tables = (
        (128, (16, 14, 16, 17, 16, 16, 15, 16, 15, 16)),
        (256, (20, 21, 21, 20, 22, 22, 21, 21, 20, 20)),
    )
    monkeypatch.setattr(rcp, "table", lambda *_: tables)
    rcp.points.cache_clear()
    rcp.pruned.cache_clear()

    def verdict(batch, *values):
        return rcp.judge("resnet", "example", batch, values).verdict

    assert [point.mean for point in rcp.points("resnet", "example")] == [15.75, 20.75]
    assert verdict(128, 15, 15, 15, 16, 16) == rcp.PASS
    assert verdict(256, 19, 19, 19, 20, 21) == rcp.FAIL
    assert verdict(192, 17, 18, 18, 18, 20) == rcp.PASS
    assert verdict(512, 30, 30, 30, 30, 30) == rcp.NO_REFERENCE
    assert verdict(64, 16, 16, 16, 16, 16) == rcp.PASS
    assert verdict(64, 10, 10, 10, 10, 10) == rcp.NO_REFERENCE


def test_the_tables_of_rounds_are_those_of_the_stock_package():
    meta = pytest.importorskip("mlperf_logging.benchmark_meta")
    allowed = {
        f"{name}.0": sorted(set(names)) for name, names in meta._ALL_ALLOWED_BENCHMARKS["training"].items()
    }
    assert {name: sorted(rounds.benchmarks(name)) for name in rounds._facts()["benchmarks"]} == allowed
    for benchmark, runs in meta.get_result_file_counts("training").items():
        assert rounds.required_runs(benchmark, "6.1.0") == runs


def test_every_point_of_a_round_has_a_day():
    """The package has points of dlrmv4 that the repository's main branch does not have (yet)."""
    unknown = {
        benchmark
        for benchmark, content in rcp.reference().items()
        for ruleset in content["rounds"]
        for batch, _ in rcp.table(benchmark, ruleset)
        if point_days.since(benchmark, ruleset, batch) is None
    }
    assert unknown <= {"dlrmv4"}
