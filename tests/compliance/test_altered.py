"""Tests that a sound log or tree has no advice, and that each kind of alteration is noticed, with its own finding."""

import csv
import json
import re

import pytest

from compliance import cli
from compliance.api import check
from compliance.findings import Finding
from compliance.formats import as_text, merged
from compliance.log import rules, written
from compliance.log.check_log import check_log
from compliance.report import charts, report
from compliance.report import index as rows_of_index
from compliance.report.published import published
from compliance.submission import organisations, rcp, summary, tree_runs
from compliance.submission.runs import read_run
from compliance.submission.tree import judge_tree
from tests.compliance import llama_logs, made_logs


def found(text, tmp_path, ruleset="5.1.0"):
    """{rule: finding} of a log."""
    path = tmp_path / "result_0.txt"
    path.write_text(text)
    return {finding.rule: finding for finding in check_log(str(path), ruleset).findings}


def edited(text, key, value=None, at=None, **metadata):
    """A log with another value or other metadata in the records of a key; `at`: only in that one of them."""
    lines, number = text.splitlines(), 0
    for place, line in enumerate(lines):
        record = json.loads(line.removeprefix(":::MLLOG "))
        if record["key"] != key:
            continue
        number += 1
        if at is not None and number - 1 != at:
            continue
        record["value"] = record["value"] if value is None else value
        record["metadata"] |= metadata
        lines[place] = f":::MLLOG {json.dumps(record)}"
    return "\n".join(lines) + "\n"


def without(text, pattern, count=1):
    """A log without the first `count` lines that match."""
    lines = []
    for line in text.splitlines():
        if count and re.search(pattern, line):
            count -= 1
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def test_a_sound_log_has_no_finding(tmp_path):
    assert found(llama_logs.log(), tmp_path) == {}


# ------------------------------------------------------------------------------------------------- schedules


def places(ruleset, benchmark, batch):
    """The first three places of a benchmark's schedule."""
    row = written.schedule(ruleset, benchmark)
    plan = written._plan(row, row, {"global_batch_size": batch}, [])
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
    assert written.off_schedule(row, values, expected) is None
    step = expected[1] - expected[0]
    asked, extra = written.off_schedule(row, values, [*expected, expected[2] + step / 2])
    assert asked.startswith("an evaluation every") and extra.startswith("also at")
    if not row.get("sparse"):
        _, missing = written.off_schedule(row, values, [expected[0], expected[2]])
        assert missing.startswith("none at")


def test_every_benchmark_from_3_0_on_with_a_row_in_the_rules_table_has_a_schedule():
    # Not in the tables: the benchmarks that only 6.1 has, whose frequency the stock checker itself checks.
    without_row = {"dlrmv4", "qwen35_397b_grpo"}
    for ruleset in rules.RULESETS[rules.RULESETS.index("3.0.0") :]:
        for benchmark in rules.benchmarks(ruleset, "closed"):
            if rules.has_rules(ruleset, benchmark) and benchmark not in without_row:
                assert written.schedule(ruleset, benchmark), (ruleset, benchmark)


def test_a_run_that_leaves_evaluations_out_is_advised(tmp_path):
    text = without(llama_logs.log(), r'"eval_\w+".*"samples_count": (1536|1920|2304|2688|3072)', 15)
    finding = found(text, tmp_path)["written.schedule"]
    assert finding.severity == "advice"
    packaged = check([tmp_path / "result_0.txt"], "5.1.0", packaging=True)
    assert "written.schedule" in {one.rule for one in packaged.advice}
    assert finding.expected == "an evaluation every 384 samples, the first at 1,536"
    assert finding.found == "none at 1,536, 1,920, 2,304, 2,688, 3,072"


# --------------------------------------------------------------------------------------------- written values


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("opt_gradient_clip_norm", 1.0, "0.3"),
        ("lora_alpha", 16, "32"),
        ("opt_adamw_weight_decay", 0.01, "0.0001"),
        ("eval_samples", 100, "173"),
    ],
)
def test_values_that_only_the_written_rules_fix(tmp_path, key, value, expected):
    finding = found(edited(llama_logs.log(), key, value), tmp_path)["written.value"]
    assert finding.severity == "advice" and finding.message.startswith(key)
    assert (finding.expected, finding.found) == (expected, repr(value)) and finding.line


@pytest.mark.parametrize(
    ("ruleset", "benchmark", "values", "differs"),
    [
        ("6.0.0", "llama31_8b", {"opt_base_learning_rate": 8e-4, "opt_end_learning_rate": 8e-5}, None),
        ("6.0.0", "llama31_8b", {"opt_base_learning_rate": 8e-4, "opt_end_learning_rate": 8e-6}, "8e-05"),
        ("6.0.0", "gpt_oss_20b", {"opt_base_learning_rate": 8e-4, "opt_end_learning_rate": 4e-5}, None),
        ("6.0.0", "gpt_oss_20b", {"opt_base_learning_rate": 8e-4, "opt_end_learning_rate": 5e-5}, "4e-05 or"),
        ("6.0.0", "llama31_405b", {"global_batch_size": 1152, "opt_end_learning_rate": 8e-6}, "8e-07"),
        (
            "6.0.0",
            "llama31_405b",
            {"global_batch_size": 2304, "opt_learning_rate_warmup_steps": 8000},
            "4,000",
        ),
        ("6.0.0", "llama31_405b", {"global_batch_size": 2304, "opt_learning_rate_warmup_steps": 4000}, None),
        ("4.0.0", "gpt3", {"global_batch_size": 1536, "opt_base_learning_rate": 3e-5}, "2e-05"),
        ("4.0.0", "resnet", {"global_batch_size": 3264, "lars_opt_momentum": 0.95}, "0.9"),
        ("4.0.0", "resnet", {"global_batch_size": 65536, "lars_opt_momentum": 0.95}, None),
        ("6.0.0", "llama2_70b_lora", {"max_sequence_length": 4096}, "8,192 or 8,196"),
    ],
)
def test_the_table_of_hyperparameters(ruleset, benchmark, values, differs):
    differences = list(written.differences(ruleset, benchmark, values))
    if differs is None:
        assert not differences
    else:
        (one,) = differences
        assert one.expected.startswith(differs)


def test_open_logs_are_free(tmp_path):
    text = edited(llama_logs.log(), "submission_division", "open")
    assert "written.value" not in found(edited(text, "lora_alpha", 16), tmp_path)


# --------------------------------------------------------------------------------------------- one log


def test_a_count_that_differs_between_start_and_result(tmp_path):
    text = edited(llama_logs.log(), "eval_accuracy", samples_count=3840, epoch_num=3840 / 3901, at=5)
    finding = found(text, tmp_path)["eval.place"]
    assert finding.severity == "advice"
    assert "samples_count 3456" in finding.expected and "samples_count 3840" in finding.found


@pytest.mark.parametrize("values", [(0.95, 0.92), (0.92, 0.95)])
def test_one_evaluation_with_two_results_is_an_error(tmp_path, values):
    """Whichever of them meets the target, and although the second stands behind run_stop with the first one's time."""
    text = edited(llama_logs.log(), "eval_accuracy", values[0], at=5)
    lines = text.splitlines()
    last = next(line for line in reversed(lines) if '"eval_accuracy"' in line)
    again = json.loads(last.removeprefix(":::MLLOG "))
    again["value"] = values[1]
    text += f":::MLLOG {json.dumps(again)}\n"
    finding = found(text, tmp_path)["eval_accuracy.twice"]
    assert finding.severity == "error" and finding.found == str(values[1])
    assert str(values[0]) in finding.expected


def test_a_result_repeated_alike_is_no_contradiction(tmp_path):
    text = llama_logs.log()
    last = next(line for line in reversed(text.splitlines()) if '"eval_accuracy"' in line)
    assert "eval_accuracy.twice" not in found(text + last + "\n", tmp_path)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (edited(llama_logs.log(), "cache_clear", False), "cache_clear.false"),
        (edited(llama_logs.log(), "seed", 1309.5), "seed.whole"),
        (edited(llama_logs.log(), "submission_org", "Other\u202eLab"), "name.hidden"),
        (edited(llama_logs.log(), "submission_platform", "1x\u200bbox"), "name.hidden"),
        (without(llama_logs.log(), '"eval_start"'), "interval.unpaired"),
        (without(llama_logs.log(), '"eval_start"', 99), "interval.unpaired"),
        (without(llama_logs.log(), '"block_stop"'), "interval.unpaired"),
        (re.sub(r'("time_ms": \d+)\d{3}', r"\1", llama_logs.log()), "time.seconds"),
    ],
)
def test_what_the_stock_checker_passes_is_advice(tmp_path, text, rule):
    finding = found(text, tmp_path)[rule]
    assert finding.severity == "advice"
    text = as_text(check([tmp_path / "result_0.txt"], "5.1.0"))
    assert text.encode().isascii()


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-be"])
def test_a_log_in_utf16_is_said_to_be_one(tmp_path, coding):
    path = tmp_path / "result_0.txt"
    path.write_bytes(llama_logs.log().encode(coding))
    (finding,) = check_log(str(path)).findings
    assert finding.severity == "error" and finding.found == "UTF-16" and "UTF-8" in finding.fix


def test_two_runs_in_one_log_are_one_finding(tmp_path):
    first, second = llama_logs.log(0), llama_logs.log(1)
    broken = "".join(first.splitlines(keepends=True)[:30])  # the job was killed and started again
    results = found(broken + second, tmp_path)
    assert list(results) == ["log.two-runs"]
    finding = results["log.two-runs"]
    assert finding.severity == "error" and list(finding.lines) == [1, 31]
    assert finding.found == "line 1 to 30 (without run_stop); line 31 on (status success)"
    whole = found(first + second, tmp_path)["log.two-runs"]
    assert "status success" in whole.found.partition(";")[0]


def test_ranks_that_log_one_run_are_one_run(tmp_path):
    lines = llama_logs.log().splitlines(keepends=True)
    start = next(place for place, line in enumerate(lines) if '"run_start"' in line)
    assert "log.two-runs" not in found(
        "".join([*lines[: start + 1], *lines[: start + 1], *lines[start + 1 :]]), tmp_path
    )


def test_a_formula_that_fails_shows_its_value_and_inputs(tmp_path):
    """At a global batch size of 1,008 the decay takes 1,362,286 steps."""
    records = made_logs.log("5.1.0", "closed", "llama31_405b")
    changes = {
        "global_batch_size": 1008,
        "opt_base_learning_rate": 7e-5,
        "opt_learning_rate_decay_steps": 1200000,
    }
    for record in records:
        record["value"] = changes.get(record["key"], record["value"])
    finding = found(made_logs.lines(records), tmp_path)["opt_learning_rate_decay_steps.value"]
    assert finding.expected.startswith("1,362,286: value = ")
    assert "global_batch_size is 1,008" in finding.expected and finding.found == "1200000"


def test_a_formula_whose_input_is_absent_says_so(tmp_path):
    records = [
        record
        for record in made_logs.log("5.1.0", "closed", "llama31_405b")
        if record["key"] != "global_batch_size"
    ]
    finding = found(made_logs.lines(records), tmp_path)["opt_base_learning_rate.value"]
    assert "global_batch_size is not logged before" in finding.expected


# ------------------------------------------------------------------------------------------------- trees


@pytest.fixture
def tree(tmp_path):
    """Returns make(logs, folder, submitter), which writes a tree of round 5.1 and returns the submitter's folder."""

    def make(logs=None, folder="Other_Lab", description=None):
        org = tmp_path / "training_results_v5.1" / folder
        place = org / "results" / "box" / "llama2_70b_lora"
        place.mkdir(parents=True)
        for index, text in enumerate(logs or [llama_logs.log(index) for index in range(10)]):
            (place / f"result_{index}.txt").write_text(text)
        (org / "systems").mkdir()
        described = json.dumps(llama_logs.description(**(description or {})))
        (org / "systems" / "box.json").write_text(described)
        llama_logs.write_code(org / "benchmarks" / "llama2_70b_lora" / "implementations" / "nemo")
        (org / "benchmarks" / "llama2_70b_lora" / "implementations" / "nemo" / ".gitignore").unlink()
        return org

    return make


def of_tree(org):
    """{rule: finding} of a tree, and the verdict."""
    outcome = check([org])
    return {finding.rule: finding for finding in outcome.findings}, outcome.verdict.answer


def test_a_sound_tree_has_no_finding(tree):
    assert of_tree(tree()) == ({}, "go")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"scaling_factor": 0.5}', "less than 1"),
        ("", "not JSON"),
        ('{"scaling_factor": -1}', "not a positive number"),
        ('{"scaling_factor": NaN}', "not a positive number"),
        ('{"scaling_factor": "1.2"}', "not a positive number"),
        ('{"factor": 1.2}', "no scaling_factor"),
        ("[1.2]", "no scaling_factor"),
    ],
)
def test_a_scaling_file_that_does_not_count_is_an_error(tree, content, says):
    org = tree()
    before = summary.systems(judge_tree(org))[0].results["llama2_70b_lora"].card.score
    (org / "results" / "box" / "llama2_70b_lora" / "scaling.json").write_text(content)
    findings, verdict = of_tree(org)
    assert verdict == "no-go" and findings["tree.scaling"].severity == "error"
    assert says in findings["tree.scaling"].found
    assert summary.systems(judge_tree(org))[0].results["llama2_70b_lora"].card.score == before


def test_a_scaling_file_never_lowers_the_factor_of_the_convergence_test(tree):
    """Runs of 3,072 samples pass the test and are normalized to the reference's mean."""
    quick = [
        edited(
            without(llama_logs.log(index), r'"eval_\w+".*"samples_count": 3456', 3),
            "eval_accuracy",
            0.9245,
            at=4,
        )
        for index in range(10)
    ]
    org = tree(quick)
    own = summary.systems(judge_tree(org))[0].results["llama2_70b_lora"].scaling
    assert own > 1.03
    place = org / "results" / "box" / "llama2_70b_lora" / "scaling.json"
    for given, counts in ((own / 2, own), (1.0, own), (own, own), (1.5, 1.5)):
        place.write_text(json.dumps({"scaling_factor": given}))
        result = summary.systems(judge_tree(org))[0].results["llama2_70b_lora"]
        assert result.scaling == counts
        assert ("tree.scaling" in of_tree(org)[0]) == (given < own)


def test_report_and_scores_agree(tree, tmp_path, capsys):
    """In the scaled score, the number of runs, and the samples to converge; with a failed run and a factor."""
    org = tree([llama_logs.log(index, status="aborted" if index == 3 else "success") for index in range(10)])
    place = org / "results" / "box" / "llama2_70b_lora"
    (place / "scaling.json").write_text('{"scaling_factor": 1.25}')
    assert cli.main(["scores", str(org), "--csv", str(tmp_path / "t.csv")]) == 0
    printed = capsys.readouterr().out.splitlines()[2].split()
    score, runs, failed = printed[4], " ".join(printed[5:8]), printed[8]
    assert (runs, failed) == ("10 of 10", "1")
    with open(tmp_path / "t_detailed.csv") as file:
        (row,) = csv.DictReader(file)
    outcome = check([org])
    card = report.card_of(place, outcome)
    assert f"{card.score:.4f}" == score and card.scaling == 1.25
    judged = rows_of_index.judged(outcome)[place.resolve()]
    shown = rows_of_index.row(card, [], judged)
    assert shown.to_converge == float(row["llama2_70b_lora:samples_to_converge"]) == 3456
    assert (shown.runs, shown.needed, shown.failed) == (10, 10, 1)
    page = report.page([card], outcome)
    assert "1.2500, the factor of scaling.json" in page and "10 of 10, 1 failed" in page


def test_logs_that_are_alike_but_for_the_seed(tree):
    findings, verdict = of_tree(tree([llama_logs.log(0, seed=100 + index) for index in range(10)]))
    assert verdict == "go" and findings["tree.alike"].severity == "advice"
    assert "10 runs with the same 6 results at the same times" in findings["tree.alike"].found


def test_runs_that_began_at_one_moment(tree):
    logs = [llama_logs.log(index) for index in range(10)]
    logs[4] = logs[3].replace("0.9245", "0.9244").replace('"value": 4003', '"value": 4004')
    assert "result_3.txt and result_4.txt" in of_tree(tree(logs))[0]["tree.at-once"].found


def test_runs_in_seconds_instead_of_milliseconds(tree):
    logs = [llama_logs.log(index) for index in range(10)]
    for index in (1, 2):
        logs[index] = re.sub(r'("time_ms": \d+)\d{3}', r"\1", logs[index])
    findings, _ = of_tree(tree(logs))
    assert "result_1.txt" in findings["tree.short"].found and "time.seconds" in findings


@pytest.mark.parametrize(
    ("folder", "logged", "submitter", "fine"),
    [
        ("Inventec", "Inventec Corporation", "Inventec", True),
        ("Quanta_Cloud_Technology", "QCT", "Quanta Cloud Technology", True),
        ("Google", "Google", "Google_1", True),
        ("Dell", "Dell Technologies", "Dell", True),
        ("IBM+CoreWeave+NVIDIA", "IBM+CoreWeave+NVIDIA", "CoreWeave + IBM + NVIDIA", True),
        ("Dell", "NVIDIA", "Dell", False),
        ("Dell", "Dell", "Supermicro", False),
    ],
)
def test_organisations_of_logs_folder_and_description(tree, folder, logged, submitter, fine):
    logs = [llama_logs.log(index, org=logged) for index in range(10)]
    findings, verdict = of_tree(tree(logs, folder, {"submitter": submitter}))
    assert verdict == "go" and ("tree.organisation" in findings) is not fine


@pytest.mark.parametrize(
    ("name", "other", "one"),
    [
        ("Goo", "Google", False),
        ("Int", "Intel", False),
        ("Quanta", "Quanta Cloud", True),
        ("Supermicro", "Super Micro Computer, Inc.", True),
        ("HP", "HP Lab", False),
    ],
)
def test_a_name_begins_another_at_the_end_of_a_word(name, other, one):
    assert organisations.same(name, other) is organisations.same(other, name) is one


def test_a_field_of_the_description_is_shown_with_its_value(tree):
    finding = of_tree(tree(description={"status": "onprem"}))[0]["system.field"]
    assert finding.found == "'onprem'" and "'Available on-premise'" in finding.fix
    assert "box.json" not in finding.found + finding.expected


def test_a_hidden_character_in_a_description(tree):
    assert "U+202E" in of_tree(tree(description={"system_name": "box\u202e"}))[0]["name.hidden"].found


def test_a_legal_failed_run_asks_for_nothing(tree):
    logs = [llama_logs.log(index, status="aborted" if index == 3 else "success") for index in range(10)]
    findings, verdict = of_tree(tree(logs))
    assert verdict == "go" and findings["tree.score"].fix.startswith("nothing")
    assert "result_3.txt" in findings["tree.score"].found


def test_the_same_advice_for_ten_logs_is_one(tree):
    org = tree([edited(llama_logs.log(index), "cache_clear", False) for index in range(10)])
    text = as_text(check([org]))
    assert text.count("cache_clear.false") == 1 and "and in 9 more logs" in text
    assert text.splitlines()[-1].startswith("go: 11 files checked, 0 errors, 10 pieces of advice")


def test_only_the_same_advice_of_other_logs_is_one(tmp_path):
    def about(name, line, severity="advice", found="5"):
        return Finding(
            "a.rule", severity, str(tmp_path / name), line, "", "A sentence.", "4", found, "mend it"
        )

    one = about("result_0.txt", 1)
    others = [
        about("result_0.txt", 2),
        about("result_1.txt", 1, "error"),
        about("result_1.txt", 1, found="6"),
    ]
    same = about("result_1.txt", 7)
    kept, alike = merged([one, *others, same])
    assert kept == [one, *others] and alike[id(one)] == [same]
    assert not any(alike[id(other)] for other in others)


def test_late_lines_are_no_reason_to_edit_a_log(tree):
    logs = [llama_logs.log(index) for index in range(10)]
    lines = logs[0].splitlines(keepends=True)
    logs[0] = "".join([*lines[1:5], lines[0], *lines[5:]])
    finding = of_tree(tree(logs))[0]["line.order"]
    assert "do not edit" in finding.fix and "sort" not in finding.fix


def test_missing_files_are_one_finding_in_the_place_where_submitters_put_them(tree):
    org = tree()
    assert "tree.file-missing" not in of_tree(org)[0]
    for name in ("README.md",):
        (org / "benchmarks" / "llama2_70b_lora" / "implementations" / "nemo" / name).unlink()
    missing = [one for one in check([org]).findings if one.rule == "tree.file-missing"]
    assert len(missing) == 1 and missing[0].message == "Missing: README.md."


def test_too_few_runs_for_the_convergence_test_are_said_to_be_too_few(tree):
    finding = of_tree(tree([llama_logs.log()]))[0]["tree.rcp"]
    assert "too few" in finding.message and finding.found.startswith("1 run;")


@pytest.mark.parametrize(("ruleset", "narrow"), [("5.1.0", False), ("6.0.0", False), ("6.1.0", True)])
def test_rcp_bypass_is_narrower_from_6_1_on(tmp_path, ruleset, narrow):
    judged = rcp.judge("llama2_70b_lora", ruleset, 8, [2000] * 10)
    assert judged.verdict == rcp.FAIL
    (finding,) = tree_runs._about_convergence(tmp_path, judged, "error", True, ruleset)
    assert finding.severity == "advice" and ("7 days" in finding.fix) is narrow


# ------------------------------------------------------------------------------------------------ report


def test_a_count_of_all_samples_so_far_makes_no_gap(tmp_path):
    """Blocks that begin at 0 and 1,536 and stop at 1,536 and 1,920 are training, as in AMD's logs of v6.0."""
    text, at = [], 0
    for line in llama_logs.log().splitlines():
        record = json.loads(line.removeprefix(":::MLLOG "))
        if record["key"] == "block_start":
            record["metadata"]["samples_count"] = at
        if record["key"] == "block_stop":
            at = at + 384 if at else 1536
            record["metadata"]["samples_count"] = at
        text.append(f":::MLLOG {json.dumps(record)}")
    path = tmp_path / "result_0.txt"
    path.write_text("\n".join(text) + "\n")
    lanes = {lane.name: lane.total_ms for lane in charts.timeline(read_run(path, "5.1.0")).lanes}
    assert lanes["train"] == 6 * 60_000 and lanes["gap"] < 0.1 * lanes["train"]


def test_a_run_that_ends_inside_its_only_epoch_was_training(tmp_path):
    """As rgat of v5.1: one epoch_start, no block, no epoch_stop."""
    text = without(without(llama_logs.log(), '"block_start"', 5), '"block_stop"', 99)
    path = tmp_path / "result_0.txt"
    path.write_text(text)
    lanes = {lane.name: lane.total_ms for lane in charts.timeline(read_run(path, "5.1.0")).lanes}
    assert lanes["train"] > 0
    path.write_text(llama_logs.log())
    lanes = {lane.name: lane.total_ms for lane in charts.timeline(read_run(path, "5.1.0")).lanes}
    assert lanes["train"] == 6 * 60_000


@pytest.mark.parametrize("benchmark", ["gpt_oss_20b", "deepseekv3_671b", "llama31_8b"])
def test_the_loss_of_a_language_model_is_called_log_perplexity(tmp_path, benchmark):
    path = tmp_path / "result_0.txt"
    path.write_text(made_logs.lines(made_logs.log("6.0.0", "closed", benchmark)))
    page = report.page([report.card_of(path, check([path], "6.0.0"), "6.0.0")])
    assert "Log perplexity" in page


def test_v6_0_has_published_scores_beside_a_result():
    rows = [row for row in published() if row.round == "v6.0"]
    assert len(rows) == 7 and {row.org for row in rows} == {"GigaComputing", "Inventec"}
