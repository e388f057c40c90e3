"""Tests LARS and SGD against numpy formulas, and clipping."""

import numpy as np
import pytest
import tensorflow as tf

from common.config.optimizer import Lars, Optimizer, Sgd
from common.config.rules import OPTIMIZERS
from common.errors import UserError
from common.optim import optimizers
from tests.timetotrain.run.rules import KINDS, problem, run, worst

# tpu-v3-2048 (scaled momentum, L2 twice, epsilon), tpu-v3-8192 (unscaled), and others around them.
RULES = {
    "lars scaled": Lars(momentum=0.9, weight_decay=1e-4, l2_in_loss=1e-4, epsilon=1e-5, scaled_momentum=True),
    "lars unscaled": Lars(momentum=0.951807, weight_decay=1e-4),
    "lars unscaled l2 nesterov": Lars(weight_decay=2e-4, l2_in_loss=2e-4, nesterov=True),
    "lars without momentum": Lars(momentum=0.0, weight_decay=2e-4),
    "sgd": Sgd(momentum=0.9, weight_decay=5e-5),
    "sgd without momentum": Sgd(momentum=0.0, weight_decay=5e-5, scaled_momentum=True),
    "sgd nesterov": Sgd(momentum=0.9, weight_decay=5e-5, nesterov=True),
    "sgd scaled": Sgd(momentum=0.9, weight_decay=5e-5, l2_in_loss=1e-4, scaled_momentum=True),
}


def transcribed(c: Optimizer, weights: dict, gradients: list[dict], rates: np.ndarray) -> dict:
    """Figures 5 and 6 of the TPU-v3 pods paper, line by line in numpy."""
    result = {}
    for name, w in weights.items():
        adapts, v = KINDS[name] in ("kernel", "embedding"), np.zeros_like(w)
        for step, lr in enumerate(rates):
            g = gradients[step][name]
            if KINDS[name] != "norm":
                g = g + c.l2_in_loss * w
            beta = c.weight_decay if adapts else 0.0
            trust = 1.0
            if c.name == "lars" and adapts:
                norm_w, norm_g = np.sqrt((w * w).sum()), np.sqrt((g * g).sum())
                trust = c.eta * norm_w / (norm_g + beta * norm_w + c.epsilon)
            d = g + beta * w
            if c.scaled_momentum:  # Figure 5.
                v = c.momentum * v + d
                w = w - lr * trust * (c.momentum * v + d if c.nesterov else v)
            else:  # Figure 6.
                v = c.momentum * v + lr * trust * d
                w = w - (c.momentum * v + lr * trust * d if c.nesterov else v)
        result[name] = w
    return result


@pytest.mark.parametrize("name", RULES)
def test_equals_the_papers_formulas_over_20_steps(name: str) -> None:
    for dtype, bound in ((np.float64, 1e-12), (np.float32, 1e-6)):
        weights, gradients, rates = problem(dtype)
        expected = transcribed(RULES[name], *problem())
        assert worst(expected, {n: w.astype(np.float64) for n, w in weights.items()}) > 1e-3, (
            "the weights must move"
        )
        assert worst(run(RULES[name], weights, gradients, rates), expected) < bound


@pytest.mark.parametrize("norm", [1e-3, 1.0, 1e3])
def test_clipping_equals_tensorflows(norm: float) -> None:
    gradients = [tf.constant(g) for g in problem()[1][0].values()]
    expected, _ = tf.clip_by_global_norm(gradients, norm)
    for mine, other in zip(optimizers.clipped(gradients, norm), expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-12)
    zeros = [tf.zeros_like(g) for g in gradients]
    assert not any(np.any(g) for g in optimizers.clipped(zeros, norm))
    assert optimizers.clipped(gradients, 0.0) == gradients


@pytest.mark.parametrize("name", ["lars scaled", "lars unscaled"])
def test_compiled_equals_the_formulas(name: str) -> None:
    assert worst(run(RULES[name], *problem(), compiled=True), transcribed(RULES[name], *problem())) < 1e-12


def step_once(c: Optimizer, weight: list, gradient: list, kind: str = "kernel") -> np.ndarray:
    rule = optimizers.rule(c)
    w, g = tf.constant(weight, tf.float64), tf.constant(gradient, tf.float64)
    rate, zero = tf.constant(2.0, tf.float64), tf.constant(0, tf.int64)
    whole = optimizers.Whole(kind, c.skip_kinds)
    return rule.update(optimizers.WeightState(w, g, rule.init(w), rate, zero, whole))[0].numpy()


@pytest.mark.parametrize("scaled", [False, True])
def test_zero_norms_give_a_trust_of_one(scaled: bool) -> None:
    c = Lars(weight_decay=0.1, epsilon=0.0, scaled_momentum=scaled)
    np.testing.assert_array_equal(step_once(c, [0, 0], [0, 0]), [0, 0])
    np.testing.assert_array_equal(step_once(c, [0, 0], [1, 2]), [-2, -4])
    np.testing.assert_allclose(step_once(c, [3, 4], [0, 0]), [2.4, 3.2])


def test_epsilon_of_zero_is_zero() -> None:
    """Keras's `epsilon or backend.epsilon()` would replace 0 by 1e-7, which changes the step for a gradient of 1e-9."""
    tiny = step_once(Lars(eta=0.001, epsilon=0.0), [3.0, 4.0], [0.6e-9, 0.8e-9])
    np.testing.assert_allclose(tiny, [3 - 2 * 0.005 * 0.6, 4 - 2 * 0.005 * 0.8], rtol=1e-12)
    damped = step_once(Lars(eta=0.001, epsilon=1e-5), [3.0, 4.0], [0.6e-9, 0.8e-9])
    assert abs(damped[0] - 3) < 1e-5


@pytest.mark.parametrize(
    ("kind", "decays", "regularized"),
    [("kernel", True, True), ("embedding", True, True), ("bias", False, True), ("norm", False, False)],
)
def test_kinds_choose_what_decays(kind: str, decays: bool, regularized: bool) -> None:
    whole = optimizers.Whole(kind, Lars().skip_kinds)
    assert (whole.adapts, whole.regularized) == (decays, regularized)
    decayed = step_once(Sgd(weight_decay=0.25), [4.0], [0.0], kind)
    assert decayed[0] == (2.0 if decays else 4.0)
    in_loss = step_once(Sgd(l2_in_loss=0.25), [4.0], [0.0], kind)
    assert in_loss[0] == (2.0 if regularized else 4.0)
    adapted = step_once(Lars(), [4.0], [1.0], kind)
    assert adapted[0] == (4 - 2 * 0.004 if decays else 2.0)


def test_unknown_rule_names_the_near_one() -> None:
    with pytest.raises(UserError, match="config.optimizer.name='larz'.*did you mean lars"):
        OPTIMIZERS.make("larz")
