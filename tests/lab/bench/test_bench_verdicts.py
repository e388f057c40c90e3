"""Tests the verdicts of the comparisons when a contender is missing."""

from __future__ import annotations

import json
import pathlib
import sys

import numpy as np
import pytest
import tensorflow as tf

from lab.bench import detection, lstm_small, mnist_mlp


def rows(**ratios: float) -> dict[str, dict]:
    return {name: {"seconds": 1.0 * r, "ratio_to_ours": r} for name, r in {"ours": 1.0, **ratios}.items()}


def run(module, monkeypatch, folder: pathlib.Path, measured: dict, *flags: str) -> dict:
    """Runs a script on given measurements of its contenders, and returns what it writes."""
    monkeypatch.setattr(module, "compare", lambda commands, *_: {n: dict(measured[n]) for n in commands})
    output = folder / "result.json"
    monkeypatch.setattr(sys, "argv", ["bench", f"--output={output}", *flags])
    module.main()
    return json.loads(output.read_text())


def test_the_perceptron_has_no_verdict_without_a_peer(monkeypatch, tmp_path, capsys) -> None:
    module = mnist_mlp
    measured = rows(ours_unfolded=1, keras_fit=2.0, torch=0.9, jax=1.5)
    found = run(module, monkeypatch, tmp_path, measured, "--layers=1", f"--torch-python={sys.executable}")
    assert found["missing_peers"] == ["jax"]
    assert found["layers"]["1"]["meets_bar"] is found["layers"]["1"]["fastest_peer_over_ours"] is None
    said = capsys.readouterr().out
    assert "left out: jax (give --jax-python)" in said and "; no verdict" in said
    both = [f"--torch-python={sys.executable}", f"--jax-python={sys.executable}"]
    found = run(module, monkeypatch, tmp_path, measured, "--layers", "4", "5", *both)
    assert found["missing_peers"] == [] and found["layers"]["4"]["fastest_peer_over_ours"] == 0.9
    assert found["layers"]["4"]["meets_bar"] is False and found["layers"]["5"]["meets_bar"] is None
    found = run(module, monkeypatch, tmp_path, {**measured, **rows(torch=0.96)}, "--layers=4", *both)
    assert found["layers"]["4"]["meets_bar"] is True


def test_the_lstms_have_no_verdict_without_pytorch(monkeypatch, tmp_path, capsys) -> None:
    module = lstm_small
    measured = rows(ours_unfolded=1.1, keras_fit=1.2, torch=0.9)
    found = run(module, monkeypatch, tmp_path, measured)
    assert found["missing_peers"] == ["torch"] and found["meets_bars"] == {"mnist": None, "ptb": None}
    assert "left out: torch" in capsys.readouterr().out
    found = run(module, monkeypatch, tmp_path, measured, f"--torch-python={sys.executable}")
    assert found["meets_bars"] == {"mnist": False, "ptb": False}


def cannot() -> tf.Tensor:
    raise tf.errors.InvalidArgumentError(None, None, "no XLA kernel")


@pytest.fixture
def measured(monkeypatch):
    monkeypatch.setattr(detection, "SECONDS", 0.0)
    contenders, check = detection.topk_case()

    def measure(**others) -> dict:
        monkeypatch.setitem(detection.CASES, "topk", lambda: ({**contenders, **others}, check))
        return detection.measure("topk", 2, jit=False)

    return measure


def test_contenders_are_compared_although_one_cannot_compile(measured) -> None:
    found = measured(top_k=cannot)
    assert found["cannot"] == {"top_k": "InvalidArgumentError"} and set(found["contenders"]) == {
        "ours",
        "argsort",
    }
    assert found["contenders"]["argsort"]["ratio_to_ours"] > 0
    wrong = lambda: tf.zeros([32, 8732], tf.bool)  # noqa: E731
    with pytest.raises(AssertionError):
        measured(top_k=cannot, argsort=wrong)
    with pytest.raises(AssertionError):
        measured(ours=cannot, argsort=wrong)


def test_without_ours_there_is_no_ratio(measured) -> None:
    found = measured(ours=cannot)
    assert [row["ratio_to_ours"] for row in found["contenders"].values()] == [None, None]
    assert np.isfinite([row["seconds"] for row in found["contenders"].values()]).all()
    assert measured(ours=cannot, top_k=cannot, argsort=cannot)["contenders"] == {}
