"""Tests that the form of a padded convolution that XLA compiles equals the one of TensorFlow's kernels."""

import numpy as np
import pytest
import tensorflow as tf

from common.layers.convolution import PaddedConv2D


@pytest.mark.parametrize(
    ("size", "stride", "pad"), [(1, 1, 0), (1, 2, 0), (3, 1, 1), (3, 2, 1), (3, 1, 0), (7, 2, 3)]
)
def test_a_compiled_convolution_and_its_gradients_equal_the_plain_ones(size, stride, pad):
    layer = PaddedConv2D(5, size, strides=stride, pad=pad, use_bias=False, dtype="float64")
    x = tf.random.stateless_normal([2, 12, 10, 3], [1, 2], dtype=tf.float64)
    layer.build(x.shape)

    def outputs():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
            loss = tf.reduce_sum(tf.sin(y))
        return y, *tape.gradient(loss, [x, layer.kernel])

    for found, expected in zip(tf.function(outputs, jit_compile=True)(), outputs(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_a_compiled_product_is_one_convolution():
    layer = PaddedConv2D(4, 1, pad=0, use_bias=False)
    x = tf.ones([1, 6, 6, 2])
    layer.build(x.shape)
    text = tf.function(layer, jit_compile=True).experimental_get_compiler_ir(x)(stage="stablehlo")
    assert text.count("stablehlo.convolution") == 1
    assert "stablehlo.dot" not in text
