"""Tests that every distinct full-size network builds, traces and takes a step on synthetic data of finite loss."""

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

ROOT = pathlib.Path(__file__).resolve().parents[1]
SINGLE = ["--config.replicas=single", "--config.num_replicas=1"]
FP32 = "--config.precision=fp32"
WHOLE = "--config.partitions=1"
CLIP = ["--config.data.eval_clips=1", "--config.data.eval_size=224"]


def batch(size: int) -> list[str]:
    return [f"--config.global_batch_size={size}", f"--config.eval_batch_size={size}"]


def output(benchmark: str, *flags: str) -> dict:
    """Returns the JSON that `python -m BENCHMARK` prints last."""
    command = [sys.executable, "-m", benchmark, *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads("{" + done.stdout.partition("{")[2])


# The flags that a step of each benchmark takes, and the bounds of its first loss.
STEPS_OF = {
    # Softmax over 1,000 classes starts near log(1000) = 6.9.
    "resnet": ([*batch(4), "--config.batch_norm_span=4"], 5, 10),
    # Softmax over 81 classes starts near ln 81 = 4.4, of four anchors for each positive one, and the boxes.
    "ssd": ([*batch(8), WHOLE, "--config.batch_norm_span=8"], 10, 200),
    # Cross-entropy over 33,708 subwords starts near log(33708) = 10.4, less the smoothed targets' entropy of 1.4.
    "transformer": ([*batch(2), "--config.accumulation_steps=1"], 7, 12),
    # Softmax over 400 classes starts near log(400) = 6.0.
    "tsm_kinetics": (batch(1), 4, 9),
}


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("benchmark", "system", "flags"),
    [
        ("resnet", "tpu-v3-2048", []),
        ("resnet", "tpu-v3-8192", []),  # space-to-depth, unscaled LARS
        ("resnet", "v100-8", []),  # fp16 with a loss scale, he_normal, no zero gamma
        ("resnet", "tpu-v3-32", [FP32]),
        ("resnet", "tpu-v4-128", ["--config.batch_norm_span=2"]),  # virtual groups
        ("resnet", "cpu-cluster-1024-alexnet", []),
        ("ssd", "tpu-v3-2048", [FP32]),  # space-to-depth
        ("ssd", "tpu-v4-128", ["--config.batch_norm_span=2"]),  # bf16, virtual groups
        # fp32 in place of fp16, in which one image took more than five minutes on a busy CPU.
        ("ssd", "v100-8", [FP32]),
        ("transformer", "tpu-v3-2048", []),  # bf16
        ("transformer", "tpu-v3-32", [FP32]),
        ("transformer", "v100-8", []),  # fp16 with a loss scale
        ("tsm_kinetics", "summit-1", ["--config.model=tsm", *CLIP]),
        ("tsm_kinetics", "summit-1", ["--config.model=tsn", *CLIP]),
        ("tsm_kinetics", "summit-1", ["--config.model=i3d_3x3x3", *CLIP]),
        ("tsm_kinetics", "summit-1", ["--config.model=i3d_3x1x1", *CLIP]),
        (
            "tsm_kinetics", "summit-256-batch-24576",
            ["--config.global_batch_size=2", "--config.accumulation_steps=2", "--config.image_size=112"],
        ),
    ],
)  # fmt: skip
def test_takes_a_step(benchmark: str, system: str, flags: list[str]) -> None:
    always, low, high = STEPS_OF[benchmark]
    loss = output(benchmark, f"--system={system}", "--dry_run", *SINGLE, *always, *flags)["loss"]
    assert math.isfinite(loss) and low < loss < high


@pytest.mark.e2e
@pytest.mark.parametrize("system", list(large_batch_presets.PRESETS))
def test_presets_of_the_large_batch_papers_build(system: str) -> None:
    config = PRESETS[system]
    facts = describe(Task(config, None), hyperparameters(config))
    assert facts["parameters"] == (60_965_224 if config.model == "alexnet_bn" else 25_557_032)
    assert facts["global_batch_size"] == config.global_batch_size
    assert facts["train_steps"] == config.train_steps or config.train_epochs == 90


@pytest.mark.e2e
def test_the_transformer_has_the_published_parameters() -> None:
    facts = output("transformer", "--describe", "--system=tpu-v3-2048")
    assert facts["parameters"] == 210_804_736  # 210.8 M (docs/sources.md, mlperf 2).
    assert facts["quality_target"] == 25.0 and facts["train_steps"] == 1897


def test_tsm_describes_itself_without_data() -> None:
    facts = output("tsm_kinetics", "--system=summit-256", "--describe", "--config.model=i3d_3x3x3")
    assert (facts["model"], facts["parameters"]) == ("i3d_3x3x3", 47_018_576)
    assert facts["forward_macs_per_example"] == pytest.approx(40e9, rel=0.01)
    assert (facts["global_batch_size"], facts["steps_per_epoch"], facts["train_steps"]) == (12288, 20, 1957)
    assert facts["quality_target"] == 0.74


# Runs in its own process, whose peak memory is this step's; Linux reports kilobytes.
STEPS = """
import dataclasses, json, resource, time
import tensorflow as tf
from common.config.run_length import RunLength
from common.layers.precision import precision
from common.distributed.replicas.single import Single
from common.train.state import State
from common.train.step import make_train_step
from maskrcnn.presets import PRESETS
from maskrcnn.task import Task

config = dataclasses.replace(
    PRESETS["tpu-v4-128"], replicas="single", num_replicas=1, partitions=1, precision="fp32", global_batch_size=1,
    eval_batch_size=1,
)
task = Task(config, None)
state = State(task, Single(), precision("fp32"))
step = make_train_step(task, state, RunLength.of(config))
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
