"""Tests that readers of published logs and scores say in one line what is missing, and leave their file as it was."""

import pytest

from common.errors import UserError
from tools import published_headers, published_scores


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
    found = published_headers.headers({"0.6": "a", "0.7": "b"})["resnet/v100-8"]
    assert found["values"] == {"seed_of": 1} and found["flags"] == {}
    monkeypatch.setattr(published_headers, "show", lambda _, path: "")
    with pytest.raises(UserError, match="name a clone of mlcommons/training_results_v0"):
        published_headers.headers({"0.6": "a", "0.7": "b"})


def test_a_missing_round_is_one_line_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(published_scores, "TARGET", tmp_path / "scores.csv")
    assert published_scores.main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path / 'v1.0'}: no such folder") and error.count("\n") == 1
    assert not (tmp_path / "scores.csv").exists()
