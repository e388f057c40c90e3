"""Tests the results table of a submission: its columns and scores beside the stock summarizer's, CSV, remarks."""

import csv
import io
import re

import pytest

from compliance.submission import scaling, summary
from compliance.submission import tree as tree_module
from compliance.submission.tree import judge_tree
from tests.compliance import submission_trees as trees
from timetotrain import cli


@pytest.fixture(autouse=True)
def _verdicts(monkeypatch):
    monkeypatch.setattr(tree_module, "check_logs", trees.verdicts)


@pytest.fixture
def summarizer(monkeypatch):
    """The stock summarizer, with this file's verdicts on logs."""
    module = pytest.importorskip("mlperf_logging.result_summarizer.result_summarizer")
    from mlperf_logging.compliance_checker import mlp_compliance

    monkeypatch.setattr(mlp_compliance, "main", lambda path, *_: (trees.passes(path), None, None, None))
    return module


def rows(org):
    return summary.systems(judge_tree(org))


def tree(folder, **options):
    """A submission of ten runs of 30 to 39 minutes, the third aborted, a little faster than the reference."""
    logs = [trees.log(index, samples=3072 - 64 * (index % 3)) for index in range(10)]
    logs[2] = trees.log(2, status="aborted")
    return trees.tree(folder, **{"logs": logs, **options})


@pytest.mark.parametrize(("detailed", "batch"), [(False, trees.BATCH), (True, trees.BATCH), (False, None)])
def test_the_table_is_the_stock_summarizers(tmp_path, summarizer, detailed, batch):
    """Also if the fastest run has no batch size."""
    org = (
        tree(tmp_path)
        if batch
        else trees.tree(tmp_path, logs=[trees.log(0, batch=None), *map(trees.log, range(1, 10))])
    )
    ours = summary.row(rows(org)[0], detailed)
    # It scales by the file that the convergence test of an earlier call left.
    summarizer.summarize_results(str(org), "training", "5.0.0")
    frames = summarizer.summarize_results(str(org), "training", "5.0.0")
    theirs = frames[2 if detailed else 0].iloc[0]
    assert list(ours) == list(theirs.index)
    empty = {name for name, value in theirs.items() if value != value or value in (None, "")}
    # The stock rows have a factor of 1 only where there are logs; so have ours.
    assert {name for name, value in ours.items() if value in (None, "")} == empty
    for name in set(ours) - empty:
        number = isinstance(ours[name], float)
        assert ours[name] == pytest.approx(theirs[name]) if number else theirs[name], name
    key = f"{trees.BENCHMARK}:time_to_train" if detailed else trees.BENCHMARK
    assert ours[key] == pytest.approx(ours[key]) and ours[key] > 30


def test_a_factor_that_cannot_be_read_is_told_from_one_that_is_not_json(tmp_path):
    place = tmp_path / scaling.NAME
    assert scaling.factor(tmp_path, None) == (1.0, "", "")
    problems = {"{": "not JSON: ", "[" * 50_000: "not JSON: ", "1" * (1 << 17): "cannot be read: more"}
    for text, problem in problems.items():
        place.write_text(text)
        assert scaling.factor(tmp_path, None).problem.startswith(problem)
    place.unlink()
    place.mkdir()
    assert scaling.factor(tmp_path, None).problem == "cannot be read: a special file, not a plain file"


def test_a_run_without_a_batch_size_never_makes_the_score_better(tmp_path):
    logs = [trees.log(index, minutes=10 + index) for index in range(10)]
    whole = rows(trees.tree(tmp_path / "a", logs=logs))[0].results[trees.BENCHMARK].card
    logs[0] = trees.log(0, minutes=1, batch=None)
    without = rows(trees.tree(tmp_path / "b", logs=logs))[0].results[trees.BENCHMARK].card
    assert whole.score < without.score and 0 in without.left_out and without.converged == 9


def test_a_folder_with_too_few_or_failed_runs_has_no_score(tmp_path):
    few = rows(trees.tree(tmp_path / "a", runs=3))
    assert few[0].results[trees.BENCHMARK].card.score is None
    assert "takes 10 runs, here are 3" in few[0].remarks[0]
    logs = [trees.log(index, status="aborted" if index < 2 else "success") for index in range(10)]
    assert "at most one may: run_stop.status" in rows(trees.tree(tmp_path / "b", logs=logs))[0].remarks[0]


def test_the_command_prints_and_writes_the_table(tmp_path, capsys):
    org = tree(tmp_path)
    path = tmp_path / "out" / "table.csv"
    assert cli.main(["scores", str(org), "--csv", str(path)]) == 0
    text = capsys.readouterr().out
    assert trees.SYSTEM in text and "Pass" in text and "not covered" in text
    # One failed; the mean drops it and the fastest.
    assert re.search(r" 10 of 10  1 +2 ", text)
    (row,) = csv.DictReader(io.StringIO(path.read_text()))
    assert list(row) == list(summary.row(rows(org)[0])) and float(row[trees.BENCHMARK]) > 30
    (row,) = csv.DictReader(io.StringIO(path.with_stem("table_detailed").read_text()))
    assert row[f"{trees.BENCHMARK}:RCP"] == "Pass" and row[f"{trees.BENCHMARK}:Energy"] == ""
    assert cli.main(["scores", str(trees.tree(tmp_path / "b", runs=3))]) == 1


@pytest.mark.parametrize("place", ["absent", "."])
def test_places_without_a_table_are_one_line(tmp_path, capsys, place):
    assert cli.main(["scores", str(tmp_path / place)]) == 2
    assert "name" in capsys.readouterr().err


def test_half_a_surrogate_pair_is_escaped(tmp_path):
    org = trees.tree(tmp_path, described=trees.description(framework="\ud800x\uffff", status="=\udc00"))
    path = tmp_path / "table.csv"
    assert cli.main(["scores", str(org), "--csv", str(path)]) == 0
    assert "\\ud800x" in path.read_text() and "\\ud800x" in path.with_stem("table_detailed").read_text()
