"""Tests dropout under XLA: one program makes a new mask at every draw."""

import numpy as np
import pytest
import tensorflow as tf

from common.distributed.replicas.single import Single
from common.layers.dropout import Dropout


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_masks_under_xla(dtype):
    """The counter is an argument of the program, so that one compilation serves all draws."""
    layer, x = Dropout(Single(), 0.4, seed=3, dtype=dtype.name), tf.ones([5, 7], dtype)
    step = tf.function(lambda x: layer(x, training=True), jit_compile=True, autograph=False)
    text = step.experimental_get_compiler_ir(x)(stage="stablehlo")
    masks = [step(x).numpy() > 0 for _ in range(3)]
    assert len({mask.tobytes() for mask in masks}) == 3
    assert step.experimental_get_compiler_ir(x)(stage="stablehlo") == text
    assert int(layer.draws) == 3
    layer.draws.assign(1)
    assert np.array_equal(step(x).numpy() > 0, masks[1])
    assert np.isclose(np.mean(masks), 0.6, atol=0.15)


@pytest.mark.parametrize("rate", [0.1, 1 / 3, 0.75])
def test_masks_are_the_same_with_and_without_xla(rate):
    """The masks are also those of a uniform number in [0, 1) from TensorFlow's own kernel."""
    x = tf.ones([6, 32])
    layers = [Dropout(Single(), rate, seed=5) for _ in range(2)]
    step = tf.function(lambda: layers[1](x, training=True), jit_compile=True, autograph=False)
    for draw in range(3):
        plain = layers[0](x, training=True).numpy()
        np.testing.assert_array_equal(step(), plain)
        key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=[5, draw])
        uniform = tf.raw_ops.StatelessRandomUniformV2(shape=[6, 32], key=key, counter=counter, alg=1)
        np.testing.assert_array_equal(plain > 0, uniform.numpy() >= np.float32(rate))
