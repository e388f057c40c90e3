"""Tests that the round of a log is found by its folder, its benchmark and its keys, and that the answer says why."""

import pytest

from compliance.log import find_round, rules
from compliance.log.check_log import check_log
from compliance.submission import rounds
from compliance.submission.tree import judge_tree
from tests.compliance import made_logs, result_logs
from timetotrain.cli import main


def write_log(folder, records):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "result_0.txt"
    path.write_text(made_logs.lines(records))
    return str(path)


@pytest.mark.parametrize(
    "folder", ["training_results_v5.0", "training_results_v5.0_rc1", "v5.0", "training-5.0"]
)
def test_the_folder_of_a_round_decides(tmp_path, folder):
    path = write_log(tmp_path / folder / "org/results/x/bert", made_logs.log("4.1.0", "closed", "bert"))
    result = check_log(path)
    assert result.ruleset == "5.0.0"
    assert folder in result.ruleset_reason


def test_the_innermost_known_round_decides(tmp_path):
    assert find_round.of_folder(tmp_path / "training_results_v5.0" / "v99.0").ruleset == "5.0.0"
    assert find_round.of_folder(tmp_path / "training_results_v5.0" / "v4.1").ruleset == "4.1.0"
    assert find_round.of_folder(tmp_path / "training_results_v9.9" / "x") is None
    assert find_round.of_folder(tmp_path / "org") is None
    assert find_round.of_folder("training_results_v5.1.1").ruleset == "5.1.0"
    assert find_round.of_folder("training_results_v5.10") is None


def test_the_benchmark_and_the_keys_decide_where_no_folder_does(tmp_path):
    for ruleset, benchmark in (("6.1.0", "dlrmv4"), ("1.0.0", "rnnt"), ("6.0.0", "dlrm_dcnv2")):
        path = write_log(tmp_path / benchmark, made_logs.log(ruleset, "closed", benchmark))
        assert check_log(path).passes
    assert check_log(str(tmp_path / "dlrmv4/result_0.txt")).ruleset == "6.1.0"
    choice = find_round.find(tmp_path / "dlrmv4/result_0.txt")
    assert choice == ("6.1.0", "only this round has dlrmv4", True, ("6.1.0",))


def test_of_several_that_fit_the_newest_is_taken_and_the_others_are_named(tmp_path):
    choice = find_round.find(write_log(tmp_path, made_logs.log("4.0.0", "closed", "bert")))
    assert choice.ruleset == "5.0.0"
    assert "4.0.0, 4.1.0, 5.0.0" in choice.reason and "--ruleset" in choice.reason


def test_all_logs_of_a_submission_are_of_the_newest_round_that_each_of_them_fits(tmp_path):
    for benchmark in ("llama31_8b", "llama2_70b_lora", "retinanet"):
        folder = tmp_path / "org" / "results" / "box" / benchmark
        alone = find_round.find(write_log(folder, made_logs.log("5.1.0", "closed", benchmark)))
        assert alone.ruleset == {"retinanet": "5.1.0"}.get(benchmark, "6.0.0")
    (tmp_path / "org" / "systems").mkdir()
    outcome = judge_tree(tmp_path / "org")
    assert {one.ruleset for one in outcome.logs} == {"5.1.0"} == {one.ruleset for one in outcome.submissions}
    (reason,) = {one.ruleset_reason for one in outcome.logs}
    assert reason == "the newest round that all logs of the submission fit"
    assert "tree.benchmark-unknown" not in {one.rule for one in outcome.findings}
    outcome = judge_tree(tmp_path / "org", "5.0.0")
    assert {one.ruleset for one in outcome.logs} == {"5.0.0"}


def test_where_no_round_fits_all_logs_of_a_submission_most_decide():
    choices = [
        find_round.Choice(fits[-1], "", fits=fits) for fits in (("4.0.0", "4.1.0"), ("4.1.0",), ("5.1.0",))
    ]
    choice = find_round.of_submission([*choices, find_round.Choice("0.7.0", "", False)])
    reason = "the newest round that most logs of the submission fit"
    assert (choice.ruleset, choice.reason) == ("4.1.0", reason)
    assert find_round.of_submission([find_round.Choice("0.7.0", "", False)]) is None
    assert find_round.of_submission([choices[0], choices[0]]) == choices[0]


def test_every_valid_log_passes_under_the_ruleset_that_is_found_for_it(tmp_path):
    for case in made_logs.every_case():
        keys = {record["key"]: record["value"] for record in reversed(made_logs.log(*case))}
        choice = find_round.of_keys(keys)
        assert not find_round.required(choice.ruleset, *case[1:3]) - keys.keys()


def test_a_log_that_fits_no_round_asks_for_the_ruleset(tmp_path, capsys):
    records = made_logs.log("4.0.0", "closed", "bert")
    record = next(record for record in records if record["key"] == "submission_benchmark")
    for value, reason in (("quake", "no round"), ("deepcam", "of MLPerf HPC"), (None, "no round")):
        record["value"] = value
        path = write_log(tmp_path, records)
        result = check_log(path)
        fix = "nothing: MLPerf HPC" if value == "deepcam" else "name the round by --ruleset"
        findings = [finding for finding in result.findings if finding.fix.startswith(fix)]
        assert len(findings) == 1 and reason in findings[0].found
        assert not result.passes
    assert main(["check", path]) != 0
    assert "--ruleset" in capsys.readouterr().out


def test_this_projects_own_logs_are_of_the_round_they_are_made_for(tmp_path):
    path = made_logs.write(tmp_path, result_logs.log("resnet", smoke=True), "log.txt")
    assert find_round.find(path).ruleset == "0.7.0"


def test_optimizer_names_with_a_space_are_checked(tmp_path):
    records = made_logs.log("1.0.0", "open", "bert")
    records.insert(5, {**records[0], "key": "opt_name", "value": "distributed shampoo"})
    result = check_log(write_log(tmp_path / "v1.0", records))
    assert result.passes and result.ruleset == "1.0.0"


def test_every_round_names_its_benchmarks():
    assert rules.rulesets_with("llama31_405b") == ("5.0.0", "5.1.0", "6.0.0")
    assert rules.rulesets_with("nothing") == ()


@pytest.mark.parametrize(
    ("benchmark", "ruleset", "last"),
    [
        ("resnet", "0.7.0", "4.0.0"),
        ("ssd", "0.7.0", "1.1.0"),
        ("ssd", "3.0.0", "4.1.0"),
        ("gnmt", "", "0.7.0"),
        ("llama31_405b", "5.1.0", "6.0.0"),
        ("llama31_8b", "5.1.0", ""),
        ("tsm_kinetics", "0.7.0", ""),
    ],
)
def test_the_last_round_of_a_retired_benchmark(benchmark, ruleset, last):
    line = rounds.retirement(benchmark, ruleset)
    assert rounds.last_round(benchmark, ruleset) == last and bool(line) == bool(last)
    assert f"--ruleset {last}" in line if last else line == ""


def test_accept_says_that_a_benchmark_is_retired(tmp_path, capsys):
    org = tmp_path / "training_results_v4.0" / "Org"
    write_log(org / "results" / "x" / "resnet", made_logs.log("4.0.0", "closed", "resnet"))
    main(["accept", str(org)])
    assert "resnet is retired: v4.0 was its last round" in capsys.readouterr().err
