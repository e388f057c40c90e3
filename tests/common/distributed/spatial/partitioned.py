"""Compares networks on one device with replicas that share images: outputs and gradients, float64 to 1e-8."""

import numpy as np
import tensorflow as tf

from common.distributed.replicas.mirrored import Mirrored
from common.distributed.replicas.single import Single
from common.distributed.spatial import Spatial

CHANNELS, FILTERS, BATCH = 2, 3, 2


def normal(shape, seed):
    return tf.constant(np.random.default_rng(seed).normal(size=shape))


def close(actual, expected, message=""):
    """Asserts equality to 1e-8 of the largest expected value."""
    expected = np.asarray(expected)
    atol = 1e-8 * max(np.abs(expected).max(), 1e-30)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol, err_msg=message)


def whole_and_parts(k, network, images, weights, replicas):
    """(outputs, gradients of images and weights) of a network on one device and on groups of k replicas.

    `network(spatial, rows, weights)` returns tensors equal on all replicas. The loss is their scalar product with fixed
    noise, split between the replicas like a weighted sum.
    """

    def one(replicas):
        spatial = Spatial(replicas, k)
        with tf.GradientTape() as tape:
            tape.watch([images, *weights])
            outputs = network(spatial, spatial.enter(images), weights)
            loss = tf.add_n([tf.reduce_sum(y * normal(y.shape, i)) for i, y in enumerate(outputs)])
        gradients = tape.gradient(
            loss / replicas.num_replicas,
            [images, *weights],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return outputs, gradients

    whole = one(Single())
    outputs, gradients = replicas.run(lambda: one(replicas))
    return whole, ([replicas.local_results(y) for y in outputs], [replicas.sum(g) for g in gradients])


def check(k, network, images, weights=(), replicas=None):
    """Compares the network on one device and on a mirrored group of k, or on `replicas`."""
    replicas = replicas or Mirrored(k)
    (outputs, gradients), actual = whole_and_parts(k, network, images, list(weights), replicas)
    for number, (expected_gradient, copies) in enumerate(zip(outputs, actual[0], strict=True)):
        for copy in copies:
            close(copy, expected_gradient, f"output {number}")
    for number, (expected_gradient, gradient) in enumerate(zip(gradients, actual[1], strict=True)):
        close(gradient, expected_gradient, f"gradient {number}")
