"""Schedule-Free SGD and AdamW: a weighted average of the weights takes the place of a decaying rate.

Source: "The Road Less Scheduled", algorithm 1, in the form of its authors' code and of optax: the network's variables
hold y, where gradients are taken; a slot holds z, which the gradients move; the average x follows from the two:
y = (1 - b) z + b x. The weight of a step is (largest rate so far)^averaging_power. b is `momentum` for SGD and `beta_1`
for AdamW. Evaluations, exports and new runs use x: `averaged` computes it.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from common.config.optimizer import Optimizer
from common.optim.rule import Rule, Slots, WeightState, average, bias, raw_gradient, with_decay

# Scalar slots, equal for all weights: the sum of the steps' weights so far, and the largest rate so far.
_SCALARS = ("weight_sum", "largest_rate")


def sgd(config: Optimizer) -> Rule:
    """Returns Schedule-Free SGD."""

    def move(gradient: tf.Tensor, slots: Slots, step: tf.Tensor) -> tuple[tf.Tensor, Slots]:
        del slots, step
        return gradient, {}

    return _rule(config, (), move)


def adamw(config: Optimizer) -> Rule:
    """Returns Schedule-Free AdamW: Adam's second moment, and no first one."""

    def move(gradient: tf.Tensor, slots: Slots, step: tf.Tensor) -> tuple[tf.Tensor, Slots]:
        v = average(config.beta_2, slots["v"], gradient * gradient)
        corrected = v / bias(config.beta_2, step, gradient.dtype)
        return gradient / (tf.sqrt(corrected) + config.epsilon), {"v": v}

    return _rule(config, ("v",), move)


def averaged(config: Optimizer, weight: Any, z: Any) -> Any:
    """Returns the average x from y and z, tensors or arrays of one shape."""
    return (weight - (1 - config.averaging_beta) * z) / config.averaging_beta


def restored(config: Optimizer, average: Any, z: Any) -> Any:
    """Returns y from the average x and z; the inverse of `averaged`."""
    return config.averaging_beta * average + (1 - config.averaging_beta) * z


def _rule(
    config: Optimizer,
    own: tuple[str, ...],
    move: Callable[[tf.Tensor, Slots, tf.Tensor], tuple[tf.Tensor, Slots]],
) -> Rule:
    def init(weight: tf.Tensor) -> Slots:
        slots = {name: tf.zeros_like(weight) for name in ("z", *own)}
        return slots | {name: tf.zeros([], weight.dtype) for name in _SCALARS}

    def update(state: WeightState) -> tuple[tf.Tensor, Slots]:
        # z starts at the weights, which may come from a file after the slots are made.
        slots, rate = state.slots, state.learning_rate
        z = tf.where(state.step == 0, state.weight, slots["z"])
        direction, after = move(raw_gradient(config, state), slots, state.step)
        largest = tf.maximum(slots["largest_rate"], rate)
        share = largest**config.averaging_power
        total = slots["weight_sum"] + share
        share = tf.where(total > 0, share / tf.where(total > 0, total, tf.ones_like(total)), 0)
        x = averaged(config, state.weight, z)
        z -= rate * with_decay(config, state, direction)
        weight = restored(config, (1 - share) * x + share * z, z)
        return weight, after | {"z": z, "weight_sum": total, "largest_rate": largest}

    return Rule(("z", *own, *_SCALARS), init, update)
