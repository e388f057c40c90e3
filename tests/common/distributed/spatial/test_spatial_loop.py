"""Tests runs whose replicas share images against a run on one device, and the input of a group."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from common.distributed import replicas as backends
from common.distributed.replicas.base import Shard
from common.distributed.replicas.single import Single
from common.distributed.spatial import Spatial, shared_input
from common.distributed.spatial.layers import Enter, GlobalAverage, Leave, MaxPool
from common.layers.batch_norm import SyncBatchNorm
from common.layers.convolution import PaddedConv2D
from common.train import events
from common.train.programs import Programs
from common.train.task import Reduction, WeightedSum
from tests.common.distributed.spatial.partitioned import close
from tests.common.train import toy
from tests.common.train.loops import run

# -- The loop ------------------------------------------------------------------------------------------------


class ImageTask(toy.Task):
    """The toy task on images of 5 rows and 2 columns: a convolution, batch norm, a pooling, two heads."""

    def build(self, replicas, precision):
        spatial = Spatial(replicas, self.config.partitions)
        inputs = replicas.model_input([toy.FEATURES], self.config.micro_batch_size, precision.variable)
        x = tf_keras.layers.Lambda(lambda x: tf.concat([x, x[:, :2]], 1), dtype=precision.full)(inputs)
        x = tf_keras.layers.Reshape([5, 2, 1], dtype=precision.full)(x)
        x = Enter(spatial, dtype=precision.full)(x)
        x = PaddedConv2D(6, 3, pad=1, spatial=spatial, use_bias=False, dtype=precision.full)(x)
        x = SyncBatchNorm(replicas, self.config.batch_norm_span, precision, spatial=spatial)(x)
        x = tf_keras.layers.Activation("tanh", dtype=precision.full)(x)
        x = MaxPool(spatial, 2, 1, "same", dtype=precision.full)(x)
        x = PaddedConv2D(4, 1, pad=0, spatial=spatial, dtype=precision.full)(x)
        mean = GlobalAverage(spatial, dtype=precision.full)(x)
        flat = tf_keras.layers.Flatten(dtype=precision.full)(Leave(spatial, dtype=precision.full)(x))
        x = tf_keras.layers.Concatenate(dtype=precision.full)([mean, flat])
        return tf_keras.Model(inputs, tf_keras.layers.Dense(toy.CLASSES, dtype=precision.full)(x))


class UnevenTask(ImageTask):
    """ImageTask with a loss term that is averaged over replicas of different weights."""

    def loss(self, model, batch):
        logits = model(batch["x"], training=True)
        weight = tf.cast(batch["label"], logits.dtype) + 1
        total = tf.reduce_sum(tf.reduce_sum(logits**2, axis=1) * weight)
        return {
            **super().loss(model, batch),
            "norm": WeightedSum(total, tf.reduce_sum(weight), Reduction.REPLICA),
        }


def free_run(task=ImageTask, **changes):
    """(losses, qualities, weights) of 10 steps; quality() fails if an image counts twice or never."""
    config = toy.config(precision="fp64", train_steps=10, quality_target=2.0, **changes)
    config.validate()
    loop = Programs(task(config), backends.make(config))
    loop.compile()
    history = run(loop)
    losses = [x for e in history if isinstance(e, events.Trained) for x in e.losses]
    weights = [loop.replicas.local_results(v)[0].numpy() for v in loop.state.model.trainable_variables]
    return losses, [e.value for e in history if isinstance(e, events.Evaluated)], weights


@pytest.mark.parametrize("replicas, k, accumulation", [(4, 4, 1), (4, 2, 1), (2, 2, 2)])
def test_a_run_is_that_of_one_device(replicas, k, accumulation):
    """Compares input shared by groups, losses, updates, merged moments, and evaluations that count images once."""
    changes = {"batch_norm_span": 8, "accumulation_steps": accumulation}
    losses, qualities, weights = free_run(**changes)
    other = free_run(replicas="mirrored", num_replicas=replicas, partitions=k, **changes)
    np.testing.assert_allclose(other[0], losses, rtol=1e-8)
    assert other[1] == qualities and len(qualities) == 3
    for actual, expected in zip(other[2], weights, strict=True):
        close(actual, expected)


def test_terms_over_replicas_are_averaged_over_groups():
    """Two groups of two replicas equal two replicas."""
    changes = {"task": UnevenTask, "batch_norm_span": 8, "replicas": "mirrored"}
    losses, _, weights = free_run(num_replicas=2, **changes)
    other_losses, _, others = free_run(num_replicas=4, partitions=2, **changes)
    np.testing.assert_allclose(other_losses, losses, rtol=1e-8)
    for actual, expected in zip(others, weights, strict=True):
        close(actual, expected)


@pytest.mark.parametrize(
    "num_replicas, num_processes, k, expected",
    [
        (4, 1, 2, [[0, 0, 1, 1, 2, 2]]),  # mirrored: pairs in one process
        (4, 4, 2, [[0, 1, 2], [0, 1, 2], [10, 11, 12], [10, 11, 12]]),  # a pair of processes reads one shard
        (4, 2, 4, [[0, 0, 1, 1, 2, 2]] * 2),
        (4, 2, 2, [[0, 0, 1, 1, 2, 2], [10, 10, 11, 11, 12, 12]]),
        (2, 2, 1, [[0, 1, 2], [10, 11, 12]]),
    ],
)
def test_a_group_gets_the_same_batches(num_replicas, num_processes, k, expected):
    backend = Single()
    backend.num_replicas, backend.num_processes = num_replicas, num_processes

    def make(shard):
        assert shard.count == len({tuple(row) for row in expected})
        return tf.data.Dataset.range(10 * shard.index, 10 * shard.index + 3).map(lambda i: {"x": i})

    shared = shared_input(make, k, backend)
    for index, indices in enumerate(expected):
        batches = shared(Shard(index, num_processes)).as_numpy_iterator()
        assert [int(b["x"]) for b in batches] == indices
