"""Tests AlexNet-BN against the published layer table."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from common.distributed.replicas.single import Single
from common.layers.batch_norm import span_layers
from common.layers.precision import precision
from common.layers.variable_kinds import kind_of
from common.train.describe import parameters
from common.train.multiply_adds import forward_macs
from resnet import alexnet
from resnet.config import Config

FULL = Config(model="alexnet_bn", image_size=227, global_batch_size=2, replicas="single")
TINY = dataclasses.replace(FULL, image_size=67, width=8, num_classes=10, global_batch_size=4)


def test_full_size():
    """The network of train_val2.prototxt at 227 px: feature maps, 60.97 M parameters, 724 M multiply-adds."""
    network = alexnet.build(FULL, Single(), precision("fp32"))
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
    network = alexnet.build(TINY, Single(), precision(name))
    images = tf.random.stateless_normal([4, 67, 67, 3], [1, 2])
    with tf.GradientTape() as tape:
        logits = network(images, training=True)
        loss = tf.reduce_sum(logits * logits)
    assert logits.dtype == precision(name).variable
    gradients = tape.gradient(loss, network.trainable_variables)
    assert all(g is not None and np.all(np.isfinite(g)) for g in gradients)
