"""Tests the tables of published descriptions and of published power: made folders in, rows out."""

import csv
import json

import pytest

from tools import published_power, published_systems


def rows(path):
    with path.open() as lines:
        return list(csv.DictReader(lines))


def test_a_description_is_a_row_and_no_json_is_counted(tmp_path, monkeypatch, capsys):
    target = tmp_path / "table.csv"
    monkeypatch.setattr(published_systems, "TARGET", target)
    for name in published_systems.ROUNDS:
        (tmp_path / name).mkdir()
    folder = tmp_path / "v1.0/Org/systems"
    folder.mkdir(parents=True)
    (folder / "box.json").write_text(
        json.dumps({"accelerator_model_name": "Chip\n 1", "number_of_nodes": 2, "framework": "left out"})
    )
    (folder / "broken.json").write_text("{,}")
    assert published_systems.main([str(tmp_path)]) == 0
    assert "1 descriptions; no JSON objects: 1" in capsys.readouterr().out
    (row,) = rows(target)
    assert (row["round"], row["org"], row["system"]) == ("v1.0", "Org", "box")
    assert (row["accelerator_model_name"], row["number_of_nodes"]) == ("Chip 1", "2")
    assert "framework" not in row


def log(path, watts):
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [{"key": "power_measurement_start", "value": None}]
    records += [{"key": "power_reading", "value": value} for value in watts]
    path.write_text("".join(f":::MLLOG {json.dumps(record)}\n" for record in records) + "noise\n")


def test_watts_are_the_sum_of_nodes_while_they_are_busy(tmp_path, monkeypatch):
    target = tmp_path / "power.csv"
    monkeypatch.setattr(published_power, "TARGET", target)
    for name in published_power.ROUNDS:
        (tmp_path / name).mkdir()
    runs = tmp_path / "v4.1/Org/results/box/bert/power"
    for run, high in (("result_0", 1000.0), ("result_1", 1200.0), ("result_2", 1100.0)):
        log(runs / run / "node_0.txt", [100.0, high, high, 100.0])  # Idle before and after.
        log(runs / run / "node_1.txt", [high + 100, high - 100])
        log(runs / run / "sw_0.txt", [50.0])
    log(runs / "result_3/node_0.txt", [5000.0])  # Its other node is missing.
    assert published_power.main([str(tmp_path)]) == 0
    (row,) = rows(target)
    assert (row["nodes"], row["node_watts"], row["switch_watts"]) == ("2", "2200", "50")


@pytest.mark.parametrize("tool", [published_power, published_systems])
def test_a_missing_round_is_one_line(tool, tmp_path, capsys):
    assert tool.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
