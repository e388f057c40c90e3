"""Tests loops of several steps a turn against a loop in numpy."""

import numpy as np
import pytest
import tensorflow as tf

from common.layers import scan

BATCH, WIDTH = 3, 4


def in_numpy(x: np.ndarray, state: np.ndarray, reverse: bool) -> tuple[np.ndarray, np.ndarray]:
    outputs = np.zeros_like(x)
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        state = np.tanh(state + x[t])
        outputs[t] = 2 * state
    return state, outputs


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("length", "turn"), [(24, 12), (10, 10), (17, 17), (19, 1), (48, 16)])
def test_a_compiled_loop_of_several_steps_a_turn_equals_a_step_at_a_time(length, turn, reverse) -> None:
    rng = np.random.default_rng(0)
    x, start = rng.normal(size=[length, BATCH, WIDTH]), rng.normal(size=[BATCH, WIDTH])
    assert scan.steps_of_a_turn(length) == turn

    def run(x: tf.Tensor, start: tf.Tensor) -> tuple:
        def step(state: tuple, inputs: tuple) -> tuple:
            state = (tf.tanh(state[0] + inputs[0]),)
            return state, (2 * state[0],)

        with tf.GradientTape() as tape:
            tape.watch(x)
            (last,), (outputs,) = scan.scan(step, (start,), (x,), reverse)
            loss = tf.reduce_sum(last * last) + tf.reduce_sum(outputs * outputs)
        return last, outputs, tape.gradient(loss, x)

    last, outputs, gradient = tf.function(run, jit_compile=True)(tf.constant(x), tf.constant(start))
    expected = in_numpy(x, start, reverse)
    np.testing.assert_allclose(last, expected[0], rtol=1e-10)
    np.testing.assert_allclose(outputs, expected[1], rtol=1e-10)

    # The gradient along a random direction, by a central difference.
    direction = rng.normal(size=x.shape)

    def loss(moved: np.ndarray) -> float:
        return sum((part**2).sum() for part in in_numpy(moved, start, reverse))

    slope = (loss(x + 1e-6 * direction) - loss(x - 1e-6 * direction)) / 2e-6
    np.testing.assert_allclose(np.sum(gradient * direction), slope, rtol=1e-7)


def test_a_loop_of_unknown_length_computes_a_step_a_turn() -> None:
    assert scan.steps_of_a_turn(None) == 1
