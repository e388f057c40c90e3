"""Helpers for the tests of optimizer rules: variables of every kind, gradients, and a run of a rule over them."""

import numpy as np
import tensorflow as tf

from common.config.optimizer import Optimizer
from common.optim import optimizers

KINDS = {"conv": "kernel", "dense": "kernel", "bias": "bias", "gamma": "norm", "table": "embedding"}
SHAPES = {"conv": (3, 3, 4, 5), "dense": (20, 7), "bias": (7,), "gamma": (5,), "table": (9, 4)}
STEPS = 20


def problem(dtype: type = np.float64) -> tuple[dict, list[dict], np.ndarray]:
    """Weights, the gradients of 20 steps and rates that rise and fall, as a warmup and a decay do."""
    rng = np.random.default_rng(0)
    weights = {n: rng.normal(size=s).astype(dtype) for n, s in SHAPES.items()}
    gradients = [{n: 0.1 * rng.normal(size=s).astype(dtype) for n, s in SHAPES.items()} for _ in range(STEPS)]
    for gradient in gradients:  # Zeroes the gradient of table rows that were not looked up; one row never is.
        gradient["table"][[*rng.permutation(8)[:4], 8]] = 0
    rates = (3 * np.minimum(np.arange(STEPS) / 5, 1) * (1 - np.arange(STEPS) / 40) ** 2).astype(dtype)
    return weights, gradients, rates


def run(
    c: Optimizer, weights: dict, gradients: list[dict], rates: np.ndarray, compiled: bool = False
) -> dict:
    """Runs the rule under test, variable by variable."""
    rule = optimizers.rule(c)
    update = tf.function(rule.update, jit_compile=True) if compiled else rule.update
    result = {}
    for name, value in weights.items():
        weight, segments = tf.constant(value), optimizers.Whole(KINDS[name], c.skip_kinds)
        slots = rule.init(weight)
        assert tuple(slots) == rule.slots
        for step, rate in enumerate(rates):
            gradient = tf.constant(gradients[step][name])
            now = tf.constant(rate), tf.constant(step, tf.int64)
            weight, slots = update(optimizers.WeightState(weight, gradient, slots, *now, segments))
        result[name] = weight.numpy()
    return result


def worst(a: dict, b: dict) -> float:
    """Largest difference over the variables, relative to the largest element."""
    return max(np.abs(a[n] - b[n]).max() / np.abs(b[n]).max() for n in b)
