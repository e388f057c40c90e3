"""Tests the forms of layers for XLA:GPU against the stock ones, which every other device computes."""

import numpy as np
import pytest
import tensorflow as tf

from common.distributed.replicas.single import Single
from common.distributed.spatial import WHOLE_IMAGES
from common.layers.batch_norm import SyncBatchNorm
from common.layers.gpu_forms import MaxPool, NormalizedConv2D, ReLU, in_weight_layout
from common.layers.precision import precision
from tsm_kinetics.layers import MaxPool as ClipPool


class _Gpu(Single):
    platform = "NVIDIA H200"


def _both(make, x, seed=3):
    """Output and gradient of `make(replicas)` as a GPU's program has it, and of the stock operation."""
    actual = []
    for replicas, compiled in ((_Gpu(), True), (Single(), False)):
        layer = make(replicas)

        @tf.function(autograph=False, jit_compile=compiled)
        def step(x, upstream, layer=layer):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x)
            return y, tape.gradient(y, x, output_gradients=upstream)

        shape = layer(x).shape
        upstream = tf.constant(np.random.default_rng(seed).integers(-8, 9, shape), x.dtype)
        actual.append(step(x, upstream))
    return actual


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("padding", ["same", "valid", 1])
@pytest.mark.parametrize("sides", [(8, 8), (7, 10), (9, 5), (3, 4)])
def test_max_pool_equals_the_stock_one(dtype, padding, sides):
    """Half of the values are equal to others: the first maximum of a window takes the gradient."""
    x = tf.constant(np.random.default_rng(1).integers(0, 6, [2, *sides, 3]), dtype)
    mine, stock = _both(lambda replicas: MaxPool(replicas, WHOLE_IMAGES, padding, dtype=dtype), x)
    for actual, expected in zip(mine, stock, strict=True):
        np.testing.assert_array_equal(tf.cast(actual, tf.float64), tf.cast(expected, tf.float64))


def test_pool_of_clips_equals_the_stock_one():
    x = tf.constant(np.random.default_rng(2).integers(-5, 6, [2, 3, 8, 7, 4]), tf.float64)
    mine, stock = _both(lambda replicas: ClipPool(replicas, 3, 1, dtype="float64"), x)
    for actual, expected in zip(mine, stock, strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("in_bits, channels", [(False, 5), (True, 5), (True, 16)])
def test_relu_equals_the_stock_one(in_bits, channels):
    x = tf.constant(np.random.default_rng(4).integers(-2, 3, [4, 3, channels]), tf.float64)
    mine, stock = _both(lambda replicas: ReLU(replicas, in_bits, dtype="float64"), x)
    for actual, expected in zip(mine, stock, strict=True):
        np.testing.assert_array_equal(actual, expected)


def _normalized(replicas, name):
    """A 3x3 convolution and its frozen norm, with moments and parameters that are not trivial."""
    policy, rng = precision(name), np.random.default_rng(7)
    norm = SyncBatchNorm(replicas, 0, policy, trainable=False)
    conv = NormalizedConv2D(norm, 16, 3, pad=1, dtype=policy.layer)
    norm(conv(tf.zeros([2, 8, 8, 12], policy.compute)))
    conv.kernel.assign(rng.normal(size=conv.kernel.shape) * 0.1)
    for variable in (norm.gamma, norm.merged_variance):
        variable.assign(rng.uniform(0.5, 2, 16))
    for variable in (norm.beta, norm.merged_mean):
        variable.assign(rng.normal(size=16))
    return conv, norm


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name, factor", [("fp64", 0), ("fp32", 4), ("bf16", 1.5), ("fp16", 1.5)])
def test_a_convolution_with_its_frozen_norm_equals_both(name, factor, training):
    """In float64 to 1e-12; otherwise its error is at most `factor` times that of both, computed one after the other."""
    images = np.random.default_rng(8).normal(size=[2, 8, 8, 12])
    actual = []
    for replicas, kind in ((Single(), "fp64"), (Single(), name), (_Gpu(), name)):
        conv, norm = _normalized(replicas, kind)

        @tf.function(autograph=False, jit_compile=True)
        def step(x, conv=conv, norm=norm, replicas=replicas):
            with tf.GradientTape() as tape:
                tape.watch([x, norm.gamma, norm.beta])
                y = ReLU(replicas, dtype=x.dtype)(norm(conv(x), training=training))
                total = tf.reduce_sum(tf.cast(y, tf.float32) ** 2)
            return y, tape.gradient(total, [x, conv.kernel, norm.gamma, norm.beta])

        y, gradients = step(tf.constant(images, precision(kind).compute))
        assert y.dtype == precision(kind).compute and gradients[1].dtype == precision(kind).variable
        if isinstance(replicas, _Gpu):
            assert gradients[2] is gradients[3] is None
        actual.append([tf.cast(x, tf.float64).numpy() for x in (y, *gradients[:2])])
    for exact, both, one in zip(*actual, strict=True):
        size = np.linalg.norm(exact)
        error, allowed = np.linalg.norm(one - exact), factor * np.linalg.norm(both - exact)
        assert error <= max(allowed, 1e-6 * size if name == "fp32" else 1e-12 * size)


def test_only_a_convolution_s_gradient_changes_its_layout():
    kernel, matrix = tf.random.normal([3, 3, 4, 5]), tf.random.normal([4, 5])

    @tf.function(autograph=False, jit_compile=True)
    def both():
        changed = in_weight_layout(_Gpu(), kernel)
        assert changed.op.type == "Reshape" and in_weight_layout(_Gpu(), matrix) is matrix
        assert in_weight_layout(Single(), kernel) is kernel
        return changed

    np.testing.assert_array_equal(both(), kernel)
