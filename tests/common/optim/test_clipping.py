"""Tests clipping of each replica's own gradient, and of their sum: a step of two replicas against numpy."""

import numpy as np
import pytest
import tf_keras

from common.config.optimizer import Sgd
from common.distributed import replicas
from common.optim import optimizers
from common.train.loop import Loop
from tests.common.train import toy

RATE = 0.5
# The limit lies between the norms of the first replica's gradient and of the second's: only the second is clipped.
LIMIT = 1.5


class Linear(toy.Task):
    """One matrix and a bias, on the toy's vectors; the second replica's vectors are five times as long."""

    def build(self, replicas, precision):
        inputs = replicas.model_input([toy.FEATURES], self.config.micro_batch_size, precision.variable)
        return tf_keras.Model(inputs, tf_keras.layers.Dense(toy.CLASSES, dtype=precision.full)(inputs))

    def examples(self, first, count, offset):
        found = super().examples(first, count, offset)
        scale = np.where(np.arange(count) % 16 < 8, 1, 5)[:, None]
        return {**found, "x": found["x"] * scale}


def mean_gradients(weights, x, labels):
    """The gradients of the mean cross-entropy over these examples, of the matrix and the bias."""
    kernel, bias = weights
    powers = np.exp(x @ kernel + bias)
    above = (powers / powers.sum(-1, keepdims=True) - np.eye(toy.CLASSES)[labels]) / len(x)
    return [x.T @ above, above.sum(0)]


def norm(gradients):
    return np.sqrt(sum((g * g).sum() for g in gradients))


def one_step(limit, of_sum=False):
    """(weights after a step, expected weights in numpy).

    Each replica's mean gradient is clipped, then they are averaged; with `of_sum` they are averaged, then clipped.
    """
    config = toy.config(
        replicas="mirrored",
        num_replicas=2,
        precision="fp64",
        train_epochs=0,
        train_steps=1,
        steps_per_block=1,
        optimizer=Sgd(
            base_learning_rate=RATE,
            momentum=0.0,
            **{"clip_norm" if of_sum else "clip_replica_norm": limit},
        ),
    )
    task = Linear(config)
    loop = Loop(task, replicas.make(config))
    variables = loop.state.model.trainable_variables
    before = [v.numpy() for v in variables]
    list(loop.run())
    examples = task.examples(0, 64, 0)
    own = [
        mean_gradients(before, examples["x"][rows], examples["label"][rows])
        for rows in (slice(0, 8), slice(8, 16))
    ]
    mean = [sum(parts) / 2 for parts in zip(*own)]
    if of_sum:
        update = [clipping(mean, limit) * g for g in mean]
    else:
        factors = [clipping(gradients, limit) for gradients in own]
        update = [sum(f * g for f, g in zip(factors, parts)) / 2 for parts in zip(*own)]
    assert norm(own[0]) < LIMIT < norm(mean) < norm(own[1])
    return [v.numpy() for v in variables], [w - RATE * g for w, g in zip(before, update)]


def clipping(gradients, limit):
    return min(1, limit / norm(gradients)) if limit else 1


@pytest.mark.parametrize("limit", [0.0, LIMIT, 0.1])
def test_the_averaged_gradient_is_clipped(limit):
    """The reference's and NVIDIA's GNMT: REF gnmt/pytorch/seq2seq/train/fp_optimizers.py."""
    for mine, expected in zip(*one_step(limit, of_sum=True), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-10)


@pytest.mark.parametrize("limit", [0.0, LIMIT, 0.1])
def test_each_replica_s_own_mean_gradient_is_clipped_then_averaged(limit):
    for mine, expected in zip(*one_step(limit), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-10)


def test_the_limit_is_of_a_replica_s_own_mean_not_of_its_part_of_the_sum(monkeypatch):
    """The comparison detects a limit that is not divided by the number of replicas."""
    plain = optimizers.clipped
    monkeypatch.setattr(optimizers, "clipped", lambda gradients, limit: plain(gradients, 2 * limit))
    mine, expected = one_step(LIMIT)
    assert np.abs(mine[0] - expected[0]).max() > 1e-3
