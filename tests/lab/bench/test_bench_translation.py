"""Tests the verdicts of the translation comparisons on given seconds, and the measures of bucketing."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from lab.bench import bucketing, lstm, transformer_step
from lab.bench.harness import steps


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a script with given seconds per step for its contenders, and returns what it writes."""

    def run(module, seconds: dict[str, float], *flags: str) -> tuple[dict, list[set[str]]]:
        together = []

        def compare(commands: dict, count: int, rounds: int) -> dict[str, dict]:
            together.append(set(commands))
            return {
                n: {
                    "seconds": seconds[n] * count,
                    "rounds_seconds": [seconds[n] * count] * rounds,
                    "ratio_to_ours": seconds[n] / seconds["ours"],
                }
                for n in commands
            }

        monkeypatch.setattr(steps, "compare", compare)
        output = tmp_path if module is lstm else tmp_path / "result.json"
        monkeypatch.setattr(sys, "argv", ["bench", f"--output={output}", *flags])
        module.main()
        written = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
        return written.get("result", written), together

    return run


TRANSFORMER = {"ours": 2.0, "keras_fit": 2.3, "keras_fused_adam": 2.1, "tf_models": 2.4, "torch": 1.0}


def test_the_verdict_depends_on_the_best_tensorflow_peer_not_on_pytorch(run) -> None:
    found, together = run(transformer_step, TRANSFORMER, f"--torch-python={sys.executable}")
    assert found["missing_peers"] == []
    big, small = found["cases"]["big"], found["cases"]["multi30k"]
    for case in (big, small):
        assert (case["best_tf_peer"], case["meets_bar"], case["torch_over_ours"]) == (
            "keras_fused_adam",
            False,
            0.5,
        )
    assert big["contenders"]["ours"]["target_tokens_per_second"] == pytest.approx(4 * 64 / 2)
    # The large network runs in pairs, each with seconds of ours beside it.
    assert together[:4] == [{"ours", n} for n in ("keras_fit", "keras_fused_adam", "tf_models", "torch")]
    assert big["contenders"]["torch"]["ours_seconds"] == pytest.approx(2.0) and len(together) == 5
    assert big["contenders"]["torch"]["seconds"] == pytest.approx(1.0)


def test_the_verdict_does_not_need_pytorch(run, capsys) -> None:
    found, _ = run(transformer_step, {**TRANSFORMER, "keras_fused_adam": 2.25}, "--cases=multi30k")
    assert found["missing_peers"] == ["torch"] and "left out: torch" in capsys.readouterr().out
    case = found["cases"]["multi30k"]
    assert case["meets_bar"] is True and case["torch_over_ours"] is None


def test_hoisting_is_reported_apart_from_the_peers(run) -> None:
    layer = {"ours": 1.0, "plain": 0.9, "keras": 3.0, "keras_unrolled": 1.2}
    seconds = {**layer, "keras_fit": 1.5, "keras_tuned": 1.0}
    flags = ["--inputs=1024", "--lengths=10", "--cases=full"]
    found, together = run(lstm, seconds, "--batches", "1", "8", *flags)
    layers, network = found["lstm_layer"], found["lstm_gnmt"]
    assert [case["steps"] for case in layers["cases"].values()] == [20, 20]
    assert all(c["best_tf_peer"] == "keras_unrolled" and c["meets_bar"] for c in layers["cases"].values())
    full = network["cases"]["full"]
    assert full["best_tf_peer"] == "keras_tuned" and not full["meets_bar"]
    assert len(layers["hoisting"]["costs"]) == 2 and layers["hoisting"]["pays"] == []
    assert len(network["hoisting"]["costs"]) == 1
    found, _ = run(lstm, {**seconds, "plain": 1.02}, "--batches=1", *flags)
    assert [len(found[part]["hoisting"]["even"]) for part in ("lstm_layer", "lstm_gnmt")] == [1, 1]
    found, _ = run(lstm, {**seconds, "plain": 1.3}, "--batches=1", "--parts=layer", *flags)
    assert found["lstm_layer"]["hoisting"]["pays"] == ["inputs 1024, length 10, batch 1: 1.30x"]


def test_a_plan_of_batches_is_judged_by_its_slowest_replica() -> None:
    lengths = np.array([2, 4, 3])
    one, two = np.array([0, 2]), np.array([1])
    found = bucketing.judge(lengths, [[[(one, 2, 3), (two, 1, 4)]]])
    assert found["padding_share"] == pytest.approx(1 - 9 / 10)
    assert found["imbalance"] == pytest.approx(6 / 5 - 1)
    assert found["cost_per_real_token"] == pytest.approx(12 / 9)
    assert found["every_example_once_an_epoch"] and found["shapes"] == 2
    assert not bucketing.judge(lengths, [[[(one, 2, 3)]]])["every_example_once_an_epoch"]


def test_every_plan_uses_each_example_once_and_ours_has_no_imbalance() -> None:
    lengths = np.random.default_rng(0).integers(1, 41, 150)
    found = bucketing.measure(lengths, bucketing.kinds(lengths, 4)["of equal width"], 16)
    assert all(row["every_example_once_an_epoch"] for row in found["plans"].values())
    assert found["no_imbalance"] and found["plans"]["tf_data"]["imbalance"] > 0
    assert found["plans"]["ours"]["shapes"] <= 4
    assert found["plans"]["tf_data_longest"]["padding_share"] <= found["plans"]["tf_data"]["padding_share"]


def test_limits_of_least_padding_pad_less() -> None:
    lengths = np.minimum(np.random.default_rng(0).integers(1, 100, 600), 40)
    kinds = bucketing.kinds(lengths, 4)
    equal, least = (bucketing.measure(lengths, limits, 16)["plans"]["ours"] for limits in kinds.values())
    assert least["padding_share"] < equal["padding_share"]
