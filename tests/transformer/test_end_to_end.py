"""Tests the Transformer's cpu-tiny through run_and_time.sh: target and log; broken models miss."""

import pathlib

import pytest

from tests.benchmarks import assert_reaches_its_target, log_name, missed, runner, untimed_misses

LOG, run = log_name("transformer"), runner("transformer", timeout=1800)


@pytest.mark.e2e
def test_reaches_its_target_with_a_log_that_passes(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    printed, last = assert_reaches_its_target(run, LOG, data_dir, tmp_path)
    assert 0.25 <= last["eval_accuracy"]["value"] < 1
    assert "verdict  passes" in printed


def test_equal_seeds_give_equal_logs(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The runs miss their target: they say so, and their logs break no other rule."""
    short = ["--config.train_steps=4", "--config.steps_per_block=4", "--config.layers=1"]
    short += ["--config.decode.beam_size=1", "--config.decode.extra_length=0", "--config.eval_batch_size=200"]
    logs = untimed_misses(run, LOG, data_dir, tmp_path, {"a": 3, "b": 3}, *short)
    assert logs["a"] == logs["b"]


@pytest.mark.e2e
@pytest.mark.parametrize("fault", ["positions", "attend_source", "shift_targets"])
def test_a_broken_model_misses_the_target(data_dir: pathlib.Path, tmp_path: pathlib.Path, fault: str) -> None:
    assert max(missed(run, LOG, data_dir, tmp_path, f"--config.{fault}=false")) < 0.25
