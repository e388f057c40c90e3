"""Tests updates by TensorFlow's kernels against the rules that they replace."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from common.config.optimizer import Adam, Optimizer, Sgd
from common.distributed import replicas as backends
from common.distributed.weight_update import WholeUpdate
from common.optim import fused_kernels
from common.optim.optimizers import WeightState, Whole
from tests.common.optim.test_optimizers import RULES
from tests.common.optim.test_optimizers_adaptive import ADAPTIVE
from tests.common.train import toy
from tests.timetotrain.run.rules import KINDS, problem, worst

CONFIGS = {**RULES, **ADAPTIVE, "sgd scaled nesterov": Sgd(nesterov=True, scaled_momentum=True)}
WITH_KERNEL = [name for name, config in CONFIGS.items() if fused_kernels.has_kernel(config, Whole("kernel"))]


def updated(optimizer: Optimizer, in_place_: bool, compiled: bool = False) -> tuple[dict, list[dict]]:
    """Weights and slots after 20 steps, by the kernels or by the rule."""
    config = toy.config(precision="fp64", optimizer=optimizer)
    replicas = backends.make(config)
    replicas.updates_in_place = in_place_
    values, gradients, rates = problem()
    weights = {name: tf.Variable(value, name=name) for name, value in values.items()}
    kinds = {weight.ref(): KINDS[name] for name, weight in weights.items()}
    update = WholeUpdate(list(weights.values()), kinds, replicas, config)

    @tf.function(jit_compile=compiled, autograph=False)
    def step(gradients: list[tf.Tensor], rate: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies(update.apply(gradients, rate, step)):
            return tf.zeros([])

    for i, rate in enumerate(rates):
        step(
            [tf.constant(gradients[i][name]) for name in weights], tf.constant(rate), tf.constant(i, tf.int64)
        )
    return {name: weight.numpy() for name, weight in weights.items()}, list(update.each_slot())


def test_momentum_and_adam_have_kernels() -> None:
    assert {CONFIGS[name].name for name in WITH_KERNEL} == {"sgd", "adam", "lazy_adam"}
    assert {c.name for n, c in CONFIGS.items() if n not in WITH_KERNEL} == {
        "lars",
        "adagrad",
        "rmsprop",
        "adadelta",
    }
    assert not fused_kernels.has_kernel(CONFIGS["lazy_adam 512"], Whole("embedding"))
    assert fused_kernels.has_kernel(CONFIGS["adam"], Whole("embedding"))


def test_the_rule_handles_a_rate_and_decay_that_remove_most_of_a_weight() -> None:
    """The kernel divides by 1 - rate * decay."""
    plain = Sgd(momentum=0.0, base_learning_rate=0.5, weight_decay=1.0)
    assert not fused_kernels.has_kernel(plain, Whole("kernel"))
    assert fused_kernels.has_kernel(plain, Whole("bias", ("bias",)))  # A bias does not decay.
    assert fused_kernels.has_kernel(dataclasses.replace(plain, momentum=0.9), Whole("kernel"))


@pytest.mark.parametrize("compiled", [False, True], ids=["as it is", "through XLA"])
@pytest.mark.parametrize("name", WITH_KERNEL)
def test_equals_the_rule_over_20_steps(name: str, compiled: bool) -> None:
    weights, slots = updated(CONFIGS[name], True, compiled)
    expected, expected_slots = updated(CONFIGS[name], False)
    assert worst(weights, expected) < 1e-12
    for (*key, value), (*expected_key, expected_slot) in zip(slots, expected_slots, strict=True):
        assert key == expected_key
        np.testing.assert_allclose(value, expected_slot, rtol=1e-12, atol=1e-14)


def test_the_first_step_of_adam_keeps_its_digits_in_single_precision() -> None:
    """1 - 0.999 has only three correct digits in single precision."""
    optimizer, gradient = Adam(beta_2=0.999, epsilon=1e-8), np.float32(0.3)
    weight = tf.Variable(np.float32(0))
    slots = {name: tf.Variable(np.float32(0)) for name in ("m", "v")}

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        rate, first = tf.constant(1.0), tf.constant(0, tf.int64)
        state = WeightState(weight, tf.constant(gradient), slots, rate, first, Whole("kernel"))
        with tf.control_dependencies([fused_kernels.apply(optimizer, state)]):
            return weight.read_value()

    # m / (1 - beta_1) = g and v / (1 - beta_2) = g^2: the first step is as long as the rate.
    assert float(step()) == pytest.approx(-1, abs=2e-6)
