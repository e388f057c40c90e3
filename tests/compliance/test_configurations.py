"""Tests advice about submitted code: the configurations that logs name, framework logs, and what has no place in it."""

import os
import threading

import pytest

from compliance.code import advice, litter
from compliance.submission.tree import judge_tree
from tests.compliance import submission_trees
from tests.compliance.submission_trees import BENCHMARK, SYSTEM, record


def tree(tmp_path, ruleset="v6.0", config="run_a.sh", more="", **files):
    more_lines = [record("config_filename", config)] if config else []
    logs = [submission_trees.log(n, more=more_lines) + more for n in range(10)]
    org = submission_trees.tree(tmp_path, logs=logs, ruleset=ruleset)
    for name, text in files.items():
        place = org / "benchmarks" / BENCHMARK / SYSTEM / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text if isinstance(text, bytes) else text.encode())
    return org


def found_in(org, prefix):
    return [one for one in judge_tree(org).findings if one.rule.startswith(prefix)]


@pytest.mark.parametrize("options", [{"ruleset": "v5.1"}, {"config": None}, {"run_a.sh": "LR=4e-4\nGBS=8\n"}])
def test_there_is_no_word_where_all_agrees_or_the_round_has_no_such_key(tmp_path, options):
    assert found_in(tree(tmp_path, **options), "config.") == []


def test_framework_logs_are_asked_for_from_6_1_on(tmp_path):
    lines = "".join(f"step {n} loss 2.5\n" for n in range(20))
    assert found_in(tree(tmp_path / "a", "v6.0"), "log.framework") == []
    (one,) = found_in(tree(tmp_path / "b", "v6.1"), "log.framework")
    assert one.severity == "advice" and "result_0.txt" in one.found and "6 more" in one.found
    assert found_in(tree(tmp_path / "c", "v6.1", more=lines), "log.framework") == []


def test_a_pipe_and_a_link_among_the_logs_are_left_out(tmp_path):
    org = tree(tmp_path, "v6.1", **{"run_a.sh": "LR=0.0005\n"})
    place = org / "results" / SYSTEM / BENCHMARK
    (place / "result_8.txt").rename(tmp_path / "result_8.txt")
    (place / "result_8.txt").symlink_to(tmp_path / "result_8.txt")
    (place / "result_9.txt").unlink()
    os.mkfifo(place / "result_9.txt")
    within = []
    checking = threading.Thread(target=lambda: within.extend(found_in(org, "")), daemon=True)
    checking.start()
    checking.join(30)
    assert not checking.is_alive(), "the check waits for the pipe"
    (one,) = (one for one in within if one.rule == "log.framework")
    assert "result_0.txt" in one.found and "4 more" in one.found
    for path in (place / "result_8.txt", place / "result_9.txt", place / "absent.txt"):
        assert advice.has_framework_log(path)


def test_linked_code_is_not_walked(tmp_path):
    org = tree(tmp_path, **{"run_a.sh": "LR=0.0005\n", "a.zip": "x"})
    assert {one.rule for one in advice.of_org(org, {}, "6.0.0")} == {"tree.archive"}
    (org / "benchmarks").rename(tmp_path / "elsewhere")
    (org / "benchmarks").symlink_to(tmp_path / "elsewhere")
    assert list(advice.of_org(org, {}, "6.0.0")) == [] and advice.files(org / "benchmarks") == frozenset()


def test_a_large_folder_of_code_ends_the_walk(tmp_path, monkeypatch):
    for name in "abcdef":
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.zip").write_text("x")
    walk, walked = os.walk, []

    def counted(top):
        for row in walk(top):
            walked.append(row[0])
            yield row

    monkeypatch.setattr(litter, "_MAX_FILES", 4)
    monkeypatch.setattr(litter.os, "walk", counted)
    (one,) = litter.of_code(tmp_path)
    assert len(walked) < 5 and one.found.endswith("x.zip, 0.0 MB")


def test_compiled_files_archives_and_caches_are_one_line_of_advice_each(tmp_path):
    files = {f"build/{n}.o": b"\x7fELF" for n in range(5)} | {
        "tool": b"\x7fELF\2", "data.tar.gz": b"x" * 10, "__pycache__/a.cpython-312.pyc": b"x", "script": b"#!/bin/sh\n",
    }  # fmt: skip
    org = tree(tmp_path, "v5.1", **files)
    actual = {one.rule: one for one in litter.of_code(org / "benchmarks")}
    assert set(actual) == {"tree.compiled", "tree.archive", "tree.cache"}
    assert actual["tree.compiled"].found.endswith("and 3 more, 0.0 MB")
    assert "data.tar.gz" in actual["tree.archive"].found
    assert "__pycache__" in actual["tree.cache"].found
    assert {one.rule for one in found_in(org, "tree.c")} == {"tree.compiled", "tree.cache"}


def test_advice_about_code_leaves_the_verdict_alone(tmp_path):
    clean, littered = (
        tree(tmp_path / "a", "v5.1"),
        tree(tmp_path / "b", "v5.1", **{"a.zip": "x", "b.pyc": "x"}),
    )
    first, second = (judge_tree(org, log_checker=submission_trees.verdicts) for org in (clean, littered))
    assert first.verdict == second.verdict and first.verdict.answer == "go"
