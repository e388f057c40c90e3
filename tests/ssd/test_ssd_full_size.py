"""Tests that the full-size network builds, traces and takes a step of 8 synthetic images of 300 pixels."""

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
    "--config.partitions=1",
    "--config.global_batch_size=8",
    "--config.eval_batch_size=8",
    "--config.batch_norm_span=8",
]


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("system", "flags"),
    [
        ("tpu-v3-2048", ["--config.precision=fp32"]),  # space-to-depth
        ("tpu-v4-128", ["--config.batch_norm_span=2"]),  # bf16, virtual groups
        # fp32 in place of fp16, in which one image took more than five minutes on a busy CPU.
        ("v100-8", ["--config.precision=fp32"]),
    ],
)
def test_takes_a_step(system: str, flags: list[str]) -> None:
    command = [sys.executable, "-m", "ssd", f"--system={system}", "--dry_run", *SINGLE, *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    # Softmax over 81 classes starts near ln 81 = 4.4, of four anchors for each positive one, and the boxes.
    loss = json.loads(done.stdout.splitlines()[-1])["loss"]
    assert math.isfinite(loss) and 10 < loss < 200
