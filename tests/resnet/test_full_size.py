"""Tests that every distinct full-size network builds, traces and takes a step on synthetic data."""

import json
import math
import pathlib
import subprocess
import sys

import pytest

from common.train.describe import describe
from resnet import large_batch_presets
from resnet.presets import PRESETS, hyperparameters
from resnet.task import Task

ROOT = pathlib.Path(__file__).resolve().parents[2]
SINGLE = [
    "--config.replicas=single",
    "--config.num_replicas=1",
    "--config.global_batch_size=4",
    "--config.eval_batch_size=4",
    "--config.batch_norm_span=4",
]


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("system", "flags"),
    [
        ("tpu-v3-2048", []),
        ("tpu-v3-8192", []),  # space-to-depth, unscaled LARS
        ("v100-8", []),  # fp16 with a loss scale, he_normal, no zero gamma
        ("tpu-v3-32", ["--config.precision=fp32"]),
        ("tpu-v4-128", ["--config.batch_norm_span=2"]),  # virtual groups
        ("cpu-cluster-1024-alexnet", []),
    ],
)
def test_takes_a_step(system: str, flags: list[str]) -> None:
    command = [sys.executable, "-m", "resnet", f"--system={system}", "--dry_run", *SINGLE, *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    loss = json.loads(done.stdout.splitlines()[-1])["loss"]
    # Softmax over 1,000 classes starts near log(1000) = 6.9.
    assert math.isfinite(loss) and 5 < loss < 10


@pytest.mark.e2e
@pytest.mark.parametrize("system", list(large_batch_presets.PRESETS))
def test_presets_of_the_large_batch_papers_build(system: str) -> None:
    config = PRESETS[system]
    said = describe(Task(config, None), hyperparameters(config))
    assert said["parameters"] == (60_965_224 if config.model == "alexnet_bn" else 25_557_032)
    assert said["global_batch_size"] == config.global_batch_size
    assert said["train_steps"] == config.train_steps or config.train_epochs == 90
