"""Partitioned images against whole ones: windows, operations, batch norm, backbones, the loop; float64 to 1e-8."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from hypothesis import given
from hypothesis import strategies as st

from common import events
from common import replicas as backends
from common.clock import Clock
from common.config import Optimizer
from common.errors import UserError
from common.loop import Loop
from common.norm import SpanBatchNorm
from common.precision import precision
from common.replicas.base import Shard
from common.replicas.mirrored import Mirrored
from common.replicas.single import Single
from common.spatial import Spatial, shared_input
from common.spatial.geometry import Window, output_size, resolve, rows_of
from common.spatial.layers import AveragePool, Enter, GlobalAverage, Leave, MaxPool
from common.step import State, make_eval_step, make_train_step
from resnet.config import PRESETS
from resnet.task import Task
from tests.common import toy

HEIGHTS = (300, 150, 75, 38, 19, 10, 5, 3, 1)  # of the SSD's feature maps
CHANNELS, FILTERS, BATCH = 2, 3, 2
# (kernel, stride, padding)
CONVOLUTIONS = [
    (1, 1, "same"),
    (1, 2, 0),
    (2, 2, "valid"),
    (3, 1, "same"),
    (3, 1, "valid"),
    (3, 2, "same"),
    (3, 2, 1),
    (3, 2, ((0, 1), (0, 1))),
    (5, 3, "same"),
    (7, 1, 3),
    (7, 2, "same"),
    (7, 2, 3),
]
POOLS = [(2, 2, "same"), (3, 1, "same"), (3, 2, "same"), (3, 2, "valid"), (3, 2, 1)]


def normal(shape, seed):
    return tf.constant(np.random.default_rng(seed).normal(size=shape))


def close(got, want, message=""):
    """1e-8, relative to the largest of the expected values."""
    want = np.asarray(want)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-8 * max(np.abs(want).max(), 1e-30), err_msg=message)


def whole_and_parts(k, network, images, weights):
    """(outputs, gradients of images and weights) of a network on one device and on one group of k replicas.

    `network(spatial, rows, weights)` returns tensors equal on all replicas; their scalar products with fixed
    noise are the loss, of which each replica takes 1/k, as a weighted sum would.
    """

    def one(replicas):
        spatial = Spatial(replicas, k)
        with tf.GradientTape() as tape:
            tape.watch([images, *weights])
            outputs = network(spatial, spatial.enter(images), weights)
            loss = tf.add_n([tf.reduce_sum(y * normal(y.shape, i)) for i, y in enumerate(outputs)])
        gradients = tape.gradient(
            loss / spatial.partitions, [images, *weights], unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return outputs, gradients

    whole = one(Single())
    replicas = Mirrored(k)
    outputs, gradients = replicas.run(lambda: one(replicas))
    local = replicas.local_results
    return whole, ([local(y) for y in outputs], [sum(local(g)) for g in gradients])


def check(k, network, images, weights=()):
    (outputs, gradients), (others, other_gradients) = whole_and_parts(k, network, images, list(weights))
    for number, (want, copies) in enumerate(zip(outputs, others, strict=True)):
        for copy in copies:
            close(copy, want, f"output {number}")
    for number, (want, got) in enumerate(zip(gradients, other_gradients, strict=True)):
        close(got, want, f"gradient {number}")


def fits(height, size, stride, padding):
    (top, bottom), _ = resolve(padding, height, height, size, stride)
    return output_size(height, size, stride, top, bottom) > 0


# -- Which rows ----------------------------------------------------------------------------------------------


@given(
    height=st.integers(1, 80),
    k=st.integers(1, 9),
    size=st.integers(1, 9),
    stride=st.integers(1, 4),
    top=st.integers(0, 4),
    bottom=st.integers(0, 4),
)
def test_a_window_holds_the_rows_of_every_output_that_exists(height, k, size, stride, top, bottom):
    if output_size(height, size, stride, top, bottom) < 1:
        return
    window, rows = Window.of(height, k, size, stride, top, bottom), rows_of(height, k)
    out_rows = rows_of(window.height, k)
    for position in range(k):
        held = range(position * rows - window.above, (position + 1) * rows + window.below)
        for row in range(position * out_rows, min((position + 1) * out_rows, window.height)):
            first = row * stride - top
            assert first in held and first + size - 1 in held
    aligned = rows == out_rows * stride
    assert not aligned or (window.above, window.below) == (top, max(size - stride - top, 0))


# -- Operations ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [2, 4, 8])
@pytest.mark.parametrize("size, stride, padding", CONVOLUTIONS, ids=str)
def test_convolution(k, size, stride, padding):
    def network(spatial, x, weights):
        return [spatial.leave(spatial.conv2d(x, weights[0], stride, padding))]

    kernel = normal([size, size, CHANNELS, FILTERS], 1)
    for height in HEIGHTS:
        if fits(height, size, stride, padding):
            check(k, network, normal([BATCH, height, 9, CHANNELS], 2), [kernel])


@pytest.mark.parametrize("k", [2, 4, 8])
@pytest.mark.parametrize("size, stride, padding", POOLS, ids=str)
@pytest.mark.parametrize("kind", ["max_pool", "avg_pool"])
def test_pool(k, kind, size, stride, padding):
    def network(spatial, x, weights):
        return [spatial.leave(getattr(spatial, kind)(x, size, stride, padding))]

    for height in HEIGHTS:
        if fits(height, size, stride, padding):
            # All negative: zeros outside of the image would win.
            check(k, network, -tf.exp(normal([BATCH, height, 9, CHANNELS], 3)))


@pytest.mark.parametrize("k", [2, 4, 8])
def test_global_average(k):
    for height in HEIGHTS:
        images = normal([BATCH, height, 4, CHANNELS], 4)
        check(k, lambda spatial, x, _: [spatial.global_average(x)], images)


@pytest.mark.parametrize("k", [2, 4])
def test_rows_that_do_not_exist_may_hold_anything(k):
    """They are NaN behind every layer: nothing of it reaches an output, a statistic or a gradient."""

    def spoilt(spatial, x):
        first = spatial._position() * x.shape[1]
        rows = tf.reshape(first + np.arange(x.shape[1]) < spatial.height(x), [1, -1, 1, 1])
        return tf.where(rows, x, tf.constant(np.nan, x.dtype))

    def network(spatial, x, weights):
        x = spatial.conv2d(spoilt(spatial, x), weights[0], 2, 3)
        mean, variance, _ = spatial.moments(spoilt(spatial, x), 1)
        tf.debugging.assert_all_finite([mean, variance], "leaked into the moments")
        x = spatial.max_pool(spoilt(spatial, x), 3, 2, "same")
        x = spatial.avg_pool(spoilt(spatial, x), 3, 1, "same")
        x = spoilt(spatial, x)
        return [spatial.leave(x), spatial.global_average(x)]

    for height in (19, 38, 75):
        images = normal([BATCH, height, 19, CHANNELS], 5)
        check(k, network, images, [normal([7, 7, CHANNELS, FILTERS], 6)])


# -- Batch norm ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("height", [8, 5, 1])
@pytest.mark.parametrize("replicas, k", [(4, 4), (4, 2), (2, 2)])
@pytest.mark.parametrize("span", [1, 2, 4])
def test_batch_norm_counts_whole_images(height, replicas, k, span):
    """4 images; the span is of images, however many replicas share one."""
    images, upstream = normal([4, height, 3, CHANNELS], 7), normal([4, height, 3, CHANNELS], 8)
    groups = replicas // k
    if span > 4 // groups and (span * groups) % 4:
        return

    def one(backend, partitions, mine):
        spatial = Spatial(backend, partitions)
        layer = layers[backend.name]
        layer.spatial = spatial
        x, up = images[mine], upstream[mine]
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = spatial.leave(layer(spatial.enter(x), training=True))
            loss = tf.reduce_sum(y * up) / spatial.partitions
        return y, tape.gradient(loss, x), layer.moving_variance.read_value()

    backend, layers = Mirrored(replicas), {}
    with backend.scope():
        layers["mirrored"] = SpanBatchNorm(backend, span, precision("fp64"), spatial=Spatial(backend, k))
        layers["mirrored"].build([4 // groups, rows_of(height, k), 3, CHANNELS])
    layers["single"] = SpanBatchNorm(Single(), span, precision("fp64"))
    layers["single"].build(images.shape)
    want, want_dx, want_variance = one(Single(), 1, slice(0, 4))

    def replica():
        first = int(tf.get_static_value(backend.replica_id())) // k * 4 // groups
        return one(backend, k, slice(first, first + 4 // groups))

    y, dx, variance = (backend.local_results(v) for v in backend.run(replica))
    close(np.concatenate(y[::k]), want)
    dx = [sum(dx[i : i + k]) for i in range(0, replicas, k)]
    close(np.concatenate(dx), want_dx)
    merged = np.concatenate(variance[::k])
    assert np.allclose(np.unique(merged.round(9)), np.unique(want_variance.numpy().round(9)))
