"""SGD and LARS against the formulas in numpy, against other libraries, and whole against flat."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from official.modeling.optimization import lars as official_lars

from common import optimizers
from common.config import Optimizer
from common.errors import UserError

KINDS = {"conv": "kernel", "dense": "kernel", "bias": "bias", "gamma": "norm"}
SHAPES = {"conv": (3, 3, 4, 5), "dense": (20, 7), "bias": (7,), "gamma": (5,)}
STEPS = 20
# tpu-v3-2048 (scaled momentum, L2 twice, epsilon), tpu-v3-8192 (unscaled), and others around them.
RULES = {
    "lars scaled": Optimizer(
        "lars", momentum=0.9, weight_decay=1e-4, l2_in_loss=1e-4, epsilon=1e-5, scaled_momentum=True
    ),
    "lars unscaled": Optimizer("lars", momentum=0.951807, weight_decay=1e-4),
    "lars unscaled l2 nesterov": Optimizer("lars", weight_decay=2e-4, l2_in_loss=2e-4, nesterov=True),
    "sgd": Optimizer("sgd", momentum=0.9, weight_decay=5e-5),
    "sgd nesterov": Optimizer("sgd", momentum=0.9, weight_decay=5e-5, nesterov=True),
    "sgd scaled": Optimizer("sgd", momentum=0.9, weight_decay=5e-5, l2_in_loss=1e-4, scaled_momentum=True),
}


def problem(dtype: type = np.float64) -> tuple[dict, list[dict], np.ndarray]:
    """Weights, the gradients of 20 steps and rates that rise and fall, as a warmup and a decay do."""
    rng = np.random.default_rng(0)
    weights = {n: rng.normal(size=s).astype(dtype) for n, s in SHAPES.items()}
    gradients = [{n: 0.1 * rng.normal(size=s).astype(dtype) for n, s in SHAPES.items()} for _ in range(STEPS)]
    rates = (3 * np.minimum(np.arange(STEPS) / 5, 1) * (1 - np.arange(STEPS) / 40) ** 2).astype(dtype)
    return weights, gradients, rates


def transcribed(c: Optimizer, weights: dict, gradients: list[dict], rates: np.ndarray) -> dict:
    """The formulas of figures 5 and 6 of the TPU-v3 paper, a line per line."""
    result = {}
    for name, w in weights.items():
        adapts, v = KINDS[name] == "kernel", np.zeros_like(w)
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


def run(
    c: Optimizer, weights: dict, gradients: list[dict], rates: np.ndarray, compiled: bool = False
) -> dict:
    """The rule under test, variable by variable."""
    rule = optimizers.rule(c)
    update = tf.function(rule.update, jit_compile=True) if compiled else rule.update
    result = {}
    for name, value in weights.items():
        weight, segments = tf.constant(value), optimizers.Whole(KINDS[name], c.skip_kinds)
        slots = rule.init(weight)
        assert tuple(slots) == rule.slots
        for step, rate in enumerate(rates):
            gradient = tf.constant(gradients[step][name])
            weight, slots = update(
                weight, gradient, slots, tf.constant(rate), tf.constant(step, tf.int64), segments
            )
        result[name] = weight.numpy()
    return result


def worst(a: dict, b: dict) -> float:
    """Largest difference over the variables, relative to the largest element."""
    return max(np.abs(a[n] - b[n]).max() / np.abs(b[n]).max() for n in b)


@pytest.mark.parametrize("name", RULES)
def test_equals_the_papers_formulas_over_20_steps(name: str) -> None:
    for dtype, bound in ((np.float64, 1e-12), (np.float32, 1e-6)):
        weights, gradients, rates = problem(dtype)
        expected = transcribed(RULES[name], *problem())
        assert worst(expected, {n: w.astype(np.float64) for n, w in weights.items()}) > 1e-3, (
            "the weights must move"
        )
        assert worst(run(RULES[name], weights, gradients, rates), expected) < bound


@pytest.mark.parametrize("name", ["lars scaled", "lars unscaled"])
def test_compiled_equals_the_formulas(name: str) -> None:
    assert worst(run(RULES[name], *problem(), compiled=True), transcribed(RULES[name], *problem())) < 1e-12


@dataclasses.dataclass
class Flat:
    """Segments of one flat tensor that holds all variables: norms by segment_sum, masks per element."""

    ids: tf.Tensor
    adapts: tf.Tensor
    regularised: tf.Tensor

    def norm(self, x: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.sqrt(tf.math.segment_sum(x * x, self.ids)), self.ids)


def flatten(values: dict, padding: int) -> np.ndarray:
    return np.concatenate([*(values[n].reshape(-1) for n in SHAPES), np.zeros(padding)])


@pytest.mark.parametrize("name", RULES)
def test_flat_shard_equals_whole_variables(name: str) -> None:
    """As weight-update sharding sees it: all variables in one padded vector."""
    config, padding = RULES[name], 3
    weights, gradients, rates = problem()
    sizes = [int(np.prod(s)) for s in SHAPES.values()] + [padding]
    kinds = np.repeat([*KINDS.values(), "padding"], sizes)
    segments = Flat(
        tf.constant(np.repeat(np.arange(len(sizes)), sizes)),
        tf.constant(~np.isin(kinds, config.skip_kinds)),
        tf.constant(kinds != "norm"),
    )
    rule = optimizers.rule(config)
    weight = tf.constant(flatten(weights, padding))
    slots = rule.init(weight)
    for step, rate in enumerate(rates):
        gradient = tf.constant(flatten(gradients[step], padding))
        weight, slots = rule.update(weight, gradient, slots, tf.constant(rate), tf.constant(step), segments)
    whole = run(config, weights, gradients, rates)
    np.testing.assert_allclose(weight.numpy(), flatten(whole, padding), rtol=0, atol=1e-14)
    assert not weight.numpy()[-padding:].any(), "0 / 0 in the padding"


@pytest.mark.parametrize("nesterov", [False, True])
def test_equals_official_lars_where_the_forms_coincide(nesterov: bool) -> None:
    """tf-models-official decays before it takes norms; without decay its classic momentum is figure 6."""
    weights, gradients, rates = problem()
    ours = run(Optimizer("lars", nesterov=nesterov), weights, gradients, rates)
    variables = {n: tf.Variable(w, name=n) for n, w in weights.items()}
    rate = tf.Variable(0.0, dtype=tf.float64)
    theirs = official_lars.LARS(
        learning_rate=lambda: rate, nesterov=nesterov, exclude_from_layer_adaptation=["bias", "gamma"]
    )
    for step in range(STEPS):
        rate.assign(rates[step])
        theirs.apply_gradients([(tf.constant(gradients[step][n]), v) for n, v in variables.items()])
    assert worst(ours, {n: v.numpy() for n, v in variables.items()}) < 1e-12


@pytest.mark.parametrize("nesterov", [False, True])
def test_equals_keras_sgd(nesterov: bool) -> None:
    weights, gradients, rates = problem(np.float32)
    ours = run(Optimizer("sgd", nesterov=nesterov), weights, gradients, rates)
    variables = {n: tf.Variable(w) for n, w in weights.items()}
    theirs = tf_keras.optimizers.SGD(0.0, momentum=0.9, nesterov=nesterov)
    for step in range(STEPS):
        theirs.learning_rate = float(rates[step])
        theirs.apply_gradients([(tf.constant(gradients[step][n]), v) for n, v in variables.items()])
    assert worst(ours, {n: v.numpy() for n, v in variables.items()}) < 1e-6


def step_once(c: Optimizer, weight: list, gradient: list, kind: str = "kernel") -> np.ndarray:
    rule = optimizers.rule(c)
    w, g = tf.constant(weight, tf.float64), tf.constant(gradient, tf.float64)
    rate, zero = tf.constant(2.0, tf.float64), tf.constant(0, tf.int64)
    return rule.update(w, g, rule.init(w), rate, zero, optimizers.Whole(kind, c.skip_kinds))[0].numpy()


@pytest.mark.parametrize("scaled", [False, True])
def test_zero_norms_give_a_trust_of_one(scaled: bool) -> None:
    c = Optimizer("lars", weight_decay=0.1, epsilon=0.0, scaled_momentum=scaled)
    np.testing.assert_array_equal(step_once(c, [0, 0], [0, 0]), [0, 0])
    np.testing.assert_array_equal(step_once(c, [0, 0], [1, 2]), [-2, -4])
    np.testing.assert_allclose(step_once(c, [3, 4], [0, 0]), [2.4, 3.2])


def test_epsilon_of_zero_is_zero() -> None:
    """Keras turns `epsilon or backend.epsilon()` into 1e-7, which a gradient of 1e-9 would feel."""
    tiny = step_once(Optimizer("lars", eta=0.001, epsilon=0.0), [3.0, 4.0], [0.6e-9, 0.8e-9])
    np.testing.assert_allclose(tiny, [3 - 2 * 0.005 * 0.6, 4 - 2 * 0.005 * 0.8], rtol=1e-12)
    damped = step_once(Optimizer("lars", eta=0.001, epsilon=1e-5), [3.0, 4.0], [0.6e-9, 0.8e-9])
    assert abs(damped[0] - 3) < 1e-5


@pytest.mark.parametrize(
    ("kind", "decays", "regularised"),
    [("kernel", True, True), ("embedding", True, True), ("bias", False, True), ("norm", False, False)],
)
def test_kinds_choose_what_decays(kind: str, decays: bool, regularised: bool) -> None:
    whole = optimizers.Whole(kind, Optimizer().skip_kinds)
    assert (whole.adapts, whole.regularised) == (decays, regularised)
    decayed = step_once(Optimizer("sgd", weight_decay=0.25), [4.0], [0.0], kind)
    assert decayed[0] == (2.0 if decays else 4.0)
    in_loss = step_once(Optimizer("sgd", l2_in_loss=0.25), [4.0], [0.0], kind)
    assert in_loss[0] == (2.0 if regularised else 4.0)
    adapted = step_once(Optimizer("lars"), [4.0], [1.0], kind)
    assert adapted[0] == (4 - 2 * 0.004 if decays else 2.0)


def test_unknown_rule_names_the_near_one() -> None:
    with pytest.raises(UserError, match="config.optimizer.name='larz'.*did you mean lars"):
        optimizers.rule(Optimizer("larz"))
