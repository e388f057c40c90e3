"""Tests cpu-tiny through run_and_time.sh: target and log; broken models miss the target."""

import pathlib

import pytest

from tests.benchmarks import assert_reaches_its_target, log_name, missed, runner, untimed_misses

LOG, run = log_name("gnmt"), runner("gnmt", timeout=1800)


@pytest.mark.e2e
def test_reaches_its_target_with_a_log_that_passes(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    printed, last = assert_reaches_its_target(run, LOG, data_dir, tmp_path)
    assert 0.24 <= last["eval_accuracy"]["value"] < 1
    assert "verdict  passes" in printed


@pytest.mark.e2e
def test_equal_seeds_give_equal_logs(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The runs miss their target: they say so, and their logs break no other rule."""
    short = ["--config.train_steps=4", "--config.steps_per_block=4", "--config.width=16"]
    short += ["--config.bucket_limits=36"]
    short += ["--config.decode.beam_size=1", "--config.decode.target_length=4"]
    logs = untimed_misses(run, LOG, data_dir, tmp_path, {"a": 3, "b": 3}, *short)
    assert logs["a"] == logs["b"]


@pytest.mark.e2e
@pytest.mark.parametrize("fault", ["attend", "shift_targets"])
def test_a_broken_model_misses_the_target(data_dir: pathlib.Path, tmp_path: pathlib.Path, fault: str) -> None:
    assert max(missed(run, LOG, data_dir, tmp_path, f"--config.{fault}=false")) < 0.24
