"""Tests the full-size network: its published size, and a step of every bucket in every precision."""

import json
import math
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# One replica, small batches and a short search, because a beam of five at full width is slow on a CPU.
SINGLE = {
    "replicas": "single", "num_replicas": 1, "global_batch_size": 2, "eval_batch_size": 1, "division": "open",
}  # fmt: skip
STEP_EACH = """
import dataclasses, json, sys
from common.distributed import replicas
from common.train.programs import Programs
from gnmt.presets import PRESETS
from gnmt.task import Task

system, changes, search = json.loads(sys.argv[1])
config = PRESETS[system]
config = dataclasses.replace(config, **changes, decode=dataclasses.replace(config.decode, **search))
config.validate()
task = Task(config, None)
loop = Programs(task, replicas.make(config))
result = loop.call(loop.synthetic(True), loop.synthetic(False), len(config.bucket_limits), 1)
shapes = [b["source"].shape[1] for b in task.synthetic_input(1).take(len(config.bucket_limits))]
print(json.dumps({"losses": result.losses.tolist(), "lengths": shapes, "complete": result.complete}))
"""


def output(*command: str) -> dict:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout[done.stdout.index("{") :])


@pytest.mark.e2e
@pytest.mark.parametrize(("system", "parameters"), [("tpu-v3-1024", 164_788_225), ("v100-8", 160_626_237)])
def test_parameters_are_the_published(system: str, parameters: int) -> None:
    """164.8 M (docs/sources.md, mlperf 2); the reference's wiring has 4.2 M less, and a bias."""
    answer = output("-m", "gnmt", "--describe", f"--system={system}")
    assert answer["parameters"] == parameters
    if system == "tpu-v3-1024":
        assert answer["quality_target"] == 24.0 and answer["train_steps"] == 4200
        n, v = 1024, 32316
        per_token = 4 * 8 * n * n + 12 * n * n + 4 * 12 * n * n + 2 * n * n + 48 * n + n * v
        assert answer["forward_macs_per_example"] == 48 * per_token


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("system", "changes"),
    [
        ("tpu-v3-1024", {}),  # bf16, Google's wiring
        ("v100-8", {"precision": "fp32", "loss_scale": 1.0}),  # the reference's
        ("v100-8", {"bucket_limits": [6], "max_sequence_length": 6}),  # fp16, which a CPU computes slowly
    ],
)
def test_takes_a_step_of_every_bucket(system: str, changes: dict) -> None:
    search = {"target_length": 2}
    answer = output("-c", STEP_EACH, json.dumps([system, SINGLE | changes, search]))
    assert answer["complete"] and len(answer["losses"]) == len(answer["lengths"])
    # Cross-entropy over 32,316 tokens starts near log(32316) = 10.4, for every token of a sentence.
    for loss, length in zip(answer["losses"], answer["lengths"]):
        assert math.isfinite(loss) and 8 < loss / length < 13
