"""Tests the hoisted LSTM against the plain one and a transcription in numpy."""

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from common.layers import lstm
from common.layers.precision import precision
from common.layers.scan import UNROLLED_STEPS
from common.layers.variable_kinds import kind_of
from tests.common.layers.plain_lstm import PlainLSTM, plain

STEPS, BATCH, INPUTS, UNITS = 7, 5, 3, 4
FP64 = precision("fp64")


def values(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def layer(hoisted: bool, inputs: int = INPUTS, policy=FP64) -> lstm.LSTM:
    network = (lstm.LSTM if hoisted else PlainLSTM)(UNITS, policy)
    network.build([None, None, inputs])
    shapes = [v.shape for v in network.trainable_variables]
    network.set_weights([values(*s, seed=10 + i) for i, s in enumerate(shapes)])
    return network


def everything(network: lstm.LSTM, x: np.ndarray, state: bool, lengths: list[int] | None):
    """Outputs, last state, and the gradients of all inputs and variables, of a loss that uses all results."""
    batch = x.shape[1]
    h, c = values(batch, UNITS, seed=1), values(batch, UNITS, seed=2)
    specs = [tf.TensorSpec(s, tf.float64) for s in (x.shape, h.shape, c.shape)]

    @tf.function(input_signature=specs)
    def run(x: tf.Tensor, h: tf.Tensor, c: tf.Tensor):
        with tf.GradientTape() as tape:
            tape.watch([x, h, c])
            outputs, (last_h, last_c) = network(x, (h, c) if state else None, lengths)
            terms = zip((outputs, last_h, last_c), (3, 4, 5))
            weighted = [t * values(*(x.shape[0], batch, UNITS)[-len(t.shape) :], seed=s) for t, s in terms]
            loss = tf.add_n([tf.reduce_sum(w * tf.sin(w)) for w in weighted])
        sources = [x, *([h, c] if state else []), *network.trainable_variables]
        return [outputs, last_h, last_c, *tape.gradient(loss, sources)]

    return [t.numpy() for t in run(x, h, c)]


@pytest.mark.parametrize("lengths", [None, [7, 1, 4, 0, 6]])
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("steps", [STEPS, UNROLLED_STEPS + 2])
def test_hoisted_equals_plain_forward_and_in_every_gradient(state, lengths, steps) -> None:
    x = values(steps, BATCH, INPUTS, seed=0)
    expected = everything(layer(False), x, state, lengths)
    for actual, want in zip(everything(layer(True), x, state, lengths), expected, strict=True):
        np.testing.assert_allclose(actual, want, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("lengths", [None, [7, 1, 4, 0]])
@pytest.mark.parametrize("steps", [STEPS, UNROLLED_STEPS + 2])
def test_two_chains_of_half_a_batch_equal_one(monkeypatch, lengths, steps) -> None:
    x, results = values(steps, 4, INPUTS, seed=0), []
    for limit in (0, lstm.SMALL_PRODUCT):
        monkeypatch.setattr(lstm, "SMALL_PRODUCT", limit)
        assert lstm._chains(4, UNITS) == (2 if limit else 1)
        results.append(everything(layer(True), x, True, lengths))
    for actual, want in zip(*results, strict=True):
        np.testing.assert_allclose(actual, want, rtol=1e-8, atol=1e-10)


def test_a_batch_stays_whole_where_it_is_odd_or_its_products_are_large_or_behind_xla() -> None:
    assert [lstm._chains(*shape) for shape in ((None, 128), (127, 128), (128, 128), (64, 1024))] == [
        1,
        1,
        2,
        1,
    ]
    inside = []
    tf.function(lambda: tf.constant(inside.append(lstm._chains(128, 128)) or 0), jit_compile=True)()
    assert inside == [1]


def test_a_batch_stays_whole_beside_a_gpu(monkeypatch) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    assert lstm._chains(128, 128) == 1


def gradients(network: Any, x: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.sin(network(x)[0]))
    return tape.gradient(loss, network.trainable_variables)


@pytest.mark.parametrize("hoisted", [False, True])
@pytest.mark.parametrize("steps", [STEPS, UNROLLED_STEPS + 2])
def test_compiled_equals_uncompiled(hoisted, steps) -> None:
    x, network = tf.constant(values(steps, BATCH, INPUTS, seed=0)), layer(hoisted)
    network(x)

    compiled = tf.function(functools.partial(gradients, network), jit_compile=True)(x)
    for actual, want in zip(compiled, gradients(network, x), strict=True):
        np.testing.assert_allclose(actual, want, rtol=1e-8, atol=1e-10)


def test_a_loop_of_unknown_length_equals_one_that_is_written_out() -> None:
    x = tf.constant(values(STEPS, BATCH, INPUTS, seed=0))
    network = layer(True)

    signature = [tf.TensorSpec([None, None, INPUTS], tf.float64)]
    unknown = tf.function(functools.partial(gradients, network), input_signature=signature)
    for actual, want in zip(unknown(x), gradients(network, x), strict=True):
        np.testing.assert_allclose(actual, want, rtol=1e-8)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("steps", [STEPS, 12])
def test_layers_side_by_side_equal_one_after_the_other(steps, compiled) -> None:
    inputs = [tf.constant(values(steps, BATCH, INPUTS, seed=s)) for s in (0, 1)]

    def outcome(run) -> list[np.ndarray]:
        both = [layer(True), layer(True)]
        both[1].set_weights([1.1 * w for w in both[1].get_weights()])

        @tf.function(jit_compile=compiled)
        def gradients(inputs: list[tf.Tensor]) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = run(both, inputs)
                loss = tf.add_n([tf.reduce_sum(tf.sin((2 + i) * y)) for i, y in enumerate(outputs)])
            variables = [v for one in both for v in one.trainable_variables]
            return [*outputs, *tape.gradient(loss, [*inputs, *variables])]

        return gradients(inputs)

    def in_turn(both: list[lstm.LSTM], inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        zeros = tf.zeros([BATCH, UNITS], tf.float64)
        return [
            plain(x, *one.trainable_variables, (zeros, zeros), None, FP64)[0] for one, x in zip(both, inputs)
        ]

    expected = outcome(in_turn)
    for actual, want in zip(outcome(lstm.side_by_side), expected, strict=True):
        np.testing.assert_allclose(actual, want, rtol=1e-8, atol=1e-10)


def test_equals_the_formulas_in_numpy() -> None:
    network, x = layer(True), values(STEPS, BATCH, INPUTS, seed=0)
    kernel, recurrent, bias = network.get_weights()
    h = c = np.zeros([BATCH, UNITS])
    expected = []
    for row in x:
        i, f, g, o = np.split(row @ kernel + h @ recurrent + bias, 4, axis=-1)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        expected.append(h)
    outputs, (last_h, last_c) = network(tf.constant(x))
    np.testing.assert_allclose(outputs, expected, rtol=1e-8)
    np.testing.assert_allclose([last_h, last_c], [h, c], rtol=1e-8)


@pytest.mark.parametrize("hoisted", [False, True])
def test_beyond_its_length_an_example_keeps_its_state_and_outputs_zeros(hoisted) -> None:
    network, x = layer(hoisted), values(STEPS, BATCH, INPUTS, seed=0)
    lengths = [7, 1, 4, 0, 6]
    outputs, (h, c) = network(tf.constant(x), None, tf.constant(lengths))
    for example, length in enumerate(lengths):
        assert not np.any(outputs[length:, example])
        if length:
            alone, (alone_h, alone_c) = network(tf.constant(x[:length, example : example + 1]))
            np.testing.assert_allclose(outputs[:length, example], alone[:, 0], rtol=1e-8)
            np.testing.assert_allclose([h[example], c[example]], [alone_h[0], alone_c[0]], rtol=1e-8)
        else:
            assert not np.any(h[example]) and not np.any(c[example])


def test_one_product_per_weight_gradient() -> None:
    """Hoisted: T products forward, T backward and four outside the loops; plain: 3 T products."""
    layers, products = {}, {}
    for hoisted in (True, False):
        layers[hoisted] = layer(hoisted)

        @tf.function
        def run(x: tf.Tensor, network: lstm.LSTM = layers[hoisted]):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(network(x)[0])
            return tape.gradient(loss, [x, *network.trainable_variables])

        graph = run.get_concrete_function(tf.TensorSpec([STEPS, BATCH, INPUTS], tf.float64)).graph
        products[hoisted] = sum(op.type == "MatMul" for op in graph.get_operations())
    assert products == {True: 2 * STEPS + 4, False: 3 * STEPS}


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_lower_precision_is_near_and_keeps_its_variables_in_fp32(name) -> None:
    policy = precision(name)
    x = values(STEPS, BATCH, INPUTS, seed=0)
    exact, _ = layer(True)(tf.constant(x))
    lstm_layer = layer(True, policy=policy)
    outputs, _ = lstm_layer(tf.constant(x, policy.compute))
    assert outputs.dtype == tf.float32 and all(v.dtype == tf.float32 for v in lstm_layer.variables)
    np.testing.assert_allclose(outputs, exact, atol={"fp32": 1e-5, "bf16": 0.05}[name])


def test_gradients_in_bf16_are_near_those_in_fp64() -> None:
    """bf16 is the PTB study's precision; errors are relative to the largest element of each gradient."""
    policy, actual = precision("bf16"), []
    for cell in (layer(True), layer(True, policy=policy)):
        x = tf.constant(values(STEPS, BATCH, INPUTS, seed=0), cell.compute_dtype)
        with tf.GradientTape() as tape:
            outputs, _ = cell(x)
            loss = tf.reduce_sum(tf.sin(outputs))
        actual.append([tf.cast(g, tf.float64).numpy() for g in tape.gradient(loss, cell.trainable_variables)])
    for exact, near in zip(*actual, strict=True):
        np.testing.assert_allclose(near, exact, atol=0.02 * np.abs(exact).max())


def test_variables_have_kinds_and_the_forget_gate_its_bias() -> None:
    network = lstm.LSTM(UNITS, precision("fp32"), forget_bias=1.0)
    network.build([None, None, INPUTS])
    assert sorted(kind_of(network).values()) == ["bias", "kernel", "kernel"]
    np.testing.assert_array_equal(network.bias, [0] * 4 + [1] * 4 + [0] * 8)
