"""Tests matrix products with custom gradients against tf.matmul."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from common.layers.dense import FEW_ROWS, LastAxisDense, product, product_transposed, times_transposed

ROWS = (1, FEW_ROWS, FEW_ROWS + 1)
TOLERANCE = {"float32": 2e-6, "float64": 1e-14}  # Relative to the largest element, for sums of 40 products.


def normal(*shape: int, dtype: str) -> tf.Tensor:
    return tf.random.stateless_normal(shape, [0, sum(shape)], dtype=dtype)


def close(found: tf.Tensor, expected: tf.Tensor) -> None:
    assert found.shape == expected.shape
    worst = np.abs(found - expected).max() / np.abs(expected).max()
    assert worst < TOLERANCE[found.dtype.name] * np.sqrt(found.shape[0])


def with_gradients(function: Callable, *arguments: tf.Tensor, compiled: bool = False) -> list[tf.Tensor]:
    @tf.function(jit_compile=compiled, autograph=False)
    def run(arguments: list[tf.Tensor]) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            found = function(*arguments)
            above = tf.sin(tf.stop_gradient(found))
        return [found, *tape.gradient(found, arguments, output_gradients=above)]

    return run(list(arguments))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows", ROWS)
def test_equal_matmul_in_value_and_gradient(rows: int, dtype: str) -> None:
    x, matrix = normal(rows, 40, dtype=dtype), normal(40, 24, dtype=dtype)
    for found, expected in zip(with_gradients(product, x, matrix), with_gradients(tf.matmul, x, matrix)):
        close(found, expected)
    table = tf.transpose(matrix)
    plain = with_gradients(lambda a, b: tf.matmul(a, b, transpose_b=True), x, table)
    for found, expected in zip(with_gradients(product_transposed, x, table), plain):
        close(found, expected)
    for found, expected in zip(with_gradients(product_transposed, x, table, compiled=True), plain):
        close(found, expected)


def test_rows_that_are_not_known_take_the_plain_product() -> None:
    run = tf.function(times_transposed, input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([5, 3])])
    operations = {op.type for op in run.get_concrete_function().graph.get_operations()}
    assert "MatMul" in operations and "BatchMatMulV2" not in operations


@pytest.mark.parametrize("policy", ["float32", "float64", "mixed_bfloat16"])
def test_dense_is_the_stock_layer(policy: str) -> None:
    x = normal(2, 7, 5, dtype="float64" if policy == "float64" else "float32")
    stock = tf_keras.layers.Dense(3, "relu", bias_initializer="uniform", dtype=policy)
    ours = LastAxisDense(3, "relu", dtype=policy)
    stock.build(x.shape)
    ours.build(x.shape)
    ours.set_weights(stock.get_weights())
    expected, found = stock(x), ours(x)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_allclose(
        tf.cast(found, tf.float32),
        tf.cast(expected, tf.float32),
        rtol=2e-2 if "16" in policy else 1e-5,
        atol=1e-6,
    )
