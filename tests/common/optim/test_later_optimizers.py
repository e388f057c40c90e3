"""Tests the rules of docs/optimizers.md against optax."""

import jax
import numpy as np
import optax
import pytest

from common.config.optimizer import AdamW, Lamb, Optimizer, Sgd
from tests.timetotrain.run.rules import KINDS, STEPS, problem, run, worst

RATE = 1 / 64
BOUND = 1e-9  # Issue: float64, over 20 steps.
BASE = {"epsilon": 1e-8, "weight_decay": 1e-2}
OURS = {
    "adamw": AdamW(**BASE),
    "lamb": Lamb(epsilon=1e-6, weight_decay=1e-2),
    "nesterov": Sgd(momentum=0.97, nesterov=True, scaled_momentum=True, weight_decay=1e-2),
}


def rates() -> np.ndarray:
    """A warmup and a decay, so that the largest rate and the last one differ."""
    return RATE * np.minimum(np.arange(1, STEPS + 1) / 5, 1) * (1 - np.arange(STEPS) / 40)


def decays(params: dict) -> dict:
    return {name: KINDS[name] not in ("bias", "norm") for name in params}


def peer(name: str, c: Optimizer) -> optax.GradientTransformation:
    """The same rule of optax."""
    table = rates()
    rate = lambda i: jax.numpy.asarray(table)[i]  # noqa: E731
    decay = optax.add_decayed_weights(c.weight_decay, decays)
    by_rate = optax.scale_by_learning_rate(rate)

    if name == "adamw":
        return optax.adamw(rate, c.beta_1, c.beta_2, c.epsilon, weight_decay=c.weight_decay, mask=decays)
    if name == "nesterov":
        return optax.chain(decay, optax.sgd(rate, c.momentum, nesterov=True))
    trust = optax.masked(optax.scale_by_trust_ratio(), decays)
    return optax.chain(optax.scale_by_adam(c.beta_1, c.beta_2, c.epsilon), decay, trust, by_rate)


def run_peer(name: str, c: Optimizer) -> dict:
    """Returns the weights after 20 steps of optax in float64."""
    with jax.enable_x64(True):
        weights, gradients, _ = problem()
        rule, params = peer(name, c), {n: jax.numpy.asarray(w) for n, w in weights.items()}
        state, update = rule.init(params), jax.jit(rule.update)
        for gradient in gradients:
            updates, state = update({n: jax.numpy.asarray(g) for n, g in gradient.items()}, state, params)
            params = optax.apply_updates(params, updates)
        return {n: np.asarray(w) for n, w in params.items()}


def run_ours(c: Optimizer, dtype: type = np.float64, compiled: bool = False) -> dict[str, np.ndarray]:
    """As `run_peer`, with this project's rule."""
    weights, gradients, _ = problem(dtype)
    return run(c, weights, gradients, rates().astype(dtype), compiled)


@pytest.mark.parametrize("name", OURS)
def test_a_rule_equals_optax_over_20_steps(name: str) -> None:
    expected = run_peer(name, OURS[name])
    assert worst(expected, problem()[0]) > 1e-3, "the weights must move"
    assert worst(run_ours(OURS[name]), expected) < BOUND
    assert worst(run_ours(OURS[name], np.float32), expected) < 1e-5


def test_a_compiled_rule_equals_the_uncompiled_one() -> None:
    assert worst(run_ours(OURS["lamb"], compiled=True), run_ours(OURS["lamb"])) < BOUND
