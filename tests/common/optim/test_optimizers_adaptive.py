"""Tests Adam, LazyAdam, Adagrad, RMSprop and Adadelta against their formulas in numpy."""

import numpy as np
import pytest
import tensorflow as tf

from common.config.optimizer import Adadelta, Adagrad, Adam, LazyAdam, Optimizer, RMSprop
from common.config.rules import OPTIMIZERS
from common.errors import UserError
from common.optim import optimizers
from common.optim.rule import bias
from tests.timetotrain.run.rules import KINDS, STEPS, problem, run, worst

# GNMT's Adam, the Transformer's LazyAdam at 512 and 2048 sequences (docs/sources.md, mlperf 1.4 and 1.5), and the
# solvers of the LEGW studies.
ADAPTIVE = {
    "adam": Adam(epsilon=1e-8),
    "adam with decay": Adam(epsilon=1e-8, weight_decay=1e-2, l2_in_loss=1e-2),
    "lazy_adam 512": LazyAdam(beta_2=0.98, epsilon=1e-9),
    "lazy_adam 2048": LazyAdam(beta_1=0.86, beta_2=0.92, epsilon=1e-9),
    "adagrad": Adagrad(),
    "adagrad from zero": Adagrad(initial_accumulator=0.0, epsilon=1e-7),
    "rmsprop": RMSprop(epsilon=1e-7),
    "adadelta": Adadelta(rho=0.95, epsilon=1e-7),
}
RATE = 1 / 64  # Exact in every precision: tf_keras keeps its rate in float32.


def transcribed_adaptive(c: Optimizer, weights: dict, gradients: list[dict], rate: float) -> dict:
    """Runs the rules in numpy: Adam (Kingma and Ba, "epsilon hat"), row-wise where lazy; Adagrad; RMSprop; Adadelta.

    Sources: Duchi et al. for Adagrad, Hinton's lecture for RMSprop, Zeiler for Adadelta.
    """
    result = {}
    for name, w in weights.items():
        w = w.copy()
        m, v, moved = np.zeros_like(w), np.zeros_like(w), np.zeros_like(w)
        if c.name == "adagrad":
            v += c.initial_accumulator
        for step in range(STEPS):
            g = gradients[step][name]
            row = np.ones(len(w), bool)
            if c.name == "lazy_adam" and KINDS[name] == "embedding":
                row = np.array([any(r) for r in g])
            if KINDS[name] != "norm":
                g = g + c.l2_in_loss * w
            if KINDS[name] not in c.skip_kinds:
                g = g + c.weight_decay * w
            if c.name in ("adam", "lazy_adam"):
                m[row] = c.beta_1 * m[row] + (1 - c.beta_1) * g[row]
                v[row] = c.beta_2 * v[row] + (1 - c.beta_2) * g[row] ** 2
                lr = rate * np.sqrt(1 - c.beta_2 ** (step + 1)) / (1 - c.beta_1 ** (step + 1))
                w[row] -= lr * m[row] / (np.sqrt(v[row]) + c.epsilon)
            elif c.name == "adagrad":
                v += g**2
                w -= rate * g / np.sqrt(v + c.epsilon)
            elif c.name == "rmsprop":
                v = c.rho * v + (1 - c.rho) * g**2
                w -= rate * g / np.sqrt(v + c.epsilon)
            elif c.name == "adadelta":
                v = c.rho * v + (1 - c.rho) * g**2
                d = np.sqrt(moved + c.epsilon) / np.sqrt(v + c.epsilon) * g
                moved = c.rho * moved + (1 - c.rho) * d**2
                w -= rate * d
        result[name] = w
    return result


@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive_rules_equal_their_formulas_over_20_steps(name: str) -> None:
    rates = np.full(STEPS, RATE)
    for dtype, bound in ((np.float64, 1e-10), (np.float32, 1e-6)):
        weights, gradients, _ = problem(dtype)
        expected = transcribed_adaptive(ADAPTIVE[name], *problem()[:2], RATE)
        moved = worst(expected, problem()[0])
        assert moved > (1e-5 if name == "adadelta" else 1e-3), "the weights must move"
        assert worst(run(ADAPTIVE[name], weights, gradients, rates.astype(dtype)), expected) < bound


def test_lazy_adam_of_a_mask_equals_that_of_indexed_slices() -> None:
    """The reference gathers the rows that were looked up, repeated ones summed, and updates only those."""
    rng = np.random.default_rng(1)
    c = LazyAdam(beta_2=0.98, epsilon=1e-9)
    rule = optimizers.rule(c)
    table = tf.constant(rng.normal(size=[6, 3]))
    weight, slots = table, rule.init(table)
    w, m, v = table.numpy(), np.zeros([6, 3]), np.zeros([6, 3])
    for step in range(STEPS):
        ids = rng.integers(0, 5, 4)
        values = rng.normal(size=[4, 3])
        dense = tf.convert_to_tensor(
            tf.IndexedSlices(tf.constant(values), tf.constant(ids), tf.constant([6, 3]))
        )
        rate = tf.constant(RATE, tf.float64)
        weight, slots = rule.update(
            optimizers.WeightState(
                weight, dense, slots, rate, tf.constant(step), optimizers.Whole("embedding")
            )
        )
        for i in set(ids):
            g = values[ids == i].sum(0)
            m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.98 * v[i] + 0.02 * g * g
            lr = RATE * np.sqrt(1 - 0.98 ** (step + 1)) / (1 - 0.9 ** (step + 1))
            w[i] -= lr * m[i] / (np.sqrt(v[i]) + 1e-9)
    np.testing.assert_allclose(weight.numpy(), w, rtol=1e-12)


@pytest.mark.parametrize("name", ["adam", "lazy_adam", "rmsprop", "adadelta"])
def test_epsilon_of_zero_is_refused_where_it_divides_zero_by_zero(name: str) -> None:
    with pytest.raises(
        UserError, match=f"config.optimizer.epsilon=0.0: {name} would divide 0 by 0; use .* 1e-8"
    ):
        optimizers.rule(OPTIMIZERS.make(name, epsilon=0.0))
    optimizers.rule(Adagrad())


@pytest.mark.parametrize("beta", [0.0, 0.86, 0.98, 0.999])
def test_adam_s_correction_keeps_its_digits_in_32_bits(beta: float) -> None:
    for step in (0, 1, 10, 1000, 100_000):
        actual = bias(beta, tf.constant(step, tf.int32), tf.float32).numpy()
        np.testing.assert_allclose(actual, 1 - np.float64(beta) ** (step + 1), rtol=3e-7)
