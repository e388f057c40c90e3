"""Tests the names of power logs beside the stock checker's own function."""

import pytest

from compliance.submission.power_files import bad_names
from compliance.submission.tree import judge_tree
from tests.compliance import submission_trees
from tests.compliance.submission_trees import BENCHMARK, SYSTEM

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
    place = submission_trees.tree(tmp_path) / "results" / SYSTEM / BENCHMARK
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
    verdict = judge_tree(place.parents[2], log_checker=submission_trees.verdicts).verdict.answer
    assert verdict == ("no-go" if len(theirs) > 1 else "go")


def test_a_folder_without_any_power_log_is_refused(tmp_path):
    place = folder(tmp_path, lambda run: ())
    outcome = judge_tree(place.parents[2], log_checker=submission_trees.verdicts)
    assert outcome.verdict.answer == "no-go" and "power" in outcome.verdict.line
