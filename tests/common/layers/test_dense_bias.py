"""Tests layers with a bias: equal to the stock ones, except that a bfloat16 gradient is summed in full precision."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from common.layers import convolution, dense
from common.layers.convolution import GroupedConv2D, PaddedConv2D
from common.layers.dense import LastAxisDense as ProductDense
from tests.common.layers.small_layers import value_and_gradients

ROWS = 4096
PAIRS = {
    "dense": (dense.Dense(5, "relu"), tf_keras.layers.Dense(5, "relu"), [7, 6]),
    "conv": (
        convolution.Conv2D(5, 3, activation="relu"),
        tf_keras.layers.Conv2D(5, 3, activation="relu"),
        [2, 8, 6, 3],
    ),
    "transposed": (
        convolution.Conv2DTranspose(5, 2, activation="relu"),
        tf_keras.layers.Conv2DTranspose(5, 2, 2, activation="relu"),
        [2, 4, 6, 3],
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_equals_the_stock_layer(name: str) -> None:
    mine, stock, shape = PAIRS[name]
    x = tf.random.stateless_normal(shape, [1, 2])
    for layer in (mine, stock):
        layer.build(shape)
        layer.set_weights([np.random.default_rng(0).normal(size=w.shape) for w in layer.weights])
    for got, want in zip(value_and_gradients(mine, x), value_and_gradients(stock, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert mine.compute_output_shape(shape) == stock.compute_output_shape(shape)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (dense.Dense(3, dtype="mixed_bfloat16"), [ROWS, 2]),
        (ProductDense(3, dtype="mixed_bfloat16"), [4, ROWS // 4, 2]),
        (convolution.Conv2D(3, 1, dtype="mixed_bfloat16"), [4, 32, 32, 2]),
        (PaddedConv2D(3, 3, pad=1, dtype="mixed_bfloat16"), [4, 32, 32, 2]),
        (GroupedConv2D(4, 3, pad=1, groups=2, dtype="mixed_bfloat16"), [4, 32, 32, 2]),
        (convolution.Conv2DTranspose(3, 2, dtype="mixed_bfloat16"), [4, 16, 16, 2]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, tf_keras.layers.Layer) else "",
)
def test_the_gradient_of_a_bfloat16_bias_is_a_sum_in_full_precision(layer, shape: list[int]) -> None:
    """The gradient is a sum of 4,096 numbers of one sign; TensorFlow's own is off by 57 % here."""
    rng = np.random.default_rng(0)
    with tf.GradientTape() as tape:
        y = layer(tf.constant(rng.normal(size=shape), tf.bfloat16))
        above = tf.constant(0.01 + 0.01 * rng.normal(size=y.shape), tf.bfloat16)
    got = tape.gradient(y, layer.bias, output_gradients=above)
    want = tf.reduce_sum(tf.cast(above, tf.float64), list(range(above.shape.rank - 1)))
    np.testing.assert_allclose(tf.cast(got, tf.float64), want, rtol=2**-8)


def test_bfloat16_is_added_as_by_the_stock_operation() -> None:
    x = tf.cast(tf.random.stateless_normal([6, 4], [1, 2]), tf.bfloat16)
    b = tf.cast(tf.random.stateless_normal([4], [3, 4]), tf.bfloat16)
    np.testing.assert_array_equal(dense.add_bias(x, b), tf.nn.bias_add(x, b))
