"""Tests that tools/published_scores.py says in one line what is missing."""

from tools import published_scores


def test_a_missing_round_is_one_line_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(published_scores, "TARGET", tmp_path / "scores.csv")
    assert published_scores.main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path / 'v1.0'}: no such folder") and error.count("\n") == 1
    assert not (tmp_path / "scores.csv").exists()
