"""Tests a step of the full-size network on one synthetic image of each orientation, within 24 GiB."""

import json
import math
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Runs in its own process, whose peak memory is this step's; Linux reports kilobytes.
STEPS = """
import dataclasses, json, resource, time
import tensorflow as tf
from common.config.clock import Clock
from common.layers.precision import precision
from common.distributed.replicas.single import Single
from common.train.step import State, make_train_step
from maskrcnn.presets import PRESETS
from maskrcnn.task import Task

config = dataclasses.replace(
    PRESETS["tpu-v4-128"], replicas="single", num_replicas=1, partitions=1, precision="fp32", global_batch_size=1,
    eval_batch_size=1,
)
task = Task(config, None)
state = State(task, Single(), precision("fp32"))
step = make_train_step(task, state, Clock.of(config))
for batch, shape in zip(task.synthetic_input(1), config.shapes):
    batch = {name: tf.constant(x.numpy()) for name, x in batch.items()}
    assert tuple(batch["image"].shape) == (1, *shape, 3)
    train = tf.function(lambda number, batch=batch: step(batch, number), autograph=False)
    detect = tf.function(lambda batch=batch: task.evaluate(state.model, batch).arrays, autograph=False)
    seconds, losses = [], []
    for number in range(2):
        began = time.perf_counter()
        losses.append(float(train(tf.constant(number, tf.int64))))
        seconds.append(time.perf_counter() - began)
    began = time.perf_counter()
    found = {name: list(x.shape) for name, x in detect().items()}
    print(json.dumps({
        "shape": shape, "losses": losses, "seconds": seconds, "detection_seconds": time.perf_counter() - began,
        "masks": found["masks"], "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }))
"""


@pytest.mark.e2e
def test_takes_a_step_in_each_orientation() -> None:
    command = [sys.executable, "-c", STEPS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    print(*lines, sep="\n")
    assert [line["shape"] for line in lines] == [[832, 1344], [1344, 832]]
    for line in lines:
        # The first loss is at least ln 91 = 4.5 for the classes and ln 2 for the objects; it may be larger, because
        # batch norm that is frozen before training lets activations grow.
        assert all(map(math.isfinite, line["losses"])) and line["losses"][0] > 3
        assert line["masks"] == [1, 100, 28, 28]
        assert line["peak"] < 24 * 2**20
