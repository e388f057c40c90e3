"""Tests timetotrain plan: batches, hyperparameters, runs, minutes and dates against the rules and hand-made cases."""

import json
import math
from datetime import date, datetime

import numpy as np
import pytest

from compliance.log import rules
from compliance.submission import rcp
from timetotrain.cli import main
from timetotrain.forecast import measured, plan_round, plan_time
from timetotrain.forecast.plan_round import Batch

LIVE = (
    "llama31_8b",
    "llama2_70b_lora",
    "flux1",
    "gpt_oss_20b",
    "deepseekv3_671b",
    "qwen35_397b_grpo",
    "dlrmv4",
)


def planned(capsys, *words, status=0):
    assert main(["plan", *words, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_the_test_house_s_case(capsys):
    """August 2025: no points below 32, so batches of 8, 16 and 24 cannot be submitted; ten runs count."""
    words = ("llama31_8b", "--round=5.1", "--system=2xH100-SXM5", "--as_of=2025-08-31", "--batch=8,16,24")
    plan = planned(capsys, *words, "--throughput=1.5")
    rows = {row["size"]: row for row in plan["batches"]}
    assert [size for size in rows if not rows[size]["admitted"]] == [8, 16, 24]
    assert (
        rows[32]["fits"] and rows[32]["since"] == "2025-08-11" and rows[32]["mean"] == pytest.approx(215_040)
    )
    # 215,040 samples at 1.5 a second, and 18 evaluations of 1,024 samples, forward alone.
    hours = (215_040 + 18 * 1024 / 3) / 1.5 / 3600
    assert rows[32]["time"]["minutes"] / 60 == pytest.approx(hours) and 39 < hours < 42
    assert plan["runs"] == 10 and rows[32]["time"]["hours in turn"] == pytest.approx(10 * hours)
    assert main(["plan", *words]) == 0
    out = capsys.readouterr().out
    for text in (
        "8  cannot be submitted: below all points",
        "24  cannot be submitted",
        "10 runs that follow each other",
    ):
        assert text in out, text
    today = planned(capsys, *words[:3], "--batch=24")
    assert {row["size"]: row["kind"] for row in today["batches"]}[24] == "between"


@pytest.mark.parametrize("benchmark", LIVE)
@pytest.mark.parametrize("system", ["h200-8", "64xB200", "2xH100-SXM5", "ND MI300X v5"])
def test_live_benchmarks_have_a_plan_on_any_machine(benchmark, system, capsys):
    status = main(["plan", benchmark, f"--system={system}"])
    out = capsys.readouterr().out
    assert status in (0, 1) and (status == 1) == ("fits: " not in out and "memory: not known" not in out)
    for title in ("1. Batch sizes", "3. Hyperparameters that you choose", "4. Runs", "6. The log", "7. Data"):
        assert title in out


@pytest.mark.parametrize("ruleset", rules.RULESETS)
def test_every_benchmark_of_every_round_has_its_points_and_hyperparameters(ruleset):
    for benchmark in rules.benchmarks(ruleset, "closed"):
        rows = plan_round.batches(benchmark, ruleset, None, [])
        points = {point.batch: point for point in rcp.pruned(benchmark, ruleset)}
        assert [row.size for row in rows if row.kind == plan_round.POINT] == list(points)
        for row in rows:
            if row.kind == plan_round.POINT:
                point = points[row.size]
                assert (row.mean, row.stdev, row.least) == (point.mean, point.stdev, point.least)
        fixed, free = plan_round.hyperparameters(benchmark, ruleset, [row.size for row in rows])
        assert not {*fixed} & {*free} and all(
            len(values) == max(len(rows), 1) or not rows for values in fixed.values()
        )


def test_formulas_are_evaluated_and_free_ones_have_their_range():
    fixed, _ = plan_round.hyperparameters("deepseekv3_671b", "6.1.0", [15360, 16384])
    rates = [float(value) for value in fixed["opt_base_learning_rate"]]
    assert rates == pytest.approx([2.4e-5 * math.sqrt(15360 / 16384), 2.4e-5])
    assert fixed["opt_learning_rate_decay_steps"] == ["11,996"] * 2
    fixed, _ = plan_round.hyperparameters("dlrmv4", "6.1.0", [8192])
    assert fixed["opt_base_learning_rate"] == [">= 5e-07 and <= 1.5e-06"]
    _, free = plan_round.hyperparameters("llama31_8b", "6.1.0", [16, 32])
    assert free["opt_base_learning_rate"][1].startswith("v5.1: 0.0004 to 0.0008 at 16; ")
    assert plan_round.used("llama31_8b", "5.1.0", "opt_base_learning_rate") == ""


def test_evaluations_and_their_number():
    (row,) = (one for one in plan_round.batches("llama2_70b_lora", "6.1.0", None, []) if one.size == 8)
    assert (row.first, row.every) == (1536.0, 384.0)
    assert [row.evaluations(at) for at in (1536, 1537, 1920, 3072)] == [1, 2, 2, 5]
    assert Batch(8, plan_round.NO, "epochs").evaluations(3.0) == 1


def test_a_benchmark_that_changed_its_task_under_its_name(capsys):
    """ssd of 3.0 is RetinaNet: its memory and earlier scores are not SSD's. Without points, any batch is taken."""
    plan = planned(capsys, "ssd", "--round=3.0", "--system=8xA100-SXM4-80GB")
    assert "0.038 billion parameters" in plan["batches"][0]["memory"]
    minutes = [row["time"]["minutes"] for row in plan["batches"] if row["time"]]
    assert minutes == sorted(minutes) and minutes[0] < minutes[-1]
    assert main(["plan", "minigo", "--round=1.0", "--system=8xA100-SXM4-80GB"]) == 0
    assert "  any batch: " in capsys.readouterr().out


def test_what_is_new_in_the_log_and_its_data(capsys):
    plan = planned(capsys, "llama31_8b", "--system=h200-8", "--since=5.1")
    changes = {change[0]: change[2] for change in plan["changes"]}
    assert "micro_batch_size" in changes and "exactly one" in changes["micro_batch_size"]
    assert (plan["data"]["fetch"], plan["data"]["keep"]) == (115, 85) and "ODC-BY" in plan["data"]["license"]
    assert planned(capsys, "llama31_8b", "--system=h200-8", "--round=5.1")["since"] == "5.0.0"


@pytest.mark.parametrize(
    "now, words, start",
    [
        # 100 hours are expected, 240 at most; the day ends 240 hours and half a minute later.
        (datetime(2026, 12, 1, 0, 0, 0), "in time", "2026-12-01 00:00"),
        (datetime(2026, 11, 29, 20, 30), "in time", "2026-12-01 00:00"),
        (datetime(2026, 12, 1, 0, 2), "perhaps", "already past"),
        (datetime(2026, 12, 6, 19, 58), "perhaps", "already past"),
        (datetime(2026, 12, 6, 20, 2), "too late", "already past"),
        (datetime(2027, 12, 1), "too late", "already past"),
    ],
)
def test_a_deadline_is_the_end_of_its_day_and_hours_that_are_gone_do_not_count(now, words, start):
    due = plan_time.deadline(date(2026, 12, 10), 100.0, 239.99, now)
    assert (due["started now"], due["latest start"]) == (words, start)
    assert due["deadline"] == "2026-12-10 24:00"
    assert (
        plan_time.deadline(date(2026, 12, 10), 1.0, 1e15, datetime(2026, 12, 1))["started now"] == "perhaps"
    )


def test_only_the_runs_spread_averages_out():
    """An error that all runs share stays: of a forecast by scores nobody knows which part is one."""
    scores = plan_time.Minutes(100.0, 80.0, 125.0, "scores")
    assert scores.most(10) == 1250.0 and scores.slowest(10) == (80.0, 125.0)
    speed = plan_time.Minutes(100.0, 60.0, 168.0, "own speed", spread=40.0, error=0.2)
    assert speed.most(1) == pytest.approx(168.0) and speed.most(16) == pytest.approx(16 * 110 * 1.2)
    assert speed.slowest(1) == pytest.approx((60 * 0.8, 140 * 1.2), rel=1e-3)
    draws = np.random.default_rng(0).normal(100.0, 40.0 / 1.645, (100_000, 10)).max(axis=1)
    low, high = np.percentile(draws, (5, 95))
    assert speed.slowest(10) == pytest.approx((low * 0.8, high * 1.2), rel=0.01)


def test_own_speed_s_hours_of_all_runs_and_a_deadline(capsys):
    words = ("llama31_8b", "--system=h200-8", "--throughput=30")
    plan = planned(capsys, *words, "--deadline=2001-01-01")
    row = next(row for row in plan["batches"] if row["time"])
    assert row["deadline"]["latest start"] == "already past" and row["deadline"]["started now"] == "too late"
    low, high = row["time"]["hours in parallel"]
    assert row["time"]["minutes"] / 60 < high and low < high
    assert main(["plan", *words, "--deadline=2001-01-01"]) == 0
    out = capsys.readouterr().out
    assert "too late if the first starts now; latest start already past" in out
    assert "a missed run is the slowest" in out and "bf16" not in out


def test_before_any_point_no_batch_is_admitted(capsys):
    words = ["llama31_8b", "--round=5.1", "--system=8xH100-SXM5", "--as_of=2020-01-01"]
    for more, size in ([], 0), (["--batch=32"], 32):
        (row,) = planned(capsys, *words, *more, status=1)["batches"]
        assert (row["size"], row["admitted"], row["kind"]) == (
            size,
            False,
            "no point was public on 2020-01-01",
        )
        assert main(["plan", *words, *more]) == 1
        out = capsys.readouterr().out
        assert "no point was public on 2020-01-01" in out and "has no reference points" not in out


def test_points_that_count_epochs_leave_out_the_minutes_alone(capsys):
    words = ["rgat" if "rgat" in rules.benchmarks("4.0.0", "closed") else "gnn", "--round=4.0"]
    words += ["--system=8xH100-SXM5", "--throughput=1000"]
    assert main(["plan", *words]) == 0
    out = capsys.readouterr().out
    assert "its points count epochs; give a --log with train_samples" in out and "7. Data" in out


def write(path, steps, seconds=2.0, batch=64, evaluation=10.0, blocks=3, step_times=False):
    """A log of blocks of `steps` steps with an evaluation after each; returns its path."""
    clock, lines = 1000.0, []

    def add(key, value=None, **metadata):
        content = {"namespace": "", "time_ms": round(1e3 * clock), "event_type": "POINT_IN_TIME", "key": key}
        lines.append(":::MLLOG " + json.dumps(content | {"value": value, "metadata": metadata}))

    add("submission_benchmark", "llama31_8b")
    add("global_batch_size", batch)
    add("run_start")
    clock += 5
    for block in range(1, blocks + 1):
        add("block_start", samples_count=(block - 1) * steps * batch)
        for _ in range(steps):
            clock += seconds
            if step_times:
                add("tracked_stats", {"train_step_time": seconds})
        add("block_stop")
        add("eval_start", samples_count=block * steps * batch)
        clock += evaluation
        add("eval_accuracy", 4.0, samples_count=block * steps * batch)
        add("eval_stop", samples_count=block * steps * batch)
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("step_times", [False, True])
def test_a_log_s_speed_gives_the_minutes_of_a_whole_run(tmp_path, capsys, step_times):
    path = write(tmp_path / "a.txt", 10, step_times=step_times)
    speed = measured.of_log(path)
    assert (speed.rate, speed.evaluation, speed.start) == pytest.approx((32.0, 10.0, 5.0))
    assert speed.minutes(6400, 4) == pytest.approx((5 + 200 + 40) / 60)
    plan = planned(capsys, "llama31_8b", "--system=h200-8", f"--log={path}")
    row = next(row for row in plan["batches"] if row["size"] == 64)
    assert row["time"]["minutes"] == pytest.approx((5 + row["mean"] / 32 + 10 * row["evaluations"]) / 60)
    assert row["time"]["interval"][0] < row["time"]["minutes"] < row["time"]["interval"][1]


def test_a_log_of_another_benchmark_is_refused_and_its_batch_is_named(tmp_path, capsys):
    path = write(tmp_path / "a.txt", 10)
    assert main(["plan", "flux1", "--system=h200-8", f"--log={path}"]) == 2
    assert "a.txt: a log of llama31_8b, not of flux1" in capsys.readouterr().err
    words = ["plan", "llama31_8b", "--system=h200-8", f"--log={path}"]
    assert main([*words, "--throughput=3"]) == 2
    assert "--log and --throughput: give one of them" in capsys.readouterr().err
    assert main(words) == 0 and "assumed: --log: the speed at batch 64" in capsys.readouterr().out


def test_a_log_of_few_steps_is_refused(tmp_path, capsys):
    path = write(tmp_path / "a.txt", 5)
    assert main(["plan", "llama31_8b", "--system=h200-8", f"--log={path}"]) == 2
    assert "15 steps with times; a speed needs at least 20" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, text",
    [
        (["nonsense", "--system=h200-8"], "nonsense: round 6.1 has llama31_8b"),
        (["llama31_405b", "--system=h200-8"], "rounds with it: 5.0, 5.1, 6.0"),
        (["llama31_8b", "--system=h200-8", "--round=9"], "--round=9: no such round"),
        (["llama31_8b", "--system=h200-8", "--since=6.1"], "--since=6.1: not an earlier round"),
        (["llama31_8b", "--system=h200-8", "--as_of=August"], "--as_of=August: write a date"),
        (["llama31_8b", "--system=h200-8", "--deadline=soon"], "--deadline=soon: write a date"),
        (["bert", "--round=1.0", "--system=8xL4", "--deadline=soon"], "--deadline=soon: write a date"),
        (["bert", "--round=1.0", "--system=8xL4", "--price=-1"], "--price=-1: must be a positive number"),
        (["llama31_8b", "--system=h200-8", "--batch=many"], "--batch=many: write global batch sizes"),
        (["llama31_8b", "--system=h200-8", "--throughput=0"], "--throughput=0: must be a positive number"),
        (["llama31_8b", "--system=h200-8", "--log=/no/such"], "/no/such"),
        (["llama31_8b", "--system=nowhere"], "neither a system nor COUNTxACCELERATOR"),
    ],
)
def test_bad_input_is_one_line_and_status_2(words, text, capsys):
    assert main(["plan", *words]) == 2
    error = capsys.readouterr().err
    assert text in error and error.count("\n") == 1
