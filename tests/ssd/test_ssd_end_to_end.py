"""Tests SSD's cpu-tiny through run_and_time.sh: target and log; a model with shifted anchors misses."""

import pathlib

import pytest

from tests.benchmarks import assert_reaches_its_target, log_name, missed, records, runner

LOG, run = log_name("ssd"), runner("ssd", timeout=3600)


@pytest.mark.e2e
def test_reaches_its_target_with_a_log_that_passes(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    _, last = assert_reaches_its_target(run, LOG, data_dir, tmp_path)
    assert last["eval_accuracy"]["value"] >= 0.23


@pytest.mark.e2e
def test_anchors_shifted_by_one_cell_miss_the_target(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    accuracies = missed(run, LOG, data_dir, tmp_path, "--config.anchor_shift=1")
    assert len(accuracies) > 3 and max(accuracies) < 0.15


def test_a_short_run_evaluates_every_image_once(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Runs the whole path, with evaluation in its worker: 4 steps, aborted below the target."""
    flags = ["--config.train_steps=4", "--config.first_block_steps=4", "--config.width=4"]
    missed(run, LOG, data_dir, tmp_path, *flags)
    accuracies = [r for r in records(tmp_path / LOG) if r["key"] == "eval_accuracy"]
    assert len(accuracies) == 1 and 0 <= accuracies[0]["value"] < 0.23
    assert {"AP50", "AP75", "AP_small"} <= set(accuracies[0]["metadata"])
