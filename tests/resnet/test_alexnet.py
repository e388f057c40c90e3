"""Tests AlexNet-BN against the published layer table, and its keyed dropout."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from common.distributed.replicas.mirrored import Mirrored
from common.distributed.replicas.single import Single
from common.errors import UserError
from common.layers.batch_norm import span_layers
from common.layers.dropout import Dropout, micro_batch
from common.layers.precision import precision
from common.layers.variable_kinds import kind_of
from common.train.describe import forward_macs, parameters
from resnet import model
from resnet.config import Config

FULL = Config(
    model="alexnet_bn", image_size=227, batch_norm_epsilon=1e-4, global_batch_size=2, replicas="single"
)
TINY = dataclasses.replace(FULL, image_size=67, width=8, num_classes=10, global_batch_size=4)


def test_full_size():
    """The network of train_val2.prototxt at 227 px: feature maps, 60.97 M parameters, 724 M multiply-adds."""
    network = model.build(FULL, Single(), precision("fp32"))
    assert parameters(network) == 60_965_224
    assert round(forward_macs(network) / 1e6) == 724
    shapes = [
        layer.output_shape[1:3] for layer in network.layers if isinstance(layer, tf_keras.layers.MaxPool2D)
    ]
    assert shapes == [(27, 27), (13, 13), (6, 6)]
    kinds = list(kind_of(network).values())
    assert {k: kinds.count(k) for k in set(kinds)} == {
        "kernel": 8,
        "bias": 8,
    }  # batch norm has no gamma, no beta
    assert [layer.moving_mean.shape[1] for layer in span_layers(network)] == [96, 256, 384, 384]
    assert all(layer.epsilon == 1e-4 for layer in span_layers(network))
    starts = [float(v[0]) for v in network.trainable_variables if v.shape.rank == 1]
    np.testing.assert_allclose(starts, [0.01] * 5 + [0.1] * 2 + [0.01], rtol=1e-6)


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp64"])
def test_a_step(name):
    network = model.build(TINY, Single(), precision(name))
    images = tf.random.stateless_normal([4, 67, 67, 3], [1, 2])
    with tf.GradientTape() as tape:
        logits = network(images, training=True)
        loss = tf.reduce_sum(logits * logits)
    assert logits.dtype == precision(name).variable
    gradients = tape.gradient(loss, network.trainable_variables)
    assert all(g is not None and np.all(np.isfinite(g)) for g in gradients)


@pytest.mark.parametrize(
    "changes, message", [({"image_size": 66}, "at least 67"), ({"width": 12}, "multiple of 8")]
)
def test_sizes_it_cannot_take(changes, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(TINY, **changes).validate()


def test_dropout_rate_scale_and_evaluation():
    x = tf.ones([64, 1001])
    layer = Dropout(Single(), 0.25, seed=5)
    y = layer(x, training=True).numpy()
    assert set(np.unique(y)) == {np.float32(0), np.float32(1) / np.float32(0.75)}
    assert abs((y == 0).mean() - 0.25) < 0.01
    assert np.array_equal(layer(x), x)


def test_dropout_is_keyed_by_seed_and_draw():
    x = tf.ones([4, 64])
    layer, same, other = (Dropout(Single(), 0.5, seed=s) for s in (5, 5, 6))
    first, second = layer(x, training=True).numpy(), layer(x, training=True).numpy()
    assert not np.array_equal(first, second)
    assert np.array_equal(same(x, training=True), first)
    assert not np.array_equal(other(x, training=True), first)
    same.draws.assign(1)
    assert np.array_equal(same(x, training=True), second)


def test_dropout_does_not_depend_on_the_replicas():
    whole = Dropout(Single(), 0.5, seed=5)(tf.ones([8, 30]), training=True)
    parts = dropped_by_four(tf.ones([2, 30]))
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_micro_batches_drop_what_the_whole_batch_does():
    whole, layer = (Dropout(Single(), 0.5, seed=5) for _ in range(2))
    for _ in range(2):
        parts = []
        for i in range(4):
            with micro_batch(i, 4):
                parts.append(layer(tf.ones([2, 30]), training=True))
        np.testing.assert_array_equal(np.concatenate(parts), whole(tf.ones([8, 30]), training=True))
    assert int(layer.draws) == int(whole.draws) == 2


def test_replicas_that_share_their_examples_drop_the_same():
    """Two groups of two replicas drop the same elements as two replicas: masks depend on the examples only."""
    whole = Dropout(Single(), 0.5, seed=5)(tf.ones([8, 30]), training=True)
    parts = dropped_by_four(tf.ones([4, 30]), partitions=2)
    np.testing.assert_array_equal(np.concatenate(parts[::2]), whole)
    np.testing.assert_array_equal(np.concatenate(parts[1::2]), whole)


def dropped_by_four(x, **kwargs):
    """The output of dropout for `x` on each of four replicas."""
    replicas = Mirrored(4)
    with replicas.scope():
        layer = Dropout(replicas, 0.5, seed=5, **kwargs)
        layer.build(x.shape)
    parts = tf.function(lambda: replicas.run(lambda: layer(x, training=True)), autograph=False)()
    return replicas.local_results(parts)
