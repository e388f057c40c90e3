"""Tests that a sound log has no advice, and that each kind of alteration is noticed, with its own finding."""

import re

import pytest

from compliance.api import check
from compliance.log import rules, written_rules
from compliance.log.check_log import check_log
from tests.compliance import llama_logs, made_logs


def findings_of(text, tmp_path, ruleset="5.1.0"):
    """{rule: finding} of a log."""
    findings = check_log(str(made_logs.write(tmp_path, text)), ruleset).findings
    return {finding.rule: finding for finding in findings}


def edited(text, key, value=None, at=None, **metadata):
    """A log with another value or other metadata in the records of a key; `at`: only in that one of them."""
    records = made_logs.records_of(text)
    of_key = [record for record in records if record["key"] == key]
    for record in of_key if at is None else [of_key[at]]:
        record["value"] = record["value"] if value is None else value
        record["metadata"] |= metadata
    return made_logs.lines(records)


def without(text, pattern, count=1):
    """A log without the first `count` lines that match."""
    lines = []
    for line in text.splitlines():
        if count and re.search(pattern, line):
            count -= 1
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------------------------- schedules


def places(ruleset, benchmark, batch):
    """The first three places of a benchmark's schedule."""
    row = written_rules.schedule(ruleset, benchmark)
    plan = written_rules._plan(row, row, {"global_batch_size": batch}, [])
    return row, [plan.first + number * plan.every for number in range(3)]


@pytest.mark.parametrize(
    ("ruleset", "benchmark", "batch", "first"),
    [
        ("3.0.0", "resnet", 3264, (4, 8, 12)),
        ("3.1.0", "maskrcnn", 96, (1, 2, 3)),
        ("3.0.0", "rnnt", 1024, (1, 2, 3)),
        ("4.1.0", "ssd", 256, (1, 2, 3)),
        ("5.1.0", "retinanet", 256, (1, 2, 3)),
        ("3.0.0", "unet3d", 32, (875, 893, 911)),  # training_results_v1.0, Google, unet3d
        ("5.0.0", "bert", 768, (150000, 300000, 450000)),
        ("4.0.0", "gpt3", 2688, (55050240, 110100480, 165150720)),  # training_results_v4.0, NVIDIA, gpt3
        ("5.1.0", "dlrm_dcnv2", 55296, (0.049994719, 0.099989437, 0.149984156)),
        ("4.1.0", "gnn", 16384, (0.05, 0.1, 0.15)),
        ("5.1.0", "rgat", 32768, (0.05, 0.1, 0.15)),
        ("5.0.0", "stable_diffusion", 1024, (512000, 1024000, 1536000)),
        ("6.0.0", "llama2_70b_lora", 8, (1536, 1920, 2304)),
        ("5.1.0", "llama2_70b_lora", 64, (4224, 4608, 4992)),  # training_results_v5.1, NVIDIA
        ("5.0.0", "llama31_405b", 1152, (46080, 92160, 138240)),
        ("6.0.0", "llama31_405b", 1152, (276480, 294912, 313344)),
        ("6.0.0", "flux1", 2304, (262656, 525312, 787968)),  # training_results_v5.1, Supermicro
        ("6.0.0", "llama31_8b", 32, (12288, 24576, 36864)),
        ("6.0.0", "gpt_oss_20b", 24, (12288, 24576, 36864)),
        ("6.0.0", "deepseekv3_671b", 16384, (16384, 32768, 49152)),
    ],
)
def test_missing_and_extra_evaluations_are_said_for_every_benchmark_of_the_table(
    ruleset, benchmark, batch, first
):
    row, expected = places(ruleset, benchmark, batch)
    assert expected == pytest.approx(first, rel=1e-6)
    values = {"global_batch_size": batch}
    assert written_rules.off_schedule(row, values, expected) is None
    step = expected[1] - expected[0]
    interval, extra = written_rules.off_schedule(row, values, [*expected, expected[2] + step / 2])
    assert interval.startswith("an evaluation every") and extra.startswith("also at")
    if not row.get("sparse"):
        _, missing = written_rules.off_schedule(row, values, [expected[0], expected[2]])
        assert missing.startswith("none at")


def test_every_benchmark_from_3_0_on_with_a_row_in_the_rules_table_has_a_schedule():
    # Not in the tables: the benchmarks that only 6.1 has, whose frequency the stock checker itself checks.
    without_row = {"dlrmv4", "qwen35_397b_grpo"}
    for ruleset in rules.RULESETS[rules.RULESETS.index("3.0.0") :]:
        for benchmark in rules.benchmarks(ruleset, "closed"):
            if rules.has_rules(ruleset, benchmark) and benchmark not in without_row:
                assert written_rules.schedule(ruleset, benchmark), (ruleset, benchmark)


def test_a_run_that_leaves_evaluations_out_is_advised(tmp_path):
    text = without(llama_logs.log(), r'"eval_\w+".*"samples_count": (1536|1920|2304|2688|3072)', 15)
    finding = findings_of(text, tmp_path)["written.schedule"]
    assert finding.severity == "advice"
    packaged = check([tmp_path / "result_0.txt"], "5.1.0", packaging=True)
    assert "written.schedule" in {one.rule for one in packaged.advice}
    assert finding.expected == "an evaluation every 384 samples, the first at 1,536"
    assert finding.found == "none at 1,536, 1,920, 2,304, 2,688, 3,072"


# --------------------------------------------------------------------------------------------- written values


@pytest.mark.parametrize(
    ("ruleset", "benchmark", "values", "differs"),
    [
        ("6.0.0", "llama31_8b", {"opt_base_learning_rate": 8e-4, "opt_end_learning_rate": 8e-5}, None),
        ("6.0.0", "llama31_8b", {"opt_base_learning_rate": 8e-4, "opt_end_learning_rate": 8e-6}, "8e-05"),
        ("6.0.0", "gpt_oss_20b", {"opt_base_learning_rate": 8e-4, "opt_end_learning_rate": 5e-5}, "4e-05 or"),
        ("6.0.0", "llama31_405b", {"global_batch_size": 1152, "opt_end_learning_rate": 8e-6}, "8e-07"),
        ("6.0.0", "llama31_405b", {"global_batch_size": 2304, "opt_learning_rate_warmup_steps": 4000}, None),
        ("4.0.0", "resnet", {"global_batch_size": 3264, "lars_opt_momentum": 0.95}, "0.9"),
        ("4.0.0", "resnet", {"global_batch_size": 65536, "lars_opt_momentum": 0.95}, None),
    ],
)
def test_the_table_of_hyperparameters(ruleset, benchmark, values, differs):
    differences = list(written_rules.differences(ruleset, benchmark, values))
    if differs is None:
        assert not differences
    else:
        (one,) = differences
        assert one.expected.startswith(differs)


def test_open_logs_are_free(tmp_path):
    text = edited(llama_logs.log(), "submission_division", "open")
    assert "written.value" not in findings_of(edited(text, "lora_alpha", 16), tmp_path)


# --------------------------------------------------------------------------------------------- one log


@pytest.mark.parametrize("values", [(0.95, 0.92), (0.92, 0.95)])
def test_one_evaluation_with_two_results_is_an_error(tmp_path, values):
    """Whichever of them meets the target, and although the second stands behind run_stop with the first one's time."""
    text = edited(llama_logs.log(), "eval_accuracy", values[0], at=5)
    results = [one for one in made_logs.records_of(text) if one["key"] == "eval_accuracy"]
    text += made_logs.lines([results[-1] | {"value": values[1]}])
    finding = findings_of(text, tmp_path)["eval_accuracy.twice"]
    assert finding.severity == "error" and finding.found == str(values[1])
    assert str(values[0]) in finding.expected


def test_a_result_repeated_alike_is_no_contradiction(tmp_path):
    text = llama_logs.log()
    last = next(line for line in reversed(text.splitlines()) if '"eval_accuracy"' in line)
    assert "eval_accuracy.twice" not in findings_of(text + last + "\n", tmp_path)


@pytest.mark.parametrize(
    ("ruleset", "start", "seconds", "twice"),
    [
        ("0.7.0", None, 60, False),
        ("0.7.0", None, 1.5, True),
        ("0.7.0", {}, 60, True),
        ("0.7.0", {"epoch_num": 1}, 60, True),
        ("5.0.0", None, 60, True),
        ("6.0.0", None, 60, True),
    ],
)
def test_two_evaluations_with_one_number_are_told_apart_by_their_times(
    tmp_path, ruleset, start, seconds, twice
):
    """As in 16 logs of bert in training_results_v0.7, without eval_start. `start`: its metadata; None: no such line."""
    records = made_logs.log(ruleset, "closed", "bert" if ruleset == "0.7.0" else "llama2_70b_lora")
    records = [record for record in records if record["key"] not in ("eval_start", "eval_stop")]
    (at,) = (place for place, record in enumerate(records) if record["key"] == "eval_accuracy")
    first = records[at]
    for record in records[at:]:
        record["time_ms"] += 100_000
    worse = {**first, "value": first["value"] * 0.99, "time_ms": first["time_ms"] - int(seconds * 1000)}
    starts = [] if start is None else [{**worse, "key": "eval_start", "value": None, "metadata": start}]
    records[at:at] = [*starts, worse]
    assert ("eval_accuracy.twice" in findings_of(made_logs.lines(records), tmp_path, ruleset)) is twice


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-be"])
def test_a_log_in_utf16_is_said_to_be_one(tmp_path, coding):
    path = tmp_path / "result_0.txt"
    path.write_bytes(llama_logs.log().encode(coding))
    (finding,) = check_log(str(path)).findings
    assert finding.severity == "error" and finding.found == "UTF-16" and "UTF-8" in finding.fix


def test_two_runs_in_one_log_are_one_finding(tmp_path):
    first, second = llama_logs.log(0), llama_logs.log(1)
    broken = "".join(first.splitlines(keepends=True)[:30])  # the job was killed and started again
    results = findings_of(broken + second, tmp_path)
    assert list(results) == ["log.two-runs"]
    finding = results["log.two-runs"]
    assert finding.severity == "error" and list(finding.lines) == [1, 31]
    assert finding.found == "line 1 to 30 (without run_stop); line 31 on (status success)"
    whole = findings_of(first + second, tmp_path)["log.two-runs"]
    assert "status success" in whole.found.partition(";")[0]


def test_ranks_that_log_one_run_are_one_run(tmp_path):
    lines = llama_logs.log().splitlines(keepends=True)
    start = next(place for place, line in enumerate(lines) if '"run_start"' in line)
    twice = "".join([*lines[: start + 1], *lines[: start + 1], *lines[start + 1 :]])
    assert "log.two-runs" not in findings_of(twice, tmp_path)


def test_a_formula_that_fails_shows_its_value_and_inputs(tmp_path):
    """At a global batch size of 1,008 the decay takes 1,362,286 steps."""
    records = made_logs.log("5.1.0", "closed", "llama31_405b")
    steps = "opt_learning_rate_decay_steps"
    changes = {"global_batch_size": 1008, "opt_base_learning_rate": 7e-5, steps: 1200000}
    for record in records:
        record["value"] = changes.get(record["key"], record["value"])
    finding = findings_of(made_logs.lines(records), tmp_path)[f"{steps}.value"]
    assert finding.expected.startswith("1,362,286: value = ")
    assert "global_batch_size is 1,008" in finding.expected and finding.found == "1200000"


def test_a_formula_whose_input_is_absent_says_so(tmp_path):
    records = made_logs.log("5.1.0", "closed", "llama31_405b")
    records = [record for record in records if record["key"] != "global_batch_size"]
    finding = findings_of(made_logs.lines(records), tmp_path)["opt_base_learning_rate.value"]
    assert "global_batch_size is not logged before" in finding.expected
