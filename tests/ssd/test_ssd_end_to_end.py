"""cpu-tiny through run_and_time.sh: target and log; a model with shifted anchors misses."""

from __future__ import annotations

import pathlib

import pytest

from tests.benchmarks import log_name, records, runner, stock_findings, values

LOG, run = log_name("ssd"), runner("ssd", timeout=3600)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.mark.e2e
def test_reaches_its_target_with_a_log_that_passes(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = run(data_dir, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert stock_findings(tmp_path / LOG) == []
    last = {r["key"]: r for r in records(tmp_path / LOG)}
    assert last["run_stop"]["metadata"]["status"] == "success"
    assert last["eval_accuracy"]["value"] >= 0.23
    assert last["smoke_run"]["value"] is True and last["submission_division"]["value"] == "open"


@pytest.mark.e2e
def test_anchors_shifted_by_one_cell_miss_the_target(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = run(data_dir, tmp_path, "--config.anchor_shift=1")
    assert done.returncode == 1, done.stdout + done.stderr
    accuracies = values(tmp_path / LOG, "eval_accuracy")
    assert len(accuracies) > 3 and max(accuracies) < 0.15


def test_a_short_run_evaluates_every_image_once(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The whole path, evaluation in its worker included: 4 steps, aborted below the target."""
    flags = ["--config.train_steps=4", "--config.first_block_steps=4", "--config.width=4"]
    done = run(data_dir, tmp_path, *flags)
    assert done.returncode == 1, done.stdout + done.stderr
    accuracies = [r for r in records(tmp_path / LOG) if r["key"] == "eval_accuracy"]
    assert len(accuracies) == 1 and 0 <= accuracies[0]["value"] < 0.23
    assert {"AP50", "AP75", "AP_small"} <= set(accuracies[0]["metadata"])
