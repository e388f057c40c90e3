"""Tests that a file of torch.save starts a network that computes torch's logits; needs an interpreter with torch."""

import dataclasses
import functools
import importlib.util
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from common.distributed.replicas.single import Single
from common.layers import batch_norm
from common.layers.precision import precision
from common.train import warm_start
from common.train.state import State
from resnet.presets import PRESETS
from resnet.task import Task

ROOT = pathlib.Path(__file__).resolve().parents[3]
SCRIPT = pathlib.Path(__file__).with_name("torch_resnet50.py")


@functools.cache
def torch_python():
    """This interpreter, TORCH_PYTHON, or the one that `python -m lab.bench.steps --torch` installs."""
    if importlib.util.find_spec("torch"):
        return sys.executable
    for path in (os.environ.get("TORCH_PYTHON"), ROOT / ".cache/torch-venv/bin/python"):
        if not path or not pathlib.Path(path).exists():
            continue
        if not subprocess.run([path, "-c", "import torch, numpy"], capture_output=True).returncode:
            return str(path)
    return None


def logits(folder, side, width):
    """(ours, torch's) logits of the same pictures."""
    base = PRESETS["cpu-tiny"]
    config = dataclasses.replace(base, image_size=side, width=width, num_classes=7, precision="fp32")
    task = Task(config, None)
    state = State(task, Single(), precision("fp32"))
    found = warm_start.start(state, task, folder / "resnet50.pth")
    assert not found.new and not found.left
    batch_norm.merge_moments(state.model, state.replicas)
    images = np.load(folder / "images.npy")
    return state.model(images, training=False).numpy(), np.load(folder / "logits.npy")


@pytest.mark.parametrize(
    "side, width, pool",
    [(65, 16, "torchvision"), (64, 16, "same"), pytest.param(225, 64, "torchvision", marks=pytest.mark.e2e)],
)
def test_a_state_dict_gives_torch_s_logits(tmp_path, side, width, pool):
    """Max pool is MLPerf's: its windows are torchvision's where the first convolution gives an odd side."""
    python = torch_python()
    if python is None:
        pytest.skip("no torch; pip install torch==2.13.0 somewhere, and set TORCH_PYTHON")
    command = [python, SCRIPT, tmp_path, str(side), str(width), pool]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ours, theirs = logits(tmp_path, side, width)
    scale = np.abs(theirs).max()
    print(f"largest difference {np.abs(ours - theirs).max():.2g}, largest logit {scale:.3g}")
    assert theirs.std() > 1e-2
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * max(1, scale))
