"""Tests `review`: uploads merged by the naming rule, what vanished, points in time, and the page with its table."""

import argparse
import csv
import shutil
from datetime import date
from pathlib import Path

import pytest

from common.errors import UserError
from compliance.review import command, points, uploads
from compliance.review.table import review
from compliance.submission import rcp
from tests.compliance import llama_logs, submission_trees
from tests.compliance.submission_trees import BENCHMARK, SYSTEM

NAME = f"{SYSTEM}/{BENCHMARK}"


def upload(folder, name="Example", system=SYSTEM, batch=8):
    """A submitter's folder of round 5.1 with one folder of sound runs."""
    size = '"key": "global_batch_size", "value": '
    logs = [llama_logs.log(index).replace(f"{size}8", f"{size}{batch}") for index in range(10)]
    org = submission_trees.tree(folder, ruleset="v5.1", logs=logs)
    for path in (org / "results" / SYSTEM, org / "systems" / f"{SYSTEM}.json"):
        path.rename(path.with_name(path.name.replace(SYSTEM, system)))
    return org.rename(org.with_name(name))


def kinds(whole):
    return [(one.kind, one.name) for one in whole.changes]


def test_an_entry_that_only_an_earlier_upload_has_is_named_as_vanished(tmp_path):
    first, second = upload(tmp_path / "a", system="old"), upload(tmp_path / "b")
    whole = review([first, second])
    assert kinds(whole) == [("vanished", f"old/{BENCHMARK}")]
    assert [(row["system"], row["uploaded_as"]) for row in whole.rows] == [(SYSTEM, "Example")]
    assert kinds(review([second, first])) == [("vanished", NAME)]
    both = review([first, second, upload(tmp_path / "c", "Example_2")])
    assert kinds(both) == [("sent again", NAME), ("vanished", f"old/{BENCHMARK}")]


def test_numbered_uploads_of_one_organisation_become_one_submission(tmp_path):
    first, second = upload(tmp_path / "a", "Example_1", "old"), upload(tmp_path / "b", "Example_2")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    whole = review([second, first])
    assert whole.changes == [] and [*whole.verdicts] == ["Example"]
    sources = {row["system"]: row["uploaded_as"] for row in whole.rows}
    assert sources == {"old": "Example_1", SYSTEM: "Example_2"}
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("batch", "kind"), [(8, "sent again"), (16, "replaced")])
def test_the_higher_number_replaces_the_lower(tmp_path, batch, kind):
    later = upload(tmp_path / "b", "Example_2", batch=batch)
    whole = review([later, upload(tmp_path / "a", "Example_1")])
    assert kinds(whole) == [(kind, NAME)]
    assert [row["batch"] for row in whole.rows] == [batch]


def test_a_number_in_the_name_of_a_single_upload_stays(tmp_path):
    assert [*review([upload(tmp_path, "Team_7")]).verdicts] == ["Team_7"]


def test_a_row_has_raw_and_scaled_score_and_the_points_of_the_test(tmp_path):
    (row,) = review([upload(tmp_path)]).rows
    assert row["minutes"] == pytest.approx(row["raw_minutes"] * row["factor"]) and row["needed"] == 10
    assert row["points"] == "8 by NVIDIA, 2024-04-05" and row["in_time"] == "yes"
    (row,) = review([tmp_path / "training_results_v5.1"], deadline=date(2024, 4, 1)).rows
    assert row["in_time"] == "no"


def test_copies_between_organisations_are_a_remark(tmp_path):
    org = upload(tmp_path)
    shutil.copytree(org, org.with_name("Other"))
    assert any("result_0.txt" in line for line in review([org.parent]).remarks)


@pytest.mark.parametrize(
    ("ruleset", "benchmark", "last"),
    [
        ("6.1.0", "llama31_8b", date(2026, 10, 9)),
        ("5.1.0", "llama31_8b", date(2025, 10, 11)),
        ("5.1.0", "llama31_405b", date(2025, 9, 5)),
        ("5.0.0", "llama31_405b", None),
    ],
)
def test_the_day_on_which_points_are_due(ruleset, benchmark, last):
    assert points.due(benchmark, ruleset, None) == last


def test_every_point_of_a_round_has_an_origin():
    """The package has points of dlrmv4 that the repository's main branch does not have (yet)."""
    unknown = {
        (benchmark, batch)
        for benchmark, said in rcp.reference().items()
        for ruleset in said["rounds"]
        for batch, _ in rcp.table(benchmark, ruleset)
        if points.origin(benchmark, ruleset, batch).since is None
    }
    assert {benchmark for benchmark, _ in unknown} <= {"dlrmv4"}


def test_between_two_points_both_are_named():
    judged = rcp.judge("llama2_70b_lora", "5.1.0", 12, [5000.0] * 10)
    assert [one.batch for one in points.compared("llama2_70b_lora", "5.1.0", judged)] == [8, 16]


def arguments(tmp_path, *trees, **changes):
    whole = {
        "trees": [*trees], "output": tmp_path / "page.html", "csv": None, "ruleset": None, "deadline": None,
    }  # fmt: skip
    return argparse.Namespace(**whole | changes)


def test_page_and_table(tmp_path, capsys):
    org = upload(tmp_path / "<b>", "=Org")
    assert command.run(arguments(tmp_path, org)) in (0, 1)
    page = (tmp_path / "page.html").read_text()
    assert "=Org" in page and "Points of convergence" in page and "<b>/" not in page
    with (tmp_path / "page.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["organisation"] == "'=Org" and float(row["minutes"]) > 0
    assert "1 organisations, 1 folders of runs" in capsys.readouterr().out


def test_a_vanished_entry_ends_with_1(tmp_path, capsys):
    trees = [upload(tmp_path / "a", system="old"), upload(tmp_path / "b")]
    assert command.run(arguments(tmp_path, *trees)) == 1
    assert f"vanished: Example: old/{BENCHMARK}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("trees", "changes", "says"),
    [
        (["none"], {}, "no such folder"),
        (["."], {}, "no folder with results/"),
        (["a/training_results_v5.1"], {"deadline": "soon"}, "not a date"),
        (["a/training_results_v5.1"], {"csv": Path("page.html"), "output": Path("page.html")}, "two names"),
        (["a/training_results_v5.1", "b/training_results_v5.0"], {}, "folders of rounds 5.0.0, 5.1.0"),
    ],
)
def test_wrong_use_is_one_line(tmp_path, monkeypatch, trees, changes, says):
    monkeypatch.chdir(tmp_path)
    upload(tmp_path / "a")
    submission_trees.tree(tmp_path / "b", ruleset="v5.0")
    with pytest.raises(UserError, match=says):
        command.run(arguments(tmp_path, *map(Path, trees), **changes))


def test_links_and_special_files_are_no_uploads(tmp_path):
    org = upload(tmp_path)
    org.with_name("Linked").symlink_to(org)
    _, left_out = uploads.find([org.parent])
    assert [(one.kind, one.name) for one in left_out] == [("left out", "Linked")]
