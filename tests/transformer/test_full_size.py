"""Tests the full-size network: its published size, and a step on synthetic data in every precision."""

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
    "--config.accumulation_steps=1",
    "--config.global_batch_size=2",
    "--config.eval_batch_size=2",
]


def output(*flags: str) -> dict:
    command = [sys.executable, "-m", "transformer", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout[done.stdout.index("{") :])


@pytest.mark.e2e
def test_parameters_are_the_published() -> None:
    told = output("--describe", "--system=tpu-v3-2048")
    assert told["parameters"] == 210_804_736  # 210.8 M (docs/sources.md, mlperf 2).
    assert told["quality_target"] == 25.0 and told["train_steps"] == 1897


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("system", "flags"),
    [
        ("tpu-v3-2048", []),  # bf16
        ("tpu-v3-32", ["--config.precision=fp32"]),
        ("v100-8", []),  # fp16 with a loss scale
    ],
)
def test_takes_a_step(system: str, flags: list[str]) -> None:
    loss = output(f"--system={system}", "--dry_run", *SINGLE, *flags)["loss"]
    # Cross-entropy over 33,708 subwords starts near log(33708) = 10.4, less the smoothed targets' entropy of 1.4.
    assert math.isfinite(loss) and 7 < loss < 12
