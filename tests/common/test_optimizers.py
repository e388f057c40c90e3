"""Every rule against its formulas in numpy, against other libraries, and whole against flat."""

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
from tests.common import updates

KINDS = {"conv": "kernel", "dense": "kernel", "bias": "bias", "gamma": "norm", "table": "embedding"}
SHAPES = {"conv": (3, 3, 4, 5), "dense": (20, 7), "bias": (7,), "gamma": (5,), "table": (9, 4)}
STEPS = 20
# tpu-v3-2048 (scaled momentum, L2 twice, epsilon), tpu-v3-8192 (unscaled), and others around them.
RULES = {
    "lars scaled": Optimizer(
        "lars", momentum=0.9, weight_decay=1e-4, l2_in_loss=1e-4, epsilon=1e-5, scaled_momentum=True
    ),
    "lars unscaled": Optimizer("lars", momentum=0.951807, weight_decay=1e-4),
    "lars unscaled l2 nesterov": Optimizer("lars", weight_decay=2e-4, l2_in_loss=2e-4, nesterov=True),
    "lars without momentum": Optimizer("lars", momentum=0.0, weight_decay=2e-4),
    "sgd": Optimizer("sgd", momentum=0.9, weight_decay=5e-5),
    "sgd without momentum": Optimizer("sgd", momentum=0.0, weight_decay=5e-5, scaled_momentum=True),
    "sgd nesterov": Optimizer("sgd", momentum=0.9, weight_decay=5e-5, nesterov=True),
    "sgd scaled": Optimizer("sgd", momentum=0.9, weight_decay=5e-5, l2_in_loss=1e-4, scaled_momentum=True),
}
# GNMT's Adam, the Transformer's LazyAdam at 512 and 2048 sequences (mlperf_facts 1.4, 1.5), and the study's solvers.
ADAPTIVE = {
    "adam": Optimizer("adam", epsilon=1e-8),
    "adam with decay": Optimizer("adam", epsilon=1e-8, weight_decay=1e-2, l2_in_loss=1e-2),
    "lazy_adam 512": Optimizer("lazy_adam", beta_2=0.98, epsilon=1e-9),
    "lazy_adam 2048": Optimizer("lazy_adam", beta_1=0.86, beta_2=0.92, epsilon=1e-9),
    "adagrad": Optimizer("adagrad"),
    "adagrad from zero": Optimizer("adagrad", initial_accumulator=0.0, epsilon=1e-7),
    "rmsprop": Optimizer("rmsprop", epsilon=1e-7),
    "adadelta": Optimizer("adadelta", rho=0.95, epsilon=1e-7),
}
RATE = 1 / 64  # Exact in every precision: tf_keras keeps its rate in float32.


def problem(dtype: type = np.float64) -> tuple[dict, list[dict], np.ndarray]:
    """Weights, the gradients of 20 steps and rates that rise and fall, as a warmup and a decay do."""
    rng = np.random.default_rng(0)
    weights = {n: rng.normal(size=s).astype(dtype) for n, s in SHAPES.items()}
    gradients = [{n: 0.1 * rng.normal(size=s).astype(dtype) for n, s in SHAPES.items()} for _ in range(STEPS)]
    for gradient in gradients:  # Rows of the table that were not looked up, and one that never is.
        gradient["table"][[*rng.permutation(8)[:4], 8]] = 0
    rates = (3 * np.minimum(np.arange(STEPS) / 5, 1) * (1 - np.arange(STEPS) / 40) ** 2).astype(dtype)
    return weights, gradients, rates


def transcribed(c: Optimizer, weights: dict, gradients: list[dict], rates: np.ndarray) -> dict:
    """The formulas of figures 5 and 6 of the TPU-v3 paper, a line per line."""
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


def transcribed_adaptive(c: Optimizer, weights: dict, gradients: list[dict], rate: float) -> dict:
    """Kingma and Ba's Adam with "epsilon hat", row-wise where lazy; Duchi's Adagrad; Hinton's RMSprop; Zeiler's
    Adadelta."""
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


def keras_optimizer(c: Optimizer) -> tf_keras.optimizers.Optimizer:
    rate, epsilon = RATE, c.epsilon
    if c.name == "adam":
        return tf_keras.optimizers.Adam(rate, c.beta_1, c.beta_2, epsilon)
    if c.name == "adagrad":
        return tf_keras.optimizers.Adagrad(rate, c.initial_accumulator, epsilon)
    if c.name == "rmsprop":
        return tf_keras.optimizers.RMSprop(rate, c.rho, epsilon=epsilon)
    return tf_keras.optimizers.Adadelta(rate, c.rho, epsilon)


@pytest.mark.parametrize("name", ["adam", "adagrad", "rmsprop", "adadelta"])
def test_adaptive_rules_equal_keras(name: str) -> None:
    for dtype, bound in ((np.float64, 1e-10), (np.float32, 1e-6)):
        weights, gradients, _ = problem(dtype)
        # tf_keras rounds what it is given to float32: 0.875 and 0.984375 are what it says they are.
        config = dataclasses.replace(
            ADAPTIVE[name],
            rho=0.875,
            beta_1=0.875,
            beta_2=0.984375,
            initial_accumulator=0.125,
            epsilon=2.0**-24,
        )
        ours = run(config, weights, gradients, np.full(STEPS, RATE, dtype))
        variables = {n: tf.Variable(w) for n, w in weights.items()}
        theirs = keras_optimizer(config)
        for step in range(STEPS):
            theirs.apply_gradients([(tf.constant(gradients[step][n]), v) for n, v in variables.items()])
        assert worst(ours, {n: v.numpy() for n, v in variables.items()}) < bound


def test_lazy_adam_equals_keras_adam_where_every_row_has_a_gradient() -> None:
    weights, gradients, _ = problem()
    for gradient in gradients:
        gradient["table"] += 0.01
    rates = np.full(STEPS, RATE)
    lazy, dense = (
        run(Optimizer(name, epsilon=1e-9), weights, gradients, rates) for name in ("lazy_adam", "adam")
    )
    assert worst(lazy, dense) == 0


def test_lazy_adam_leaves_rows_without_gradient_alone() -> None:
    weights, gradients, _ = problem()
    rates = np.full(STEPS, RATE)
    lazy, dense = (
        run(Optimizer(name, epsilon=1e-9), weights, gradients, rates) for name in ("lazy_adam", "adam")
    )
    np.testing.assert_array_equal(lazy["table"][8], weights["table"][8])
    assert np.abs(lazy["table"] - dense["table"]).max() > 1e-4, "Adam moves rows by their momentum"
    np.testing.assert_array_equal(lazy["conv"], dense["conv"])


def test_lazy_adam_of_a_mask_equals_that_of_indexed_slices() -> None:
    """The reference gathers the rows that were looked up, repeated ones summed, and updates only those."""
    rng = np.random.default_rng(1)
    c = Optimizer("lazy_adam", beta_2=0.98, epsilon=1e-9)
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
            weight, dense, slots, rate, tf.constant(step), optimizers.Whole("embedding")
        )
        for i in set(ids):
            g = values[ids == i].sum(0)
            m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.98 * v[i] + 0.02 * g * g
            lr = RATE * np.sqrt(1 - 0.98 ** (step + 1)) / (1 - 0.9 ** (step + 1))
            w[i] -= lr * m[i] / (np.sqrt(v[i]) + 1e-9)
    np.testing.assert_allclose(weight.numpy(), w, rtol=1e-12)


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


@dataclasses.dataclass
class Flat:
    """Segments of one flat tensor that holds all variables: norms by segment_sum, masks per element."""

    ids: tf.Tensor
    adapts: tf.Tensor
    regularised: tf.Tensor

    def norms(self, weight: tf.Tensor, gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        def norm(x: tf.Tensor) -> tf.Tensor:
            return tf.gather(tf.sqrt(tf.math.segment_sum(x * x, self.ids)), self.ids)

        return norm(weight), norm(gradient)

    def touched(self, gradient: tf.Tensor) -> bool:
        return True


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


@pytest.mark.parametrize("name", ["adam", "lazy_adam", "rmsprop", "adadelta"])
def test_epsilon_of_zero_is_refused_where_it_divides_zero_by_zero(name: str) -> None:
    with pytest.raises(
        UserError, match=f"config.optimizer.epsilon=0.0: {name} would divide 0 by 0; use .* 1e-8"
    ):
        optimizers.rule(Optimizer(name))
    optimizers.rule(Optimizer("adagrad"))


def test_gradients_of_biases_have_their_factor():
    """After a step without momentum or decay a bias has moved twice as far, everything else as far as before."""
    moved = []
    for factor in (1.0, 2.0):
        optimizer = Optimizer("sgd", base_learning_rate=0.1, momentum=0.0, bias_gradient_factor=factor)
        updates.OPTIMIZERS["factor"] = optimizer
        runner = updates.Runner("single", 1, "factor")
        before = runner.weights()
        # The rate of the first step is 0.
        runner.steps(1, 10)
        moved.append([after - value for after, value in zip(runner.weights(), before)])
    kinds = runner.state.kinds
    assert kinds.count("bias") == 1 and len(kinds) == len(moved[0]) > 3
    for kind, once, twice in zip(kinds, *moved):
        np.testing.assert_allclose(twice, (2 if kind == "bias" else 1) * once, rtol=1e-12)
        assert np.abs(once).max() > 0
