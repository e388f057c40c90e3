"""Tests a step on four replicas that share images by rows, or split the batch, against a step on one device."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from common.config.optimizer import Sgd
from common.config.run_length import RunLength
from common.distributed.replicas.mirrored import Mirrored
from common.distributed.replicas.single import Single
from common.distributed.spatial import shared_input
from common.layers.precision import precision
from common.train.state import State
from common.train.step import make_train_step
from ssd.config import Config
from ssd.presets import PRESETS
from ssd.task import Task


def config_of(replicas: int, partitions: int) -> Config:
    """Four images of 72 pixels: 36, 18, 9, 5, 3 and 1 rows; all share their statistics."""
    config = dataclasses.replace(
        PRESETS["cpu-tiny"], precision="fp64", width=2, image_size=72, global_batch_size=4, eval_batch_size=4,
        batch_norm_span=4, optimizer=Sgd(base_learning_rate=1.0, momentum=0.9, skip_kinds=()),
        replicas="single" if replicas == 1 else "mirrored", num_replicas=replicas, partitions=partitions,
    )  # fmt: skip
    config.validate()
    return config


def step(config: Config, replicas, weights=None) -> tuple[list, list, float]:
    """(weights before, gradients, loss) of one step on noise, of which one image is padding."""
    task, policy = Task(config, None), precision(config.precision)
    state = State(task, replicas, policy)
    variables = state.model.trainable_variables
    for variable, value in zip(variables, weights or (), strict=weights is not None):
        for copy in replicas.local_results(variable):
            copy.assign(value)
    before = [replicas.local_results(v)[0].numpy() for v in variables]
    batch = {k: v.numpy() for k, v in next(iter(task.synthetic_input(4))).items()}
    batch["weight"] = np.array([1, 1, 0, 1], np.float32)
    batch["image"][1:] = (
        np.random.default_rng(1).permutation(batch["image"][1:].ravel()).reshape(3, 72, 72, 3)
    )
    parts = tf.data.Dataset.from_tensor_slices(batch).batch(config.micro_batch_size)
    make = shared_input(lambda s: parts.shard(s.count, s.index).repeat(), config.partitions, replicas)
    train_step = make_train_step(task, state, RunLength.of(config))
    batches = iter(replicas.dataset(make))
    loss = replicas.sum(replicas.run(train_step, (next(batches), tf.constant(100, tf.int64))))
    # The first momentum is the gradient, times the rate where the momentum is unscaled.
    slots = [replicas.local_results(slot["momentum"])[0].numpy() for slot in state.update.slots]
    return before, slots, float(loss)


@functools.cache
def whole() -> tuple[list, list, float]:
    return step(config_of(1, 1), Single())


E2E = pytest.mark.e2e


@pytest.mark.parametrize(
    ("replicas", "partitions"), [(4, 4), pytest.param(4, 2, marks=E2E), pytest.param(4, 1, marks=E2E)]
)
def test_loss_and_gradients_are_those_of_whole_images(replicas, partitions):
    weights, gradients, loss = whole()
    _, values, other = step(config_of(replicas, partitions), Mirrored(replicas), weights)
    assert other == pytest.approx(loss, rel=1e-8)
    for a, b in zip(values, gradients, strict=True):
        assert np.linalg.norm(a - b) <= 1e-8 * max(np.linalg.norm(b), 1e-3)
