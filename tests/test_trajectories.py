"""Runs each published preset's step beside its source's (tests/sources.py), from the examples' losses on, in float64.

Four replicas, with their real exchange, have examples of several tokens or regions. Both sides combine their losses,
scale, clip, exchange and clip them, and step.
"""

import dataclasses
import math
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from common.config.run_length import RunLength
from common.config.schema import RunConfig
from common.distributed.weight_update import WholeUpdate
from common.train import gradients
from common.train.step import make_train_step
from common.train.task import Batch, Reduction, WeightedSum
from tests import differences, sources
from tests.benchmarks import decay_end, preset_of
from tests.common.distributed.updates import replicas_of

BOUND = 1e-6  # Of the weights' whole movement; rates are float32.
KINDS = {"weights": "kernel", "biases": "bias", "norms": "norm"}
SHAPES = {"weights": (6, 5), "biases": (5,), "norms": (5,)}
PARAMETERS = sum(math.prod(shape) for shape in SHAPES.values())
WINDOW = 40
REPLICAS, EXAMPLES = 4, 4


def _steps(config: RunConfig) -> list[range]:
    """Windows of the run: its first steps, those around the warmup's end and each drop, and its last: 200 in all."""
    run_length, schedule = RunLength.of(config), config.schedule
    ends = [schedule.warmup_length(run_length.steps_per_epoch)]
    if schedule.kind == "step":
        ends += [epoch * run_length.steps_per_epoch for epoch in schedule.boundaries]
    if schedule.kind == "gnmt":
        ends += [schedule.decay_start_step + i * schedule.decay_interval for i in range(2)]
    last = min(
        run_length.train_steps, decay_end(config) if schedule.kind == "poly" else run_length.train_steps
    )
    starts = [0, *(int(end) - WINDOW // 2 for end in ends if WINDOW < end < last - WINDOW), last - WINDOW]
    return [range(start, start + WINDOW) for start in starts]


def _examples(step: int, replicas_examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Slopes of the examples' losses, [replicas, examples, parameters], and their tokens or regions.

    Slopes are from 1e-8 to 1 in size, so that epsilon and clipping both matter; an example's loss is a sum over its
    tokens.
    """
    rng = np.random.default_rng(step)
    size = 10.0 ** rng.uniform(-8, 0, size=PARAMETERS)
    size[-10:] = 0.1
    slopes = (200 if step % 3 == 0 else 1) * size * rng.normal(size=(REPLICAS, replicas_examples, PARAMETERS))
    return slopes, rng.integers(20, 60, size=(REPLICAS, replicas_examples)).astype(np.float64)


class Losses:
    """A task whose examples' losses are linear in the weights; as `Model`, it has these weights."""

    def __init__(self, name: str, config: RunConfig, weights: list[tf.Variable]):
        self.config, self.trainable_variables = config, weights
        self._counts_tokens = name.startswith(("transformer/", "maskrcnn/"))
        replica = name.startswith("maskrcnn/") or getattr(config, "mean_of_means", False)
        self._reduction = Reduction.REPLICA if replica else Reduction.GLOBAL

    def weight(self, tokens: np.ndarray) -> np.ndarray:
        return tokens if self._counts_tokens else np.ones_like(tokens)

    def loss(self, model: "Losses", batch: Batch) -> dict[str, WeightedSum]:
        flat = tf.concat([tf.reshape(w, [-1]) for w in model.trainable_variables], 0)
        total = tf.reduce_sum(tf.linalg.matvec(batch["slopes"], flat))
        return {"loss": WeightedSum(total, tf.reduce_sum(batch["weight"]), self._reduction)}


def _on_replicas(task: Losses, function: Callable) -> Callable:
    """Returns apply(step, slopes, weight), which runs function(batch, step) on each of the replicas."""
    replicas = replicas_of("mirrored", REPLICAS)

    def apply(step: tf.Tensor, slopes: tf.Tensor, weight: tf.Tensor) -> list:
        def one() -> Any:
            mine = (tf.gather(x, replicas.replica_id()) for x in (slopes, weight))
            return function(dict(zip(("slopes", "weight"), mine)), step)

        return tf.nest.map_structure(replicas.local_results, replicas.run(one))

    return tf.function(apply, autograph=False)


def _step(name: str, config: RunConfig, weights: list[tf.Variable], kinds: dict) -> tuple:
    """Returns the task, its update, and apply(step, slopes, weight): one step of the replicas, with their exchange."""
    examples = REPLICAS * EXAMPLES * config.accumulation_steps
    task = Losses(
        name, dataclasses.replace(config, num_replicas=REPLICAS, global_batch_size=examples), weights
    )
    replicas = replicas_of("mirrored", REPLICAS)
    with replicas.scope():
        update = WholeUpdate(weights, kinds, replicas, config)
    state = types.SimpleNamespace(replicas=replicas, update=update, model=task, kinds=list(KINDS.values()))
    return task, update, _on_replicas(task, make_train_step(task, state, RunLength.of(config)))


def worst(name: str) -> dict[str, float]:
    """Returns the largest difference of each group, relative to the group's movement in the window."""
    config, source = preset_of(name), sources.rows()[name]
    # Two micro-batches stand for more: `mirrored` writes each into the graph.
    config = dataclasses.replace(config, accumulation_steps=min(config.accumulation_steps, 2))
    start = {n: np.random.default_rng(9).normal(size=shape) for n, shape in SHAPES.items()}
    with replicas_of("mirrored", REPLICAS).scope():
        weights = {n: tf.Variable(w) for n, w in start.items()}
    kinds = {weights[n].ref(): kind for n, kind in KINDS.items()}
    task, update, apply = _step(name, config, list(weights.values()), kinds)
    result = dict.fromkeys(KINDS, 0.0)
    for window in _steps(config):
        for n, variable in weights.items():
            variable.assign(start[n])
        for slots in update.slots:
            for slot in slots.values():
                slot.assign(tf.zeros_like(slot))
        theirs, theirs_slots = dict(start), {n: {} for n in KINDS}
        for step in window:
            slopes, tokens = _examples(step, EXAMPLES * config.accumulation_steps)
            weight = task.weight(tokens)
            apply(tf.constant(step, tf.int64), tf.constant(slopes), tf.constant(weight))
            flat = source.exchanged(list(slopes), list(weight))
            gradients_of = np.split(flat, np.cumsum([math.prod(shape) for shape in SHAPES.values()])[:-1])
            for (n, kind), gradient in zip(KINDS.items(), gradients_of, strict=True):
                rate = source.bias_rate if kind == "bias" and source.bias_rate else source.rate
                theirs[n] = source.update(
                    theirs[n], gradient.reshape(SHAPES[n]), theirs_slots[n], rate(step), kind, step
                )
            for n, w in weights.items():
                moved = np.abs(theirs[n] - start[n]).max()
                if moved > 1e-9:
                    result[n] = max(result[n], float(np.abs(w.numpy() - theirs[n]).max() / moved))
    return result


@pytest.mark.parametrize("name", sources.rows())
def test_a_preset_steps_as_its_source(name: str) -> None:
    for group, difference in worst(name).items():
        differences.hold(name, group, difference)
        bound, _ = sources.DIFFERENT.get(name, {}).get(group, (BOUND, ""))
        assert difference < bound, group
        assert bound == BOUND or difference > BOUND / 5, f"{group}: no difference any more"


@pytest.mark.parametrize(
    "name", ["maskrcnn/h100-1", "transformer/tpu-v4-16", "transformer/dgx-1", "gnmt/tpu-v3-128"]
)
@pytest.mark.parametrize("accumulation", [1, 4])
def test_micro_batches_have_the_mean_that_their_loss_names(name: str, accumulation: int) -> None:
    """A mean of means is over replicas and micro-batches; a mean over all counts every token once."""
    changes = {"accumulation_steps": accumulation, "num_replicas": REPLICAS, "loss_scale": 8.0}
    config = dataclasses.replace(preset_of(name), **changes)
    replicas = replicas_of("mirrored", REPLICAS)
    with replicas.scope():
        weights = [tf.Variable(np.zeros(shape)) for shape in SHAPES.values()]
    task = Losses(name, config, weights)
    slopes, tokens = _examples(3, EXAMPLES * accumulation)
    weight = task.weight(tokens)
    one = gradients.make(task, task, replicas)
    of_each = _on_replicas(task, lambda batch, _: one(batch)[1])(0, tf.constant(slopes), tf.constant(weight))
    actual = [of_variable[0] for of_variable in of_each]
    parts = zip(np.split(slopes[0], accumulation), np.split(weight[0], accumulation))
    if task._reduction is Reduction.REPLICA:
        expected = sum(s.sum(0) / w.sum() for s, w in parts) / (REPLICAS * accumulation)
    else:
        expected = slopes[0].sum(0) / weight.sum()
    np.testing.assert_allclose(np.concatenate([g.numpy().ravel() for g in actual]), expected, rtol=1e-9)
