"""Tests the judgment of whole submissions of every round, and of power logs' names, beside the stock tools'."""

import os
import shutil

import pytest

from compliance.submission import verdict
from compliance.submission.power_files import bad_names
from compliance.submission.tree import judge_tree
from tests.compliance import submission_trees as trees
from tests.compliance.submission_trees import BENCHMARK, SYSTEM

BATCHES = [trees.log(index) for index in range(10)]


def judged(org):
    return judge_tree(org, None, None, trees.verdicts)


def rules_of(outcome, severity="error"):
    return sorted({one.rule for one in outcome.findings if one.severity == severity})


def changed(count, **options):
    """Ten logs of which the first `count` are otherwise."""
    return [trees.log(index, **(options if index < count else {})) for index in range(10)]


@pytest.fixture
def stock_package(monkeypatch):
    """The stock tools' kinds of errors about a tree, with this file's verdicts on logs."""
    pytest.importorskip("mlperf_logging.package_checker.package_checker")
    from mlperf_logging.compliance_checker import mlp_compliance

    from lab.bench.harness import stock_checker

    verdict_of = lambda path, *_: (trees.passes(path), None, None, None)  # noqa: E731
    monkeypatch.setattr(mlp_compliance, "main", verdict_of)
    return stock_checker.package


# What is wrong -> the logs, the rule of ours that refuses it, the stock tools' kinds of errors.
CASES = {
    "nothing": (BATCHES, [], []),
    "three of ten runs": (BATCHES[:3], ["tree.run-count"], ["runs"]),
    "eleven runs": ([*BATCHES, trees.log(10)], ["tree.run-count"], ["runs"]),
    "half the samples": (changed(10, samples=trees.SAMPLES // 2), ["tree.rcp"], ["convergence"]),
    "no seed": (changed(1, seed=False), ["tree.seed"], ["seeds"]),
    "a seed that is not a number": (changed(1, seed="abc"), ["tree.seed"], ["seeds"]),
    "the same seed twice": (changed(2, seed=7), ["tree.seed"], ["seeds"]),
    "one aborted run": (changed(1, status="aborted"), [], []),
    "two aborted runs": (changed(2, status="aborted"), ["tree.rcp", "tree.score"], ["convergence", "logs"]),
    "one broken log": (changed(1, more=[trees.record("BROKEN")]), [], []),
    "two broken logs": (changed(2, more=[trees.record("BROKEN")]), ["tree.score"], ["logs"]),
    "a batch size without reference": (changed(10, batch=10**6), ["tree.rcp"], ["convergence"]),
    "different batch sizes": (changed(1, batch=16), ["tree.rcp"], ["crash: KeyError"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_tree_is_refused_for_what_the_stock_tools_refuse(tmp_path, stock_package, case):
    logs, ours, theirs = CASES[case]
    # Identical seeds in two logs make equal logs; that is advice of its own.
    org = trees.tree(tmp_path, logs=logs)
    outcome = judged(org)
    assert rules_of(outcome) == ours
    assert outcome.verdict.answer == (verdict.NO_GO if ours else verdict.GO), outcome.verdict.line
    assert outcome.verdict.exit_status == bool(ours)
    shutil.rmtree(org / "benchmarks")
    assert stock_package(org, "5.0.0", frozenset()) == theirs


def test_a_run_that_legally_did_not_converge_is_said_to_be_dropped(tmp_path):
    outcome = judged(trees.tree(tmp_path, logs=changed(1, status="aborted")))
    (folder,) = outcome.submissions[0].folders
    assert [os.path.basename(path) for path in folder.dropped] == ["result_0.txt"] and folder.may_fail == 1
    assert outcome.dropped == {*folder.failed}
    (finding,) = outcome.findings
    assert "drops it as the slowest" in finding.message and finding.fix.startswith("nothing")
    (folder,) = judged(trees.tree(tmp_path / "b", logs=changed(2, status="aborted"))).submissions[0].folders
    assert folder.dropped == () and len(folder.failed) == 2


def test_the_only_run_of_a_folder_is_not_dropped(tmp_path):
    outcome = judged(trees.tree(tmp_path, logs=[trees.log(0, status="aborted")]))
    (folder,) = outcome.submissions[0].folders
    assert len(folder.failed) == folder.may_fail == 1 and folder.dropped == () and not outcome.dropped


def test_the_errors_of_a_dropped_run_do_not_refuse_the_tree(tmp_path, monkeypatch):
    import compliance.submission.tree as module
    from compliance import check

    monkeypatch.setattr(module, "check_logs", trees.verdicts)
    outcome = check([trees.tree(tmp_path, logs=changed(1, status="aborted"))])
    assert outcome.verdict.answer == "go" and not outcome.logs[0].passes
    refused = check([trees.tree(tmp_path / "b", logs=changed(2, status="aborted"))])
    assert refused.verdict.answer == "no-go"


def test_seeds_are_asked_for_from_round_4_1_on(tmp_path):
    logs = [trees.log(index, seed=False) for index in range(10)]
    early, late = (trees.tree(tmp_path / name, logs=logs, ruleset=name) for name in ("v4.0", "v4.1"))
    assert rules_of(judged(early)) == [] and "tree.seed" in rules_of(judged(early), "advice")
    assert rules_of(judged(late)) == ["tree.seed"]


def test_an_open_submission_has_no_test_of_convergence(tmp_path):
    logs = [trees.log(index, samples=10, seed=False, division="open") for index in range(10)]
    outcome = judged(trees.tree(tmp_path, logs=logs, described=trees.description(division="open")))
    assert rules_of(outcome) == [] and outcome.submissions[0].folders[0].convergence is None


@pytest.mark.parametrize(
    ("changes", "ruleset", "refused"),
    [
        ({}, "v5.0", False),
        ({"cooling": None}, "v5.0", True),
        ({"cooling": None}, "v0.7", False),
        ({"division": None}, "v0.7", True),
        ({"status": "onprem"}, "v4.0", False),
        ({"status": "onprem"}, "v4.1", True),
        ({"host_networking": ["a"], "host_processor_vcpu_count": 64, "sw_notes": {"a": 1}}, "v5.0", False),
        ({"accelerators_per_node": 8}, "v5.0", True),
        ({"submitter": ["Example"]}, "v3.0", True),
        ({"cooling": ""}, "v5.0", False),
    ],
)
def test_a_description_is_refused_where_the_round_refuses_it(tmp_path, changes, ruleset, refused):
    org = trees.tree(tmp_path, described=trees.description(**changes), ruleset=ruleset)
    assert any(rule.startswith("system.") for rule in rules_of(judged(org))) == refused


HOSTILE = {
    "a number of 5,000 digits": '{"number_of_nodes": ' + "9" * 5000 + "}",
    "text of 5,000 digits": '{"number_of_nodes": "' + "9" * 5000 + '", "accelerators_per_node": "1"}',
    "a number beyond a float": '{"number_of_nodes": 1e999, "accelerators_per_node": 1e999}',
    "null fields": '{"submitter": null, "division": null, "number_of_nodes": true}',
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_description_is_a_finding(tmp_path, case):
    from compliance.submission import scores, summary

    org = trees.tree(tmp_path)
    path = org / "systems" / f"{trees.SYSTEM}.json"
    path.write_text(HOSTILE[case])
    outcome = judged(org)
    assert outcome.verdict.answer == verdict.NO_GO
    card = scores.score_directory(
        path.parents[1] / "results" / trees.SYSTEM / trees.BENCHMARK, None, outcome.logs
    )
    assert card.accelerators is None and card.score
    assert [summary.row(one)["accelerators_count"] for one in summary.systems(outcome)] == [None]


def test_names_sizes_and_links_that_a_repository_refuses(tmp_path, stock_package):
    org = trees.tree(tmp_path)
    code = org / "benchmarks" / trees.BENCHMARK
    (code / "a file.py").write_text("")
    (code / ".hidden").mkdir()
    with open(code / "large.bin", "wb") as file:
        file.truncate(51 << 20)
    (code / "gone").symlink_to("nothing")
    (code / "there").symlink_to("large.bin")
    outcome = judged(org)
    assert rules_of(outcome) == ["tree.link", "tree.name", "tree.size"]
    assert len([one for one in outcome.findings if one.severity == "error"]) == 4
    assert stock_package(org, "5.0.0", frozenset()) == ["repository"]
    for ruleset, refused in (("v1.1", False), ("v2.0", True)):
        old = trees.tree(tmp_path / ruleset, ruleset=ruleset)
        (old / "benchmarks" / "a file.py").write_text("")
        assert ("tree.name" in rules_of(judged(old))) is refused, ruleset


def test_what_makes_a_folder_a_checkout_is_no_part_of_the_submission(tmp_path):
    org = trees.tree(tmp_path)
    (org / ".github" / "workflows").mkdir(parents=True)
    (org / ".github" / "workflows" / "a file.yml").write_text("")
    (org / ".pre-commit-config.yaml").write_text("")
    # It is no checkout: these files would be submitted.
    assert [one.rule for one in judged(org).findings] == ["tree.name"] * 3
    (org / ".git").mkdir()
    outcome = judged(org)
    assert outcome.verdict.line == "go"
    assert {os.path.basename(one.path) for one in outcome.findings} == {".github", ".pre-commit-config.yaml"}
    assert {one.severity for one in outcome.findings} == {"advice"}
    (org / "benchmarks" / ".github").mkdir()
    assert judged(org).verdict.answer == verdict.NO_GO


def test_several_submitters_have_one_verdict(tmp_path):
    org = trees.tree(tmp_path)
    shutil.copytree(org, org.with_name("Another"))
    outcome = judged(org.parent)
    assert len(outcome.submissions) == 2 and outcome.verdict.line == "go"
    shutil.rmtree(org / "systems")
    outcome = judged(org.parent)
    assert outcome.verdict.line.startswith("no-go: Example: ")
    answers = {one.path.name: one.verdict.answer for one in outcome.submissions}
    assert answers == {"Another": verdict.GO, "Example": verdict.NO_GO}


def test_a_part_of_a_submission_is_not_judged_as_one(tmp_path):
    org = trees.tree(tmp_path, runs=3)
    outcome = judged(org / "results")
    assert outcome.verdict.answer == verdict.NOT_CHECKED and "a part" in outcome.verdict.line
    assert judged(org).verdict.answer == verdict.NO_GO


def test_logs_below_a_benchmarks_folder_are_not_runs(tmp_path):
    org = trees.tree(tmp_path)
    raw = org / "results" / trees.SYSTEM / trees.BENCHMARK / "raw"
    for place in (raw, org / "benchmarks" / trees.BENCHMARK):
        place.mkdir(exist_ok=True)
        (place / "result_0.txt").write_text("nothing")
    outcome = judged(org)
    assert outcome.verdict.line == "go" and len(outcome.logs) == 10
    (deeper,) = outcome.findings
    assert deeper.severity == "advice" and deeper.path.endswith("raw")


NAMINGS = {
    "sound": lambda run: ["node_0.txt", "node_1.txt", "sw_0.txt"],
    "from one": lambda run: ["node_1.txt"],
    "one run from one": lambda run: ["node_1.txt" if run == 2 else "node_0.txt"],
    "no folder": lambda run: [] if run in (1, 2) else ["node_0.txt"],
    "fewer nodes": lambda run: ["node_0.txt"] if run in (4, 5) else ["node_0.txt", "node_1.txt"],
    "more switches": lambda run: ["node_0.txt", *(["sw_0.txt"] if run == 7 else [])],
    "other files": lambda run: ["node_0.txt", "notes.png"],
    "a picture": lambda run: ["node_1.txt", "nodes_1.png"],
}


def folder(tmp_path, names):
    """The folder of ten runs with power logs, in a submission; `names(run)` are the files of a run's power logs."""
    place = trees.tree(tmp_path) / "results" / SYSTEM / BENCHMARK
    (place / "power").mkdir()
    for run in range(10):
        for name in names(run):
            target = place / "power" / f"result_{run}" / name
            target.parent.mkdir(exist_ok=True)
            target.write_text("")
    return place


@pytest.mark.parametrize("name", NAMINGS)
def test_names_are_refused_where_the_stock_checker_refuses_them(tmp_path, name):
    checker = pytest.importorskip("mlperf_logging.package_checker.power_checker", reason="no mlperf-logging")
    place = folder(tmp_path, NAMINGS[name])
    logs = sorted(map(str, place.glob("result_*.txt")))
    _, theirs = checker.PowerChecker("5.0.0").check_power(str(place / "power"), logs)
    assert {f"result_{log.rpartition('_')[2][:-4]}" for log in bad_names(place, logs)} == theirs
    verdict = judge_tree(place.parents[2], log_checker=trees.verdicts).verdict.answer
    assert verdict == ("no-go" if len(theirs) > 1 else "go")


def test_a_folder_without_any_power_log_is_refused(tmp_path):
    place = folder(tmp_path, lambda run: ())
    outcome = judge_tree(place.parents[2], log_checker=trees.verdicts)
    assert outcome.verdict.answer == "no-go" and "power" in outcome.verdict.line
