"""Tests what iterates with products whose operands lose bits, as on GPUs (10 remain) and TPUs (7 remain)."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf

from common.config.optimizer import Shampoo
from common.config.rules import named
from common.distributed import replicas as backends
from common.errors import UserError
from common.optim import optimizers, products, shampoo
from common.train import events
from common.train.loop import Loop
from lab.bench import precision
from lab.bench.precision import BF16, FLOAT32, TF32, rounding
from tests.common.train import toy

SUMS = precision._sums(10)


@pytest.mark.parametrize("name", precision.ROWS)
def test_an_iteration_loses_nothing_on_a_device_that_rounds(name: str) -> None:
    """Muon rounds as its authors' code does, which runs in bfloat16; RoI align as the layers around it."""
    own, gpu, tpu = (precision.worst(name, bits) for bits in (FLOAT32, TF32, BF16))
    if "Muon" in name or name == "RoI align, as a layer":
        assert own < 1e-5 and gpu < 0.01 and tpu < 0.05
    elif name == "muon, 12 steps":
        assert max(own, gpu, tpu) < 1e-4
    else:
        assert own < (0.03 if name.startswith("soap") else 3e-3)
        assert max(gpu, tpu) < 1.1 * own + 1e-6


@pytest.mark.parametrize("name", ["Shampoo's root, rank 10", "SOAP's power steps and QR"])
def test_a_gpu_outside_xla_loses_nothing_either(name: str) -> None:
    assert precision.worst(name, TF32, compiled=False) < 1.5 * precision.worst(name, FLOAT32) + 1e-6


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True)])
def test_an_exact_product_is_that_of_float64(transposed: tuple[bool, bool]) -> None:
    a, b = np.random.default_rng(0).normal(size=(2, 3, 40, 40)).astype(np.float32)
    expected = tf.matmul(a.astype(float), b.astype(float), *transposed).numpy()
    with rounding(TF32):
        plain = tf.matmul(a, b, *transposed)
        forms = [
            products.exact(tf.constant(a), tf.constant(b), *transposed),
            tf.function(
                lambda: products.exact(tf.constant(a), tf.constant(b), *transposed), jit_compile=True
            )(),
        ]
    assert np.abs(plain - expected).max() > 1e-3, "the harness must round"
    for form in forms:
        np.testing.assert_allclose(form, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("name", "exact"), [("shampoo", True), ("soap", True), ("muon", False)])
def test_the_exported_program_asks_for_the_highest_precision(name: str, exact: bool) -> None:
    rule = optimizers.rule(named(name, **({"root_interval": 2} if exact else {}))).matrices.rule
    weight = tf.ones([1, 8, 6])

    def update(step: tf.Tensor) -> list[tf.Tensor]:
        new, slots = rule.update(
            optimizers.WeightState(
                weight, weight, rule.init(weight), tf.constant(0.1), step, optimizers.Whole("kernel")
            )
        )
        return [new, *slots.values()]

    compiled = tf.function(update, jit_compile=True, autograph=False)
    text = compiled.experimental_get_compiler_ir(tf.constant(1))(stage="stablehlo")
    precisions = re.findall(r"dot_general.*?precision = \[(\w+), (\w+)\]", text)
    assert precisions and all((pair == ("HIGHEST", "HIGHEST")) == exact for pair in precisions)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_root_that_does_not_converge_is_the_last_good_one_and_counted(compiled: bool) -> None:
    """A ridge below float32's digits: the iteration's error grows, and it ends before the root is garbage."""
    rule = shampoo.shampoo(Shampoo(epsilon=1e-8, matrix_epsilon=1e-8, root_interval=1)).matrices.rule
    update = tf.function(rule.update, jit_compile=True) if compiled else rule.update
    factors = np.random.default_rng(0).normal(size=(2, 128, 4)).astype(np.float32)
    weight, gradients = (
        tf.zeros([2, 128, 128]),
        np.stack([factors[0] @ factors[1].T, np.eye(128, dtype=np.float32)]),
    )
    slots = rule.init(weight)
    for step in range(3):
        now = tf.constant(0.1), tf.constant(step)
        whole = optimizers.Whole("kernel")
        weight, slots = update(optimizers.WeightState(weight, tf.constant(gradients), slots, *now, whole))
    # Both sides of the first matrix, at steps 1 and 2; the second matrix is the identity.
    np.testing.assert_array_equal(slots[shampoo.KEPT_ROOTS], [4, 0])
    np.testing.assert_array_equal(slots["left_root"][0], np.eye(128))
    assert np.isfinite(weight).all()
    root, _ = shampoo.inverse_root(tf.constant(SUMS, tf.float32), 1e-8)
    assert np.abs(root).max() < 10 * np.abs(shampoo.inverse_root(tf.constant(SUMS), 1e-8)[0]).max()


@pytest.mark.parametrize("bits", [FLOAT32, TF32, BF16])
def test_a_run_with_shampoo_trains_on_devices_that_round_and_reports_its_roots(bits: int) -> None:
    rule = Shampoo(0.05, epsilon=1e-8, matrix_block=8, root_interval=2)
    with rounding(bits):
        config = toy.config(
            optimizer=rule, precision="fp32", compile="on", train_epochs=5, quality_target=2.0
        )
        trained = [
            e for e in Loop(toy.Task(config), backends.make(config)).run() if isinstance(e, events.Trained)
        ]
    losses = [loss for event in trained for loss in event.losses]
    assert np.isfinite(losses).all() and np.mean(losses[-4:]) < 0.9 * np.mean(losses[:4])
    assert trained[-1].scale == {"kept_roots": 0}


@pytest.mark.parametrize(("dtype", "least"), [("fp32", 1e-7), ("bf16", 1e-7), ("fp64", 1e-15)])
def test_a_ridge_that_a_precision_cannot_carry_is_refused(dtype: str, least: float) -> None:
    def config(ridge: float) -> object:
        return toy.config(optimizer=Shampoo(epsilon=1e-8, matrix_epsilon=ridge), precision=dtype)

    config(least).validate()
    with pytest.raises(UserError, match=f"matrix_epsilon=.*{dtype}.*at least {least}"):
        dataclasses.replace(config(least / 10)).validate()
