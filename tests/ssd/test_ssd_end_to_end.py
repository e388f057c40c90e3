"""cpu-tiny through run_and_time.sh: target and log; a model with shifted anchors misses."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
from mlperf_logging.compliance_checker import mlp_compliance

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOG = "cpu-tiny/ssd/result_0.txt"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("tiny")


def run(data_dir: pathlib.Path, results: pathlib.Path, *flags: str) -> subprocess.CompletedProcess:
    environment = {
        **os.environ,
        "SYSTEM": "cpu-tiny",
        "DATA_DIR": str(data_dir),
        "RESULT_DIR": str(results),
        "PYTHON": sys.executable,
    }
    command = [str(ROOT / "ssd" / "run_and_time.sh"), *flags]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600, check=False)


def records(log: pathlib.Path) -> list[dict]:
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in log.read_text().splitlines()]


@pytest.mark.e2e
def test_reaches_its_target_with_a_log_that_passes(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = run(data_dir, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    mlp_compliance.enqueued_configs.clear()
    checker = mlp_compliance.make_checker("training", "0.7.0", quiet=False, werror=True)
    checker.check_file(str(tmp_path / LOG), "training_0.7.0/common.yaml")
    assert [*checker.overwritable, *checker.not_overwritable] == []
    values = {r["key"]: r for r in records(tmp_path / LOG)}
    assert values["run_stop"]["metadata"]["status"] == "success"
    assert values["eval_accuracy"]["value"] >= 0.23
    assert values["smoke_run"]["value"] is True and values["submission_division"]["value"] == "open"


@pytest.mark.e2e
def test_anchors_shifted_by_one_cell_miss_the_target(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = run(data_dir, tmp_path, "--config.anchor_shift=1")
    assert done.returncode == 1, done.stdout + done.stderr
    accuracies = [r["value"] for r in records(tmp_path / LOG) if r["key"] == "eval_accuracy"]
    assert len(accuracies) > 3 and max(accuracies) < 0.15


def test_a_short_run_evaluates_every_image_once(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The whole path, evaluation in its worker included: 4 steps, aborted below the target."""
    flags = ["--config.train_steps=4", "--config.first_block_steps=4", "--config.width=4"]
    done = run(data_dir, tmp_path, *flags)
    assert done.returncode == 1, done.stdout + done.stderr
    accuracies = [r for r in records(tmp_path / LOG) if r["key"] == "eval_accuracy"]
    assert len(accuracies) == 1 and 0 <= accuracies[0]["value"] < 0.23
    assert {"AP50", "AP75", "AP_small"} <= set(accuracies[0]["metadata"])
