"""Tests what Llama's layers are made of against their naive forms, eager and compiled, in float64 and bfloat16."""

import functools
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from common.layers import causal_attention, rope
from common.layers.chunked_cross_entropy import cross_entropies, summed_cross_entropy
from common.layers.recompute import earlier_gradients, recomputed
from common.layers.rms_norm import rms_normalized


def results(function: Callable, *operands: np.ndarray, compiled: bool = False) -> list[np.ndarray]:
    """The value of `function` and its gradients, weighted by fixed random numbers."""

    def both(*operands: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(operands)
            value = function(*operands)
            weights = np.random.default_rng(9).normal(size=value.shape)
            total = tf.reduce_sum(tf.cast(value, tf.float64) * weights)
        return [value, *tape.gradient(total, operands)]

    call = tf.function(both, jit_compile=True, autograph=False) if compiled else both
    return [tf.cast(x, tf.float64).numpy() for x in call(*map(tf.constant, operands))]


def heads(dtype: str, n: int) -> list[np.ndarray]:
    """Queries of 6 heads, keys and values of 2, of 4 numbers."""
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=[2, n, count, 4]) for count in (6, 2, 2)]
    return [tf.cast(array, dtype).numpy() for array in arrays]


def transcribed(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    output = np.zeros_like(query)
    for b, i, h in np.ndindex(*query.shape[:3]):
        past = slice(0, i + 1)
        weights = np.exp(key[b, past, h // 3] @ query[b, i, h] / 2)
        output[b, i, h] = weights @ value[b, past, h // 3] / weights.sum()
    return output


def plain(*operands: tf.Tensor) -> tf.Tensor:
    return causal_attention.plain(*operands, tf.float64)


def test_plain_attention_is_the_formula() -> None:
    operands = heads("float64", 7)
    np.testing.assert_allclose(results(plain, *operands)[0], transcribed(*operands), rtol=1e-12)


@pytest.mark.parametrize(("n", "blocks"), [(7, 1), (7, 3), (8, 4), (5, 8)])
@pytest.mark.parametrize("compiled", [False, True])
def test_attention_in_blocks_is_plain_attention(n: int, blocks: int, compiled: bool) -> None:
    operands = heads("float64", n)
    expected_outputs = results(plain, *operands)
    outputs = results(
        lambda q, k, v: causal_attention.in_blocks(q, k, v, tf.float64, blocks), *operands, compiled=compiled
    )
    for actual, expected in zip(outputs, expected_outputs, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-13)


def test_attention_in_bfloat16_is_near_that_of_float64() -> None:
    """Products round to 8 bits; the softmax does not."""
    operands = heads("bfloat16", 24)
    expected_outputs = results(plain, *(x.astype(np.float64) for x in operands))
    forms = (
        functools.partial(causal_attention.plain, full=tf.float32),
        functools.partial(causal_attention.in_blocks, full=tf.float32, blocks=3),
    )
    for form in forms:
        for actual, expected in zip(results(form, *operands), expected_outputs):
            assert np.abs(actual - expected).max() < 0.03 * np.abs(expected).max()


@pytest.mark.parametrize("chunks", [1, 3, 5, 15])
@pytest.mark.parametrize("compiled", [False, True])
def test_cross_entropy_in_chunks_is_that_of_all_logits(chunks: int, compiled: bool) -> None:
    rng = np.random.default_rng(2)
    x, kernel = rng.normal(size=[15, 6]), rng.normal(size=[6, 11])
    labels, weights = rng.integers(0, 11, 15).astype(np.int32), rng.uniform(size=15)

    def whole(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x @ kernel)
        return tf.reduce_sum(losses * weights)

    def in_chunks(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return summed_cross_entropy(x, kernel, tf.constant(labels), tf.constant(weights), chunks, tf.float64)

    expected_outputs, outputs = results(whole, x, kernel), results(in_chunks, x, kernel, compiled=compiled)
    for actual, expected in zip(outputs, expected_outputs, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-13)
    each = cross_entropies(tf.constant(x), tf.constant(kernel), tf.constant(labels), chunks, tf.float64)
    np.testing.assert_allclose(np.dot(each, weights), expected_outputs[0], rtol=1e-12)


@pytest.mark.parametrize("compiled", [False, True])
def test_recomputation_changes_nothing(compiled: bool) -> None:
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=[4, 5]), rng.normal(size=[5, 5])

    def layer(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        return tf.tanh(x @ w) @ w

    expected_outputs = results(layer, x, w)
    outputs = results(lambda *operands: recomputed(layer, *operands), x, w, compiled=compiled)
    for actual, expected in zip(outputs, expected_outputs, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize("compiled", [False, True])
def test_earlier_gradients_are_added_once_even_to_a_weight_of_two_layers(compiled: bool) -> None:
    rng = np.random.default_rng(6)
    x, w, earlier = (tf.constant(rng.normal(size=[5, 5])) for _ in range(3))
    weight = tf.Variable(w)

    def step(sums: dict) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = recomputed(tf.matmul, recomputed(tf.matmul, x, weight), weight)
        with earlier_gradients(sums):
            gradient = tape.gradient(y, weight)
        assert not sums, "taken"
        return gradient

    total = tf.function(lambda: step({weight.ref(): earlier}), jit_compile=compiled, autograph=False)()
    np.testing.assert_allclose(total, earlier + step({}), rtol=1e-12)


def test_the_second_computation_is_behind_a_barrier() -> None:
    """XLA:GPU and XLA:TPU keep both barriers to the end: before the second computation, and after its gradients.

    A CPU's compiler may take them away and merge the two computations.
    """

    @tf.function(jit_compile=True, autograph=False)
    def step(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(w)
            total = tf.reduce_sum(recomputed(lambda x, w: tf.tanh(tf.tanh(x @ w) @ w), x, w))
        return tape.gradient(total, w)

    text = step.experimental_get_compiler_ir(tf.ones([8, 8]), tf.ones([8, 8]))(stage="stablehlo")
    assert (text.count("stablehlo.optimization_barrier"), text.count("stablehlo.tanh")) == (2, 4)


def test_rms_norm_is_its_formula_in_the_precision_of_its_gain() -> None:
    rng = np.random.default_rng(4)
    x, gain = rng.normal(size=[3, 8]), rng.normal(size=8)
    expected_outputs = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-5) * gain
    np.testing.assert_allclose(
        rms_normalized(tf.constant(x), tf.constant(gain), 1e-5), expected_outputs, rtol=1e-12
    )
    low = rms_normalized(tf.cast(x, tf.bfloat16), tf.constant(gain, tf.float32), 1e-5)
    assert low.dtype == tf.bfloat16 and np.abs(tf.cast(low, tf.float64) - expected_outputs).max() < 0.03


def test_a_rotation_depends_on_distances_alone() -> None:
    """The product of two heads at positions i and j is the same for equal i - j, and the length stays."""
    cosine, sine = (
        tf.constant(table) for table in rope.tables(9, rope.frequencies(8, 100.0, 4.0, length=16))
    )
    rng = np.random.default_rng(5)
    one, other = (np.tile(rng.normal(size=8), [1, 9, 1, 1]) for _ in range(2))
    a, b = (rope.rotated(tf.constant(x), cosine, sine).numpy()[0, :, 0] for x in (one, other))
    products = a @ b.T
    for distance in range(9):
        np.testing.assert_allclose(np.diag(products, distance), products[0, distance], rtol=1e-10)
    assert len(set(np.round(products[0], 6))) == 9
    np.testing.assert_allclose((a * a).sum(-1), (one[0, 0, 0] ** 2).sum(), rtol=1e-12)


def test_wavelengths_beside_the_scaling_s_borders() -> None:
    """Below 2048 tokens unchanged, above 8192 eight times as long, between them in between."""
    plain_, scaled = rope.frequencies(128, 5e5), rope.frequencies(128, 5e5, 8.0, 1.0, 4.0, 8192)
    waves = 2 * np.pi / plain_
    assert (scaled[waves < 2048] == plain_[waves < 2048]).all()
    np.testing.assert_allclose(scaled[waves > 8192], plain_[waves > 8192] / 8, rtol=1e-12)
    between = (waves > 2048) & (waves < 8192)
    assert between.sum() > 3 and ((scaled < plain_) & (scaled > plain_ / 8))[between].all()


def test_a_factor_of_the_loss_multiplies_gradients_in_full_precision() -> None:
    """A third in bfloat16 is 0.2 % off; only the result is rounded."""
    rng, third = np.random.default_rng(4), np.float32(1 / 3)
    x = tf.cast(rng.normal(size=[6, 8]), tf.bfloat16)
    kernel = tf.constant(rng.normal(size=[8, 5]), tf.float32)

    def gradient(factor: np.float32) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            labels = tf.range(6) % 5
            loss = factor * summed_cross_entropy(x, kernel, labels, tf.ones([6]), 2, tf.bfloat16)
        return tape.gradient(loss, x)

    whole = tf.cast(gradient(np.float32(1)), tf.float32)
    np.testing.assert_array_equal(gradient(third), tf.cast(whole * third, tf.bfloat16))
