"""Tests the cross-entropy that keeps its exponentials against TensorFlow's, also with large logits."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from common.layers.cross_entropy import sparse_cross_entropy

ROWS, CLASSES = 6, 9


def losses_and_gradient(
    function, logits: np.ndarray, targets: np.ndarray, compiled: bool = False
) -> list[np.ndarray]:
    weights = np.arange(len(targets)) - 2.0

    @tf.function(jit_compile=compiled, autograph=False)
    def both(x: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            losses = function(x, targets)
            loss = tf.reduce_sum(losses * weights)
        return losses, tape.gradient(loss, x)

    return [x.numpy() for x in both(tf.constant(logits), tf.constant(targets))]


compiled_or_not = pytest.mark.parametrize("compiled", [False, True])


def stock(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)


@compiled_or_not
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("scale", [0.1, 1.0, 300.0])
def test_equals_the_stock_function_and_its_gradient(scale, dtype, compiled) -> None:
    rng = np.random.default_rng(7)
    logits = rng.normal(size=[ROWS, CLASSES]) * scale
    targets = rng.integers(0, CLASSES, [ROWS]).astype(dtype)
    pairs = zip(
        losses_and_gradient(sparse_cross_entropy, logits, targets, compiled),
        losses_and_gradient(stock, logits, targets),
    )
    for actual, expected in pairs:
        np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-12)


@compiled_or_not
@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_smoothing_equals_dense_targets(smoothing, compiled) -> None:
    def dense(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        spread = smoothing / CLASSES
        smoothed = tf.one_hot(targets, CLASSES, 1 - smoothing + spread, spread, dtype=logits.dtype)
        return tf.nn.softmax_cross_entropy_with_logits(smoothed, logits)

    rng = np.random.default_rng(8)
    logits, targets = rng.normal(size=[ROWS, CLASSES]), rng.integers(0, CLASSES, [ROWS])
    smoothed = functools.partial(sparse_cross_entropy, smoothing=smoothing)
    pairs = zip(
        losses_and_gradient(smoothed, logits, targets, compiled), losses_and_gradient(dense, logits, targets)
    )
    for actual, expected in pairs:
        np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-12)


@compiled_or_not
def test_logits_beyond_the_range_of_an_exponential_stay_finite(compiled) -> None:
    logits = np.array([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]])
    losses, gradient = losses_and_gradient(sparse_cross_entropy, logits, np.array([1, 2]), compiled)
    np.testing.assert_allclose(losses, [2e4, np.log(3)])
    assert np.isfinite(gradient).all()
