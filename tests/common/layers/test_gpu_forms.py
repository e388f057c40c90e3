"""Tests the forms of layers for XLA:GPU against the stock ones, which every other device computes."""

import numpy as np
import pytest
import tensorflow as tf

from common.distributed.replicas.single import Single
from common.distributed.spatial import WHOLE_IMAGES
from common.layers.gpu_forms import MaxPool, ReLU
from tsm_kinetics.layers import MaxPool as ClipPool


class _Gpu(Single):
    platform = "NVIDIA H200"


def _both(make, x, seed=3):
    """Output and gradient of `make(replicas)` as a GPU's program has it, and of the stock operation."""
    found = []
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
        found.append(step(x, upstream))
    return found


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("padding", ["same", "valid", 1])
@pytest.mark.parametrize("sides", [(8, 8), (7, 10), (9, 5), (3, 4)])
def test_max_pool_equals_the_stock_one(dtype, padding, sides):
    """Half of the values are equal to others: the first maximum of a window takes the gradient."""
    x = tf.constant(np.random.default_rng(1).integers(0, 6, [2, *sides, 3]), dtype)
    mine, stock = _both(lambda replicas: MaxPool(replicas, WHOLE_IMAGES, padding, dtype=dtype), x)
    for got, want in zip(mine, stock, strict=True):
        np.testing.assert_array_equal(tf.cast(got, tf.float64), tf.cast(want, tf.float64))


def test_pool_of_clips_equals_the_stock_one():
    x = tf.constant(np.random.default_rng(2).integers(-5, 6, [2, 3, 8, 7, 4]), tf.float64)
    mine, stock = _both(lambda replicas: ClipPool(replicas, 3, 1, dtype="float64"), x)
    for got, want in zip(mine, stock, strict=True):
        np.testing.assert_array_equal(got, want)


def test_relu_equals_the_stock_one():
    x = tf.constant(np.random.default_rng(4).integers(-2, 3, [4, 5]), tf.float64)
    mine, stock = _both(lambda replicas: ReLU(replicas, dtype="float64"), x)
    for got, want in zip(mine, stock, strict=True):
        np.testing.assert_array_equal(got, want)
