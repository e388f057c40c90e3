"""Tests layers with a bias, products with custom gradients, and padded convolutions against TensorFlow's own."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from common.layers import convolution, dense
from common.layers.convolution import GroupedConv2D, PaddedConv2D
from common.layers.dense import FEW_ROWS, product, product_transposed, times_transposed
from common.layers.dense import LastAxisDense as ProductDense

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


def value_and_gradients(layer: tf_keras.layers.Layer, x: tf.Tensor) -> list[tf.Tensor]:
    """Returns y = layer(x), and the gradients of the sum of y * y: of x and of the layer's trainable variables."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
        loss = tf.reduce_sum(y * y)
    return [y, *tape.gradient(loss, [x, *layer.trainable_variables])]


@pytest.mark.parametrize("name", PAIRS)
def test_equals_the_stock_layer(name: str) -> None:
    mine, stock, shape = PAIRS[name]
    x = tf.random.stateless_normal(shape, [1, 2])
    for layer in (mine, stock):
        layer.build(shape)
        layer.set_weights([np.random.default_rng(0).normal(size=w.shape) for w in layer.weights])
    for actual, want in zip(value_and_gradients(mine, x), value_and_gradients(stock, x), strict=True):
        np.testing.assert_allclose(actual, want, rtol=1e-5, atol=1e-5)
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
    actual = tape.gradient(y, layer.bias, output_gradients=above)
    want = tf.reduce_sum(tf.cast(above, tf.float64), list(range(above.shape.rank - 1)))
    np.testing.assert_allclose(tf.cast(actual, tf.float64), want, rtol=2**-8)


def test_bfloat16_is_added_as_by_the_stock_operation() -> None:
    x = tf.cast(tf.random.stateless_normal([6, 4], [1, 2]), tf.bfloat16)
    b = tf.cast(tf.random.stateless_normal([4], [3, 4]), tf.bfloat16)
    np.testing.assert_array_equal(dense.add_bias(x, b), tf.nn.bias_add(x, b))


FEW = (1, FEW_ROWS, FEW_ROWS + 1)
TOLERANCE = {"float32": 2e-6, "float64": 1e-14}  # Relative to the largest element, for sums of 40 products.


def normal(*shape: int, dtype: str) -> tf.Tensor:
    return tf.random.stateless_normal(shape, [0, sum(shape)], dtype=dtype)


def close(actual: tf.Tensor, expected: tf.Tensor) -> None:
    assert actual.shape == expected.shape
    worst = np.abs(actual - expected).max() / np.abs(expected).max()
    assert worst < TOLERANCE[actual.dtype.name] * np.sqrt(actual.shape[0])


def with_gradients(function: Callable, *arguments: tf.Tensor, compiled: bool = False) -> list[tf.Tensor]:
    @tf.function(jit_compile=compiled, autograph=False)
    def run(arguments: list[tf.Tensor]) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            output = function(*arguments)
            above = tf.sin(tf.stop_gradient(output))
        return [output, *tape.gradient(output, arguments, output_gradients=above)]

    return run(list(arguments))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows", FEW)
def test_equal_matmul_in_value_and_gradient(rows: int, dtype: str) -> None:
    x, matrix = normal(rows, 40, dtype=dtype), normal(40, 24, dtype=dtype)
    for actual, expected in zip(with_gradients(product, x, matrix), with_gradients(tf.matmul, x, matrix)):
        close(actual, expected)
    table = tf.transpose(matrix)
    plain = with_gradients(lambda a, b: tf.matmul(a, b, transpose_b=True), x, table)
    for actual, expected in zip(with_gradients(product_transposed, x, table), plain):
        close(actual, expected)
    for actual, expected in zip(with_gradients(product_transposed, x, table, compiled=True), plain):
        close(actual, expected)


def test_rows_that_are_not_known_take_the_plain_product() -> None:
    run = tf.function(times_transposed, input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([5, 3])])
    operations = {op.type for op in run.get_concrete_function().graph.get_operations()}
    assert "MatMul" in operations and "BatchMatMulV2" not in operations


@pytest.mark.parametrize("policy", ["float32", "float64", "mixed_bfloat16"])
def test_dense_is_the_stock_layer(policy: str) -> None:
    x = normal(2, 7, 5, dtype="float64" if policy == "float64" else "float32")
    stock = tf_keras.layers.Dense(3, "relu", bias_initializer="uniform", dtype=policy)
    ours = ProductDense(3, "relu", dtype=policy)
    stock.build(x.shape)
    ours.build(x.shape)
    ours.set_weights(stock.get_weights())
    expected, actual = stock(x), ours(x)
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    np.testing.assert_allclose(
        tf.cast(actual, tf.float32),
        tf.cast(expected, tf.float32),
        rtol=2e-2 if "16" in policy else 1e-5,
        atol=1e-6,
    )


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

    for actual, expected in zip(tf.function(outputs, jit_compile=True)(), outputs(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


def test_a_compiled_product_is_one_convolution():
    layer = PaddedConv2D(4, 1, pad=0, use_bias=False)
    x = tf.ones([1, 6, 6, 2])
    layer.build(x.shape)
    text = tf.function(layer, jit_compile=True).experimental_get_compiler_ir(x)(stage="stablehlo")
    assert text.count("stablehlo.convolution") == 1
    assert "stablehlo.dot" not in text
