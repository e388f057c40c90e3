"""Tests partitioned images against whole ones: windows, operations, batch norm; float64 to 1e-8."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from common.distributed.replicas.mirrored import Mirrored
from common.distributed.replicas.single import Single
from common.distributed.spatial import Spatial
from common.distributed.spatial.geometry import Window, output_size, resolve, rows_of
from common.layers.batch_norm import SyncBatchNorm
from common.layers.precision import precision
from tests.common.distributed.spatial.partitioned import BATCH, CHANNELS, FILTERS, check, close, normal

HEIGHTS = (300, 150, 75, 38, 19, 10, 5, 3, 1)  # of the SSD's feature maps
# (kernel, stride, padding)
CONVOLUTIONS = [
    (1, 1, "same"), (1, 2, 0), (2, 2, "valid"), (3, 1, "same"), (3, 1, "valid"), (3, 2, "same"), (3, 2, 1),
    (3, 2, ((0, 1), (0, 1))), (5, 3, "same"), (7, 1, 3), (7, 2, "same"), (7, 2, 3),
]  # fmt: skip
POOLS = [(2, 2, "same"), (3, 1, "same"), (3, 2, "same"), (3, 2, "valid"), (3, 2, 1)]


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
    window, rows = Window.for_image(height, k, size, stride, top, bottom), rows_of(height, k)
    out_rows = rows_of(window.height, k)
    for position in range(k):
        window_rows = range(position * rows - window.above, (position + 1) * rows + window.below)
        for row in range(position * out_rows, min((position + 1) * out_rows, window.height)):
            first = row * stride - top
            assert first in window_rows and first + size - 1 in window_rows
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
def test_pool(k, size, stride, padding):
    def network(spatial, x, weights):
        return [spatial.leave(spatial.max_pool(x, size, stride, padding))]

    for height in HEIGHTS:
        if fits(height, size, stride, padding):
            # All values are negative, so that zeros outside the image would win the maximum.
            check(k, network, -tf.exp(normal([BATCH, height, 9, CHANNELS], 3)))


@pytest.mark.parametrize("k", [2, 4, 8])
def test_global_average(k):
    for height in HEIGHTS:
        images = normal([BATCH, height, 4, CHANNELS], 4)
        check(k, lambda spatial, x, _: [spatial.global_average(x)], images)


@pytest.mark.parametrize("k", [2, 4, 8])
def test_own_images(k):
    """Of fewer images than replicas, too, of which some own none."""

    def network(spatial, x, weights):
        whole = spatial.leave_own(spatial.conv2d(x, weights[0], 2, "same"))
        noise = spatial.local_images(normal([BATCH, 1, 1, FILTERS], 3))
        return [spatial.all_images(tf.tanh(whole * noise), BATCH)]

    kernel = normal([3, 3, CHANNELS, FILTERS], 1)
    for height in (38, 5):
        check(k, network, normal([BATCH, height, 9, CHANNELS], 2), [kernel])


@pytest.mark.parametrize("k", [2, 4, 8])
def test_upsample_of_a_pyramid_s_levels(k):
    """Where rows do not divide evenly, a worker's rows on the finer level are not twice those on the coarser one."""
    for height, width in ((52, 8), (51, 7), (26, 5), (21, 4), (13, 3), (7, 3), (3, 2)):

        def network(spatial, x, weights):
            fine = spatial.conv2d(x, weights[0], 1, "same")
            coarse = spatial.max_pool(x, 1, 2, "valid")
            return [spatial.leave(fine + spatial.upsample(coarse, fine))]

        images = normal([BATCH, height, width, CHANNELS], 10)
        check(k, network, images, [normal([3, 3, CHANNELS, CHANNELS], 11)])
        coarse = images[:, ::2, ::2]
        doubled = tf.repeat(tf.repeat(coarse, 2, axis=1), 2, axis=2)[:, :height, :width]
        np.testing.assert_array_equal(Spatial(Single()).upsample(coarse, images), doubled)


@pytest.mark.parametrize("k", [2, 4])
def test_rows_that_do_not_exist_may_hold_anything(k):
    """The rows are NaN before each operation that mixes rows; no NaN reaches an output, a statistic or a gradient."""

    def spoilt(spatial, x):
        first = spatial.position() * x.shape[1]
        rows = tf.reshape(first + np.arange(x.shape[1]) < spatial.height(x), [1, -1, 1, 1])
        return tf.where(rows, x, tf.constant(np.nan, x.dtype))

    def network(spatial, x, weights):
        x = spatial.conv2d(spoilt(spatial, x), weights[0], 2, 3)
        means, _ = spatial.means(spoilt(spatial, x), 1)
        tf.debugging.assert_all_finite(means, "leaked into the means")
        x = spatial.max_pool(spoilt(spatial, x), 3, 2, "same")
        x = spoilt(spatial, x)
        return [spatial.leave(x), spatial.global_average(x)]

    for height in (19, 38, 75):
        images = normal([BATCH, height, 19, CHANNELS], 5)
        check(k, network, images, [normal([7, 7, CHANNELS, FILTERS], 6)])


def test_a_maximum_leaves_zeros_in_rows_that_do_not_exist():
    """So that a sum over rows that a network makes itself counts none of them; height 5 on 4 replicas is 2, 2, 1, 0."""

    def network(spatial, x, weights):
        y = spatial.max_pool(x, 3, 1, "same")
        return [spatial.all_reduce(tf.reduce_sum(y, axis=[1, 2]))]

    check(4, network, normal([BATCH, 5, 4, CHANNELS], 12))


# -- Batch norm ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("height", [8, 5, 1])
@pytest.mark.parametrize("replicas, k", [(4, 4), (4, 2), (2, 2)])
@pytest.mark.parametrize("span", [1, 2, 4])
def test_batch_norm_counts_whole_images(height, replicas, k, span):
    """4 images; the span counts images, however many replicas share one."""
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
        layers["mirrored"] = SyncBatchNorm(backend, span, precision("fp64"), spatial=Spatial(backend, k))
        layers["mirrored"].build([4 // groups, rows_of(height, k), 3, CHANNELS])
    layers["single"] = SyncBatchNorm(Single(), span, precision("fp64"))
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
