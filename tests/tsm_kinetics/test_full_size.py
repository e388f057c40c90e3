"""Tests that every full-size network builds, traces, takes a step on synthetic data, and is described without data."""

import json
import math
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SINGLE = [
    "--config.replicas=single",
    "--config.num_replicas=1",
    "--config.global_batch_size=1",
    "--config.eval_batch_size=1",
]


def called(*flags: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "tsm_kinetics", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["tsm", "tsn", "i3d_3x3x3", "i3d_3x1x1"])
def test_takes_a_step(name: str) -> None:
    flags = [*SINGLE, f"--config.model={name}", "--config.data.eval_clips=1", "--config.data.eval_size=224"]
    done = called("--system=summit-1", "--dry_run", *flags)
    assert done.returncode == 0, done.stderr
    loss = json.loads(done.stdout.splitlines()[-1])["loss"]
    # Softmax over 400 classes starts near log(400) = 6.0.
    assert math.isfinite(loss) and 4 < loss < 9


@pytest.mark.e2e
def test_takes_an_accumulated_step() -> None:
    flags = [
        *SINGLE,
        "--config.global_batch_size=2",
        "--config.accumulation_steps=2",
        "--config.image_size=112",
    ]
    done = called("--system=summit-256-batch-24576", "--dry_run", *flags)
    assert done.returncode == 0, done.stderr


def test_describes_itself_without_data() -> None:
    done = called("--system=summit-256", "--describe", "--config.model=i3d_3x3x3")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["model"], told["parameters"]) == ("i3d_3x3x3", 47_018_576)
    assert told["forward_macs_per_example"] == pytest.approx(40e9, rel=0.01)
    assert (told["global_batch_size"], told["steps_per_epoch"], told["train_steps"]) == (12288, 20, 1957)
    assert told["quality_target"] == 0.74
