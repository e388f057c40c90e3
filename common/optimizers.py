"""Optimizers as (init, update) pairs over tensors: SGD with momentum, and LARS.

A rule does not know whether it updates a whole variable or a shard of many: what it asks about the tensor
(norms, and which elements decay) it asks a `Segments`. The formulas are figures 5 (scaled momentum) and 6
(unscaled) of "Scale MLPerf-0.6 Models on Google TPU-v3 Pods".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, Protocol

import tensorflow as tf

from common.config import Optimizer, near
from common.errors import UserError

Slots = dict[str, tf.Tensor]
RULES = ("sgd", "lars")


class Segments(Protocol):
    """What a rule may ask about the tensor it updates.

    Attributes:
      adapts: weight decay and LARS's trust ratio apply; a boolean tensor of the shape of the weight where
        that holds several variables, or parts of them.
      regularised: `l2_in_loss` applies; likewise.
    """

    adapts: bool | tf.Tensor
    regularised: bool | tf.Tensor

    def norm(self, x: tf.Tensor) -> tf.Tensor:
        """L2 norm of each variable, in a shape that broadcasts to that of `x`."""


@dataclasses.dataclass(frozen=True)
class Whole:
    """The segments of one whole variable.

    Attributes:
      kind: "kernel", "bias", "norm" or "embedding", from the layer that owns the variable.
      skip_kinds: kinds that neither decay nor adapt.
    """

    kind: str
    skip_kinds: tuple[str, ...] = ("norm", "bias")

    @property
    def adapts(self) -> bool:
        return self.kind not in self.skip_kinds

    @property
    def regularised(self) -> bool:
        """Everything but batch norm, biases too: what G6 resnet_main.py puts into its loss."""
        return self.kind != "norm"

    def norm(self, x: tf.Tensor) -> tf.Tensor:
        return tf.norm(x)


class Rule(NamedTuple):
    """An optimizer.

    Attributes:
      slots: names of the tensors it keeps per weight.
      init: (weight) -> its slots.
      update: (weight, gradient, slots, learning_rate, step, segments) -> (weight, slots); tensors of one
        floating dtype, the rate a scalar, `step` an integer scalar.
    """

    slots: tuple[str, ...]
    init: Callable[[tf.Tensor], Slots]
    update: Callable[[tf.Tensor, tf.Tensor, Slots, tf.Tensor, tf.Tensor, Segments], tuple[tf.Tensor, Slots]]


def rule(config: Optimizer) -> Rule:
    """The rule that `config` names.

    Raises:
      UserError: unknown name.
    """
    if config.name not in RULES:
        hint = near(config.name, RULES)
        raise UserError(f"config.optimizer.name={config.name!r}: unknown{hint}; known: {', '.join(RULES)}")
    trust = _lars_trust if config.name == "lars" else _no_trust

    def init(weight: tf.Tensor) -> Slots:
        return {"momentum": tf.zeros_like(weight)}

    def update(
        weight: tf.Tensor,
        gradient: tf.Tensor,
        slots: Slots,
        learning_rate: tf.Tensor,
        step: tf.Tensor,
        segments: Segments,
    ) -> tuple[tf.Tensor, Slots]:
        del step
        gradient = _add(gradient, config.l2_in_loss, weight, segments.regularised)
        rate = learning_rate * trust(config, weight, gradient, segments)
        gradient = _add(gradient, config.weight_decay, weight, segments.adapts)
        weight, momentum = _momentum(config, weight, gradient, slots["momentum"], rate)
        return weight, {"momentum": momentum}

    return Rule(("momentum",), init, update)


def _add(gradient: tf.Tensor, coefficient: float, weight: tf.Tensor, where: bool | tf.Tensor) -> tf.Tensor:
    """gradient + coefficient * weight, where told."""
    if coefficient == 0 or where is False:
        return gradient
    term = coefficient * weight
    return gradient + (term if where is True else tf.where(where, term, tf.zeros_like(term)))


def _no_trust(config: Optimizer, weight: tf.Tensor, gradient: tf.Tensor, segments: Segments) -> tf.Tensor:
    del config, gradient, segments
    return tf.ones([], weight.dtype)


def _lars_trust(config: Optimizer, weight: tf.Tensor, gradient: tf.Tensor, segments: Segments) -> tf.Tensor:
    """eta |w| / (|g| + weight_decay |w| + epsilon) of the raw gradient; 1 for what does not adapt.

    Also 1 where a norm is zero, as in tf.contrib's LARSOptimizer: a weight at zero must be able to leave it.
    """
    one = tf.ones([], weight.dtype)
    if segments.adapts is False:
        return one
    weight_norm, gradient_norm = segments.norm(weight), segments.norm(gradient)
    defined = (weight_norm > 0) & (gradient_norm > 0)
    denominator = gradient_norm + config.weight_decay * weight_norm + config.epsilon
    ratio = config.eta * weight_norm / tf.where(defined, denominator, one)
    ratio = tf.where(defined, ratio, one)
    return ratio if segments.adapts is True else tf.where(segments.adapts, ratio, one)


def _momentum(
    config: Optimizer, weight: tf.Tensor, gradient: tf.Tensor, momentum: tf.Tensor, rate: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """(weight, momentum) after a step; Nesterov's looks one step ahead, as tf_keras's SGD does."""
    if config.scaled_momentum:
        momentum = config.momentum * momentum + gradient
        move = config.momentum * momentum + gradient if config.nesterov else momentum
        return weight - rate * move, momentum
    gradient = rate * gradient
    momentum = config.momentum * momentum + gradient
    move = config.momentum * momentum + gradient if config.nesterov else momentum
    return weight - move, momentum
