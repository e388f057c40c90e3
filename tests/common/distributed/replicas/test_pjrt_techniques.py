"""Tests that each technique trains and evaluates under pjrt as under mirrored: float64 to 1e-9, after three steps."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from common.config.optimizer import Sgd
from common.config.schema import Communication
from common.distributed import replicas as backends
from common.train import checkpoint_variables
from common.train.programs import Programs
from tests.common.export import network
from tests.common.export.test_replicas import CASES, MORE
from tests.common.train import toy

pytest.importorskip("jax", reason="jax is not installed (make setup)")

STEPS, EVALUATIONS = 3, 2


class Task(network.Task):
    """As the network's, on batches that differ."""

    def _noise(self, batch_size, seed):
        rng, count = np.random.default_rng(seed), 64 * batch_size
        arrays = {
            "image": rng.normal(size=[count, network.SIDE, network.SIDE, 3]),
            "label": rng.integers(0, network.CLASSES, [count]).astype(np.int32),
            "weight": rng.integers(1, 3, [count]).astype(np.float64),
        }
        return tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size, drop_remainder=True)

    def train_input(self, shard, batch_size, start_step):
        return self._noise(batch_size, 1)

    def eval_input(self, shard, batch_size):
        return self._noise(batch_size, 2)


def trained(backend, name):
    """Losses, outputs of an evaluation, and the state, after STEPS steps."""
    number, changes, _ = {**CASES, **MORE}[name]
    config = dataclasses.replace(network.config(number, **changes), replicas=backend)
    task = Task(config)
    loop = Programs(task, backends.make(config))
    train = loop.dataset(lambda shard: task.train_input(shard, loop.batch_size(True), 0))
    held_out = loop.dataset(lambda shard: task.eval_input(shard, loop.batch_size(False)))
    result = loop.call(iter(train), iter(held_out), STEPS, EVALUATIONS)
    assert result.complete
    return result, dict(checkpoint_variables.values(loop.state))


def check(name):
    (mine, state), (theirs, expected) = trained("pjrt", name), trained("mirrored", name)
    np.testing.assert_allclose(mine.losses, theirs.losses, rtol=1e-9)
    for actual, other in ((mine.sums, theirs.sums), (mine.arrays, theirs.arrays), (state, expected)):
        assert sorted(actual) == sorted(other) != []
        for key, value in other.items():
            np.testing.assert_allclose(actual[key], value, rtol=1e-9, atol=1e-12, err_msg=key)


@pytest.mark.parametrize("name", CASES)
def test_a_technique_trains_as_under_mirrored(name):
    check(name)


@pytest.mark.e2e
@pytest.mark.parametrize("name", MORE)
def test_more_techniques_train_as_under_mirrored(name):
    check(name)


@pytest.mark.parametrize("precision, changes", [("bf16", {}), ("fp16", {"loss_scale": 128.0})])
def test_sixteen_bits_train_as_on_one_replica(precision, changes):
    actual = []
    for backend, number in (("pjrt", 2), ("single", 1)):
        optimizer = Sgd(base_learning_rate=0.1)
        config = toy.config(
            precision=precision, replicas=backend, num_replicas=number, batch_norm_span=16,
            optimizer=optimizer, communication=Communication(), quality_target=2.0, **changes,
        )  # fmt: skip
        loop = Programs(toy.Task(config), backends.make(config))
        result = loop.call(*(iter(loop.dataset(make)) for make in inputs(loop)), 20, 0)
        actual.append(result.losses)
    np.testing.assert_allclose(*actual, rtol=2e-2)


def inputs(loop):
    yield lambda shard: loop.task.train_input(shard, loop.batch_size(True), 0)
    yield lambda shard: loop.task.eval_input(shard, loop.batch_size(False))
