"""Tests the readers of published repositories: folders in, rows out; what is missing is one line, the file stays."""

import csv
import json
import subprocess

import pytest

from common.errors import UserError
from tools import published, published_headers


def test_a_wrong_folder_is_one_line_and_writes_nothing(tmp_path, monkeypatch, capsys):
    output = tmp_path / "headers.json"
    output.write_text("pinned")
    monkeypatch.setattr(published_headers, "OUTPUT", output)
    assert published_headers.main([str(tmp_path), str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path}: no ") and error.count("\n") == 1
    assert output.read_text() == "pinned"
    assert published_headers.main([str(tmp_path)]) == 2 and output.read_text() == "pinned"


def test_a_script_may_be_absent_a_log_may_not(monkeypatch):
    log = ':::MLLOG {"key": "seed_of", "value": 1}\n'
    monkeypatch.setattr(published_headers, "show", lambda _, path: log if path.endswith(".txt") else "")
    row = published_headers.headers({"0.6": "a", "0.7": "b"})["resnet/v100-8"]
    assert row["values"] == {"seed_of": 1} and row["flags"] == {}
    monkeypatch.setattr(published_headers, "show", lambda _, path: "")
    with pytest.raises(UserError, match="name a clone of mlcommons/training_results_v0"):
        published_headers.headers({"0.6": "a", "0.7": "b"})


@pytest.fixture
def target(tmp_path, monkeypatch):
    """The file that every table goes to, in a folder that has no round yet."""
    path = tmp_path / "table.csv"
    tables = {name: (make, path, fields) for name, (make, _, fields) in published.TABLES.items()}
    monkeypatch.setattr(published, "TABLES", tables)
    return path


def row_of(name, target):
    """The one row of a table, made from the folder's rounds."""
    for round_ in published.ROUNDS[name]:
        (target.parent / round_).mkdir(exist_ok=True)
    assert published.main([name, str(target.parent)]) == 0
    with target.open() as lines:
        (row,) = csv.DictReader(lines)
    return row


def test_a_description_is_a_row_and_no_json_is_counted(tmp_path, target, capsys):
    folder = tmp_path / "v1.0/Org/systems"
    folder.mkdir(parents=True)
    (folder / "box.json").write_text(
        json.dumps({"accelerator_model_name": "Chip\n 1", "number_of_nodes": 2, "framework": "left out"})
    )
    (folder / "broken.json").write_text("{,}")
    row = row_of("systems", target)
    assert "1 rows; left out: 1 no JSON objects" in capsys.readouterr().out
    assert (row["round"], row["org"], row["system"]) == ("v1.0", "Org", "box")
    assert (row["accelerator_model_name"], row["number_of_nodes"]) == ("Chip 1", "2")
    assert "framework" not in row


def log(path, watts):
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [{"key": "power_measurement_start", "value": None}]
    records += [{"key": "power_reading", "value": value} for value in watts]
    path.write_text("".join(f":::MLLOG {json.dumps(record)}\n" for record in records) + "noise\n")


def test_watts_are_the_sum_of_nodes_while_they_are_busy(tmp_path, target):
    runs = tmp_path / "v4.1/Org/results/box/bert/power"
    for run, high in (("result_0", 1000.0), ("result_1", 1200.0), ("result_2", 1100.0)):
        log(runs / run / "node_0.txt", [100.0, high, high, 100.0])  # Idle before and after.
        log(runs / run / "node_1.txt", [high + 100, high - 100])
        log(runs / run / "sw_0.txt", [50.0])
    log(runs / "result_3/node_0.txt", [5000.0])  # Its other node is missing.
    row = row_of("power", target)
    assert (row["nodes"], row["node_watts"], row["switch_watts"]) == ("2", "2200", "50")


def test_a_point_has_the_day_on_which_it_first_came(tmp_path, target, monkeypatch):
    def git(*words):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)

    who = ("-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false")
    git("init", "-q")
    git(*who, "commit", "--allow-empty", "-qm", "x")
    point = {"BS": 256, "Creator": "Org", "Epochs to converge": [2, 3]}
    path = tmp_path / "mlperf_logging/rcp_checker/training_1.0.0/rcps_bert.json"
    path.parent.mkdir(parents=True)
    for day, content in (
        ("2021-05-01", {"a": point, "template": {"BS": 0}}),
        ("2021-06-01", {"renamed": point, "b": point | {"BS": 512}}),
    ):
        path.write_text(json.dumps(content))
        git("add", ".")
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"{day}T12:00:00Z")
        git(*who, "commit", "-qm", "x")
    assert published.main(["points", str(tmp_path)]) == 0
    with target.open() as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["batch"], row["sum"], row["name"], row["since"]) for row in rows] == [
        ("256", "5", "a", "2021-05-01"),
        ("512", "5", "b", "2021-06-01"),
    ]
    assert rows[0]["creator"] == "Org" and rows[0]["benchmark"] == "bert"


def test_points_need_a_clone(tmp_path, target, capsys):
    assert published.main(["points", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.endswith("none: no git repository; name a clone of mlcommons/logging\n")


@pytest.mark.parametrize("name", published.ROUNDS)
def test_a_missing_round_is_one_line_and_writes_nothing(name, tmp_path, target, capsys):
    assert published.main([name, str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path / published.ROUNDS[name][0]}: no such folder")
    assert error.count("\n") == 1 and not target.exists()
