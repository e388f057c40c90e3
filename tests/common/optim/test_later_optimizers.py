"""Tests the rules of docs/optimizers.md against optax, and Shampoo and SOAP against their formulas in numpy."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
import tensorflow as tf
from optax import contrib

from common.config.optimizer import (
    AdamW,
    Lamb,
    Muon,
    NAdamW,
    Optimizer,
    ScheduleFreeAdamW,
    ScheduleFreeSgd,
    Sgd,
    Shampoo,
    Soap,
)
from common.config.rules import named
from common.errors import UserError
from common.optim import cuts, muon, optimizers, schedule_free, shampoo
from tests.timetotrain.run.rules import KINDS, STEPS, problem, worst

RATE = 1 / 64
BOUND = 1e-9  # Issue: float64, over 20 steps.
# The last kernel of the problem is the output layer's for Muon.
OUTPUT = "dense"
BASE = {"epsilon": 1e-8, "weight_decay": 1e-2}
OURS = {
    "adamw": AdamW(**BASE),
    "nadamw": NAdamW(**BASE),
    "lamb": Lamb(epsilon=1e-6, weight_decay=1e-2),
    "nesterov": Sgd(momentum=0.97, nesterov=True, scaled_momentum=True, weight_decay=1e-2),
    "schedule_free_sgd": ScheduleFreeSgd(weight_decay=1e-2),
    "schedule_free_adamw": ScheduleFreeAdamW(**BASE),
    "muon": Muon(momentum=0.95, adamw_rate_factor=0.25, **BASE),
    "muon nesterov": Muon(momentum=0.95, nesterov=True, **BASE),
}
SHAMPOO = Shampoo(matrix_block=8, root_interval=3, root_start=2, epsilon=1e-8, weight_decay=1e-2)
SOAP = Soap(matrix_block=64, root_interval=3, matrix_decay=0.9, beta_1=0.95, beta_2=0.95, **BASE)


def rates() -> np.ndarray:
    """A warmup and a decay, so that the largest rate and the last one differ."""
    return RATE * np.minimum(np.arange(1, STEPS + 1) / 5, 1) * (1 - np.arange(STEPS) / 40)


def decays(params: dict) -> dict:
    return {name: KINDS[name] not in ("bias", "norm") for name in params}


def peer(name: str, c: Optimizer) -> optax.GradientTransformation:
    """The same rule of optax; its schedules see the steps from 0, those of Schedule-Free from 1."""
    table = rates()
    rate, later = (lambda i: jax.numpy.asarray(table)[i]), (lambda i: jax.numpy.asarray(table)[i - 1])
    decay = optax.add_decayed_weights(c.weight_decay, decays)
    by_rate = optax.scale_by_learning_rate(rate)

    def adam() -> optax.GradientTransformation:
        return optax.scale_by_adam(c.beta_1, c.beta_2, c.epsilon)

    if name == "adamw":
        return optax.adamw(rate, c.beta_1, c.beta_2, c.epsilon, weight_decay=c.weight_decay, mask=decays)
    if name == "nadamw":
        return optax.nadamw(rate, c.beta_1, c.beta_2, c.epsilon, weight_decay=c.weight_decay, mask=decays)
    if name == "nesterov":
        return optax.chain(decay, optax.sgd(rate, c.momentum, nesterov=True))
    if name == "lamb":
        trust = optax.masked(optax.scale_by_trust_ratio(), decays)
        return optax.chain(adam(), decay, trust, by_rate)
    if name == "schedule_free_sgd":
        base = optax.chain(decay, optax.sgd(rate))
        return contrib.schedule_free(base, later, c.momentum, c.averaging_power)
    if name == "schedule_free_adamw":
        second = optax.scale_by_rms(c.beta_2, c.epsilon, eps_in_sqrt=False, bias_correction=True)
        return contrib.schedule_free(optax.chain(second, decay, by_rate), later, c.beta_1, c.averaging_power)
    shapes = {"conv": contrib.MuonDimensionNumbers((0, 1, 2), 3)}
    orthogonal = optax.chain(
        contrib.scale_by_muon(beta=c.momentum, nesterov=c.nesterov, weight_dimension_numbers=shapes),
        contrib._muon.scale_by_shape(shapes),
        optax.add_decayed_weights(c.weight_decay),
        by_rate,
    )
    rest = optax.chain(adam(), decay, optax.scale(c.adamw_rate_factor), by_rate)
    masks = {"conv": True}
    hidden = {n: n in masks for n in KINDS}
    return optax.chain(
        optax.masked(rest, {n: not is_hidden for n, is_hidden in hidden.items()}), _only_conv(orthogonal)
    )


def _only_conv(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Applies `inner` to the convolution alone."""

    def one(tree: dict) -> dict:
        return {"conv": tree["conv"]}

    def update(updates: dict, state: object, params: dict) -> tuple[dict, object]:
        new, state = inner.update(one(updates), state, one(params))
        return {**updates, **new}, state

    return optax.GradientTransformation(lambda params: inner.init(one(params)), update)


def run_peer(name: str, c: Optimizer) -> tuple[dict, dict]:
    """Returns the weights after 20 steps of optax in float64, and those that an evaluation uses."""
    with jax.enable_x64(True):
        weights, gradients, _ = problem()
        rule, params = peer(name, c), {n: jax.numpy.asarray(w) for n, w in weights.items()}
        state, update = rule.init(params), jax.jit(rule.update)
        for gradient in gradients:
            updates, state = update({n: jax.numpy.asarray(g) for n, g in gradient.items()}, state, params)
            params = optax.apply_updates(params, updates)
        evaluated = params
        if c.averaged_by:
            evaluated = contrib.schedule_free_eval_params(state, params)
        return [{n: np.asarray(w) for n, w in tree.items()} for tree in (params, evaluated)]


def run_ours(
    c: Optimizer, dtype: type = np.float64, compiled: bool = False
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """As `run_peer`, with this project's rule; weights are cut into matrices where the rule wants that."""
    weights, gradients, _ = problem(dtype)
    rule, result, evaluated = optimizers.rule(c), {}, {}
    for name, value in weights.items():
        whole = optimizers.Whole(KINDS[name], c.skip_kinds, output=name == OUTPUT)
        cut = rule.cut(value.shape, whole)
        own = rule.matrices.rule if cut else rule
        update = tf.function(own.update, jit_compile=True) if compiled else own.update
        weight = tf.constant(cut.stack(value, np) if cut else value)
        slots = own.init(weight)
        assert tuple(slots) == own.slots
        for step, rate in enumerate(rates().astype(dtype)):
            g = gradients[step][name]
            gradient = tf.constant(cut.stack(g, np) if cut else g)
            now = tf.constant(rate), tf.constant(step, tf.int64)
            weight, slots = update(optimizers.WeightState(weight, gradient, slots, *now, whole))
            assert tuple(sorted(slots)) == tuple(sorted(own.slots))
        result[name] = cut.join(weight.numpy(), np) if cut else weight.numpy()
        if c.averaged_by:
            evaluated[name] = schedule_free.averaged(c, weight.numpy(), slots["z"].numpy())
    return result, evaluated


@pytest.mark.parametrize("name", OURS)
def test_a_rule_equals_optax_over_20_steps(name: str) -> None:
    expected, evaluated = run_peer(name, OURS[name])
    assert worst(expected, problem()[0]) > 1e-3, "the weights must move"
    ours, averages = run_ours(OURS[name])
    assert worst(ours, expected) < BOUND
    if averages:
        assert worst(averages, evaluated) < BOUND
        assert worst(averages, ours) > 1e-4, "the average is another point"
    narrow, _ = run_ours(OURS[name], np.float32)
    assert worst(narrow, expected) < (1e-3 if "muon" in name else 1e-5)


@pytest.mark.parametrize("name", ["lamb", "muon", "shampoo", "soap"])
def test_a_compiled_rule_equals_the_uncompiled_one(name: str) -> None:
    # With fewer steps before the first bases, the sums are singular and their eigenvectors not unique.
    c = {"shampoo": SHAMPOO, "soap": dataclasses.replace(SOAP, root_start=9)}.get(name) or OURS[name]
    # XLA's eigenvectors are right to about 1e-8.
    assert worst(run_ours(c, compiled=True)[0], run_ours(c)[0]) < (1e-5 if name == "soap" else BOUND)


def root(a: np.ndarray, ridge: float, p: int) -> np.ndarray:
    """A^(-1/p) by eigenvalues, with the ridge relative to the largest row sum."""
    values, vectors = np.linalg.eigh(a + ridge * np.abs(a).sum(-1).max() * np.eye(len(a)))
    return (vectors * values ** (-1 / p)) @ vectors.T


def blocks_of(matrix: np.ndarray, most: int) -> list[tuple[slice, slice]]:
    """The blocks, as equal as their number allows, without padding."""
    sides = []
    for size in matrix.shape:
        length = -(-size // -(-size // most))
        sides.append([slice(i, min(i + length, size)) for i in range(0, size, length)])
    return [(rows, columns) for rows in sides[0] for columns in sides[1]]


def shampoo_in_numpy(c: Optimizer, w: np.ndarray, gradients: list[np.ndarray], matrix: bool) -> np.ndarray:
    """One block, or a vector or embedding without preconditioners."""
    left, right = (np.zeros([n, n]) for n in w.shape) if matrix else (None, None)
    v, graft, share = np.zeros_like(w), np.zeros_like(w), 1 - c.matrix_decay if c.matrix_decay < 1 else 1
    for step, (g, rate) in enumerate(zip(gradients, rates())):
        if c.grafting == "sgd":
            d = g
        elif c.grafting == "adagrad":
            graft = graft + g * g
            d = g / (np.sqrt(graft) + c.epsilon)
        else:
            graft = c.beta_2 * graft + (1 - c.beta_2) * g * g
            d = g / (np.sqrt(graft / (1 - c.beta_2 ** (step + 1))) + c.epsilon)
        if matrix:
            left, right = c.matrix_decay * left + share * g @ g.T, c.matrix_decay * right + share * g.T @ g
            if step >= c.root_start:
                if (step - c.root_start) % c.root_interval == 0:
                    roots = [root(side, c.matrix_epsilon, 4) for side in (left, right)]
                p = roots[0] @ g @ roots[1]
                d = p * np.linalg.norm(d) / np.linalg.norm(p)
        d = d + c.weight_decay * w if matrix or w.ndim > 1 else d
        v = c.momentum * v + d
        w = w - rate * (c.momentum * v + d if c.nesterov else v)
    return w


@pytest.mark.parametrize("grafting", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("changes", [{}, {"nesterov": True, "matrix_decay": 1.0, "root_start": 1}])
def test_shampoo_equals_its_formulas_block_by_block(grafting: str, changes: dict) -> None:
    c = dataclasses.replace(SHAMPOO, grafting=grafting, **changes)
    weights, gradients, _ = problem()
    expected = {}
    for name, w in weights.items():
        if KINDS[name] != "kernel":
            expected[name] = shampoo_in_numpy(c, w, [g[name] for g in gradients], False)
            continue
        folded = w.reshape(-1, w.shape[-1])
        new = np.zeros_like(folded)
        for at in blocks_of(folded, c.matrix_block):
            new[at] = shampoo_in_numpy(
                c, folded[at], [g[name].reshape(folded.shape)[at] for g in gradients], True
            )
        expected[name] = new.reshape(w.shape)
    assert worst(expected, weights) > 1e-3
    # The roots of nearly singular sums lose digits: a ridge of 1e-6 makes a condition of 1e6.
    assert worst(run_ours(c)[0], expected) < BOUND


def soap_in_numpy(c: Optimizer, w: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    """A matrix; the first moment is kept in the bases' coordinates, as the authors keep it."""
    left, right = (np.zeros([n, n]) for n in w.shape)
    bases = [np.eye(n) for n in w.shape]
    m, v = np.zeros_like(w), np.zeros_like(w)
    for step, (g, rate) in enumerate(zip(gradients, rates())):
        if step:
            turned = bases[0].T @ g @ bases[1]
            m, v = c.beta_1 * m + (1 - c.beta_1) * turned, c.beta_2 * v + (1 - c.beta_2) * turned**2
            scale = np.sqrt(1 - c.beta_2**step) / (1 - c.beta_1**step)
            # The authors add epsilon before they correct; here it is added after.
            d = m * scale / (np.sqrt(v) + c.epsilon * np.sqrt(1 - c.beta_2**step))
            w = w - rate * bases[0] @ d @ bases[1].T
            w = w - rate * c.weight_decay * w
        m = bases[0] @ m @ bases[1].T
        left = c.matrix_decay * left + (1 - c.matrix_decay) * g @ g.T
        right = c.matrix_decay * right + (1 - c.matrix_decay) * g.T @ g
        if step == c.root_start - 1:
            bases = [np.linalg.eigh(side)[1][:, ::-1] for side in (left, right)]
        elif step >= c.root_start and step % c.root_interval == 0:
            for axis, side in enumerate((left, right)):
                order = np.argsort(-np.diag(bases[axis].T @ side @ bases[axis]), kind="stable")
                v = np.take(v, order, axis)
                bases[axis] = np.linalg.qr(side @ bases[axis][:, order])[0]
        m = bases[0].T @ m @ bases[1]
    return w


@pytest.mark.parametrize("start", [1, 9])
def test_soap_equals_its_formulas(start: int) -> None:
    """The bases of a singular sum are not unique, so the first ones of a 36 x 5 kernel follow after 9 steps."""
    weights, gradients, _ = problem()
    rng = np.random.default_rng(5)
    weights["square"] = rng.normal(size=(6, 6))
    c = dataclasses.replace(SOAP, root_start=start)
    names = ["square"] if start == 1 else ["conv", "dense", "square"]
    rule = optimizers.rule(c)
    for name in names:
        w = weights[name].reshape(-1, weights[name].shape[-1])
        g = [0.1 * rng.normal(size=w.shape) for _ in range(STEPS)]
        x, slots = tf.constant(w[None]), rule.matrices.rule.init(tf.constant(w[None]))
        for step, rate in enumerate(rates()):
            whole = optimizers.Whole("kernel")
            x, slots = rule.matrices.rule.update(
                optimizers.WeightState(
                    x, tf.constant(g[step][None]), slots, tf.constant(rate), tf.constant(step), whole
                )
            )
        expected = soap_in_numpy(c, w, g)
        assert np.abs(expected - w).max() > 1e-2
        np.testing.assert_allclose(x[0].numpy(), expected, rtol=0, atol=BOUND * np.abs(expected).max())


def as_adamw(c: Optimizer) -> AdamW:
    names = {field.name for field in dataclasses.fields(AdamW) if field.init}
    return AdamW(**{name: value for name, value in dataclasses.asdict(c).items() if name in names})


def test_the_rest_of_soap_and_muon_is_adamw() -> None:
    for c in (SOAP, OURS["muon nesterov"]):
        ours, adamw = run_ours(c)[0], run_ours(as_adamw(c))[0]
        same = ("bias", "gamma", "table") + (("dense",) if c.name == "muon" else ())
        for name in same:
            np.testing.assert_array_equal(ours[name], adamw[name])
        assert np.abs(ours["conv"] - adamw["conv"]).max() > 1e-3


@pytest.mark.parametrize(("shape", "most"), [((3, 3, 4, 5), 8), ((20, 7), 7), ((5, 9), 2), ((4, 4), 99)])
def test_a_stack_joins_to_what_was_cut(shape: tuple, most: int) -> None:
    x = np.random.default_rng(0).normal(size=shape)
    cut = cuts.blocks(shape, most)
    stack = cut.stack(x, np)
    assert stack.shape == cut.matrices and max(cut.rows, cut.columns) <= most
    np.testing.assert_array_equal(cut.join(stack, np), x)
    np.testing.assert_array_equal(cut.stack(tf.constant(x), tf), stack)
    np.testing.assert_array_equal(stack[0], x.reshape(-1, shape[-1])[: cut.rows, : cut.columns])


def test_the_inverse_root_is_that_of_eigenvalues_and_keeps_zero_finite() -> None:
    x = np.random.default_rng(1).normal(size=(3, 9, 4))
    a = x @ x.transpose(0, 2, 1)
    a[2] = 0
    roots, converged = shampoo.inverse_root(tf.constant(a), 1e-6)
    actual = roots.numpy()
    assert converged.numpy().all()
    for mine, one in zip(actual[:2], a):
        np.testing.assert_allclose(mine, root(one, 1e-6, 4), rtol=0, atol=1e-10 * np.abs(mine).max())
    np.testing.assert_allclose(actual[2], np.eye(9) * 1e-6 ** (-1 / 4), atol=1e-9)


def test_newton_schulz_leaves_singular_values_near_one() -> None:
    x = np.random.default_rng(2).normal(size=(2, 12, 7))
    values = np.linalg.svd(muon.orthogonalised(tf.constant(x), 5).numpy(), compute_uv=False)
    assert values.min() > 0.6 and values.max() < 1.3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "muon", "epsilon": 0.0}, "epsilon=0.0: muon would divide 0 by 0"),
        ({"name": "shampoo", "grafting": "adamm"}, "grafting='adamm'.*did you mean adam"),
        ({"name": "shampoo", "root_interval": 0}, "root_interval=0: must be at least 1"),
        ({"name": "soap", "matrix_decay": 1.0}, "matrix_decay=1.0: must be below 1"),
        ({"name": "shampoo", "matrix_epsilon": 0.0}, "matrix_epsilon=0.0: roots of singular"),
        ({"name": "schedule_free_sgd", "momentum": 0.0}, "momentum=0.0: schedule_free_sgd averages"),
        ({"name": "schedule_free_adamw", "beta_1": 0.0}, "beta_1=0.0: schedule_free_adamw averages"),
    ],
)
def test_a_value_that_a_rule_cannot_use_is_one_line(changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=f"config.optimizer.{message}"):
        optimizers.rule(named(**changes))
