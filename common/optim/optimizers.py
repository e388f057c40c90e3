"""Optimizers as (init, update) pairs over tensors: SGD, LARS, Adam, LazyAdam, Adagrad, RMSprop and Adadelta.

A rule does not know whether it updates a whole variable or a shard. A `Segments` object gives it the norms, the
elements that decay and the rows that have a gradient. LARS's formulas are figures 5 (scaled momentum) and 6 (unscaled)
of "Scale MLPerf-0.6 Models on Google TPU-v3 Pods". Adam's are TensorFlow's (its epsilon is the paper's "epsilon hat").
Adagrad, RMSprop and Adadelta follow tf_keras, with epsilon under the root.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf

from common.config import plugins
from common.config.schema import Optimizer
from common.config.validation import check_optimizer
from common.errors import UserError

Slots = dict[str, tf.Tensor]


class Segments(Protocol):
    """Tells a rule about the tensor that it updates.

    Attributes:
      adapts: whether weight decay and LARS's trust ratio apply; a boolean tensor of the weight's shape if the
        weight holds several variables or parts of them.
      regularised: whether `l2_in_loss` applies; same form.
    """

    adapts: bool | tf.Tensor
    regularised: bool | tf.Tensor

    def norms(self, weight: tf.Tensor, gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the L2 norms of each variable and its gradient, in shapes that broadcast to the weight's."""

    def touched(self, gradient: tf.Tensor) -> bool | tf.Tensor:
        """Returns which elements LazyAdam updates: True for all, or booleans that broadcast to the weight's shape."""


@dataclasses.dataclass(frozen=True)
class Whole:
    """The segments of one whole variable.

    Attributes:
      kind: "kernel", "bias", "norm" or "embedding", from the layer that owns the variable.
      skip_kinds: kinds without weight decay and without the trust ratio.
    """

    kind: str
    skip_kinds: tuple[str, ...] = ("norm", "bias")

    @property
    def adapts(self) -> bool:
        return self.kind not in self.skip_kinds

    @property
    def regularised(self) -> bool:
        """True except for batch norm; biases are included, as in the loss of G6 resnet_main.py."""
        return self.kind != "norm"

    def norms(self, weight: tf.Tensor, gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.norm(weight), tf.norm(gradient)

    def touched(self, gradient: tf.Tensor) -> bool | tf.Tensor:
        """Returns a mask of an embedding's rows that have a gradient; True for other variables.

        Gradients are dense, not IndexedSlices: the sum over replicas makes them dense (a bucket is one tensor), and so
        does a softmax that shares the table. A row with a gradient of exactly zero counts as not looked up.
        """
        return rows_with_gradient(gradient) if self.kind == "embedding" else True


class Rule(NamedTuple):
    """An optimizer over tensors.

    Attributes:
      slots: names of the tensors that it keeps per weight.
      init: (weight) -> its slots.
      update: (weight, gradient, slots, learning_rate, step, segments) -> (weight, slots). All tensors have one
        floating dtype; the rate is a scalar; `step` is an integer scalar, 0 at the first update.
      adapts_by_norms: whether `update` needs norms of the weights that adapt and of their `raw_gradient`.
    """

    slots: tuple[str, ...]
    init: Callable[[tf.Tensor], Slots]
    update: Callable[[tf.Tensor, tf.Tensor, Slots, tf.Tensor, tf.Tensor, Segments], tuple[tf.Tensor, Slots]]
    adapts_by_norms: bool = False


def rule(config: Optimizer) -> Rule:
    """Returns the rule that `config` names.

    Raises:
      UserError: see check_optimizer; or a user function is not found or does not return a rule.
    """
    if config.is_own:
        return _own_rule(config)
    check_optimizer(config)
    # Without momentum there is no slot, which saves a third of the reads and writes.
    slots, move = _FORMS[config.name] if config.momentum or not config.has_momentum else ((), _plain)

    def init(weight: tf.Tensor) -> Slots:
        start = {"accumulator": config.initial_accumulator}
        return {name: tf.fill(weight.shape, tf.constant(start.get(name, 0), weight.dtype)) for name in slots}

    def update(
        weight: tf.Tensor,
        gradient: tf.Tensor,
        slots: Slots,
        learning_rate: tf.Tensor,
        step: tf.Tensor,
        segments: Segments,
    ) -> tuple[tf.Tensor, Slots]:
        touched = segments.touched(gradient) if config.name == "lazy_adam" else True
        gradient = raw_gradient(config, weight, gradient, segments)
        rate = learning_rate
        if config.name == "lars":
            rate = rate * _lars_trust(config, weight, gradient, segments)
        gradient = with_decay(config, weight, gradient, segments)
        distance, after = move(config, gradient, slots, rate, step)
        if touched is True:
            return weight - distance, after
        after = {name: tf.where(touched, after[name], slots[name]) for name in after}
        return tf.where(touched, weight - distance, weight), after

    return Rule(slots, init, update, adapts_by_norms=config.name == "lars")


def _own_rule(config: Optimizer) -> Rule:
    made = plugins.call("optimizer.name", config.name, config)
    if not isinstance(made, Rule):
        raise UserError(
            f"config.optimizer.name={config.name!r}: returned {type(made).__name__}, not a common.optim.optimizers.Rule"
        )
    return made


def zeros(*names: str) -> Callable[[tf.Tensor], Slots]:
    """Returns an `init` function for slots that have the weight's shape and start at 0."""
    return lambda weight: {name: tf.zeros_like(weight) for name in names}


def raw_gradient(config: Optimizer, weight: tf.Tensor, gradient: tf.Tensor, segments: Segments) -> tf.Tensor:
    """Returns the gradient plus the L2 term's gradient; rules take norms of this sum."""
    return _add(gradient, config.l2_in_loss, weight, segments.regularised)


def with_decay(config: Optimizer, weight: tf.Tensor, raw: tf.Tensor, segments: Segments) -> tf.Tensor:
    """Returns the raw gradient plus the weight decay: the direction in which a rule moves."""
    return _add(raw, config.weight_decay, weight, segments.adapts)


def rows_with_gradient(gradient: tf.Tensor) -> tf.Tensor:
    """Returns booleans [rows, 1, ...]: whether the row has a nonzero element."""
    return tf.reduce_any(gradient != 0, axis=list(range(1, gradient.shape.rank)), keepdims=True)


def clipped(
    gradients: Sequence[tf.Tensor], clip_norm: float, total: Callable[[tf.Tensor], tf.Tensor] | None = None
) -> list[tf.Tensor]:
    """Returns the gradients, scaled down together if their global norm exceeds `clip_norm`; 0 clips nothing.

    `total` sums a scalar over replicas, where each replica holds a part of the gradients.
    """
    if not clip_norm:
        return list(gradients)
    # l2_loss reads a gradient once; two operations, square and sum, would write the squares to memory.
    squares = 2 * tf.add_n([tf.nn.l2_loss(g) for g in gradients])
    norm = tf.sqrt(squares if total is None else total(squares))
    factor = clip_norm / tf.maximum(norm, clip_norm)
    return [factor * g for g in gradients]


def with_bias_factor(gradients: Sequence[tf.Tensor], kinds: Sequence[str], factor: float) -> list[tf.Tensor]:
    """Multiplies the gradients of biases by `factor`; called before any decay is added."""
    if factor == 1:
        return list(gradients)
    return [factor * g if kind == "bias" else g for g, kind in zip(gradients, kinds, strict=True)]


def _add(gradient: tf.Tensor, coefficient: float, weight: tf.Tensor, where: bool | tf.Tensor) -> tf.Tensor:
    """Returns gradient + coefficient * weight where `where` is true, and the gradient elsewhere."""
    if coefficient == 0 or where is False:
        return gradient
    term = coefficient * weight
    return gradient + (term if where is True else tf.where(where, term, tf.zeros_like(term)))


def _lars_trust(config: Optimizer, weight: tf.Tensor, gradient: tf.Tensor, segments: Segments) -> tf.Tensor:
    """Returns eta |w| / (|g| + weight_decay |w| + epsilon) with the raw gradient; 1 for weights that do not adapt.

    It is also 1 if a norm is zero, as in tf.contrib's LARSOptimizer: a zero weight must be able to change.
    """
    one = tf.ones([], weight.dtype)
    if segments.adapts is False:
        return one
    weight_norm, gradient_norm = segments.norms(weight, gradient)
    defined = (weight_norm > 0) & (gradient_norm > 0)
    denominator = gradient_norm + config.weight_decay * weight_norm + config.epsilon
    ratio = config.eta * weight_norm / tf.where(defined, denominator, one)
    ratio = tf.where(defined, ratio, one)
    return ratio if segments.adapts is True else tf.where(segments.adapts, ratio, one)


# Update formulas: (config, gradient, slots, rate, step) -> (decrease of the weight, slots).


def _plain(
    config: Optimizer, gradient: tf.Tensor, slots: Slots, rate: tf.Tensor, step: tf.Tensor
) -> tuple[tf.Tensor, Slots]:
    """Gradient descent: `_momentum` with momentum 0, for which its variants coincide."""
    del config, slots, step
    return rate * gradient, {}


def _momentum(
    config: Optimizer, gradient: tf.Tensor, slots: Slots, rate: tf.Tensor, step: tf.Tensor
) -> tuple[tf.Tensor, Slots]:
    """Heavy-ball momentum, or Nesterov's, which looks one step ahead, as in tf_keras's SGD."""
    del step
    if not config.scaled_momentum:
        gradient = rate * gradient
    momentum = config.momentum * slots["momentum"] + gradient
    distance = config.momentum * momentum + gradient if config.nesterov else momentum
    return rate * distance if config.scaled_momentum else distance, {"momentum": momentum}


def _adam(
    config: Optimizer, gradient: tf.Tensor, slots: Slots, rate: tf.Tensor, step: tf.Tensor
) -> tuple[tf.Tensor, Slots]:
    correction = tf.sqrt(_bias(config.beta_2, step, rate.dtype)) / _bias(config.beta_1, step, rate.dtype)
    m = _average(config.beta_1, slots["m"], gradient)
    v = _average(config.beta_2, slots["v"], gradient * gradient)
    rate = rate * correction
    return rate * m / (tf.sqrt(v) + config.epsilon), {"m": m, "v": v}


def _bias(beta: float, step: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns 1 - beta^(step + 1) by expm1: TPUs lack float64, and in plain float32 step 0 loses 4 of 7 digits."""
    decay = math.log(beta) if beta else -math.inf
    return -tf.math.expm1((tf.cast(step, dtype) + 1) * decay)


def _adagrad(
    config: Optimizer, gradient: tf.Tensor, slots: Slots, rate: tf.Tensor, step: tf.Tensor
) -> tuple[tf.Tensor, Slots]:
    del step
    accumulator = slots["accumulator"] + gradient * gradient
    return rate * gradient * tf.math.rsqrt(accumulator + config.epsilon), {"accumulator": accumulator}


def _rmsprop(
    config: Optimizer, gradient: tf.Tensor, slots: Slots, rate: tf.Tensor, step: tf.Tensor
) -> tuple[tf.Tensor, Slots]:
    del step
    v = _average(config.rho, slots["v"], gradient * gradient)
    return rate * gradient * tf.math.rsqrt(v + config.epsilon), {"v": v}


def _adadelta(
    config: Optimizer, gradient: tf.Tensor, slots: Slots, rate: tf.Tensor, step: tf.Tensor
) -> tuple[tf.Tensor, Slots]:
    del step
    v = _average(config.rho, slots["v"], gradient * gradient)
    distance = tf.sqrt((slots["moved"] + config.epsilon) / (v + config.epsilon)) * gradient
    moved = _average(config.rho, slots["moved"], distance * distance)
    return rate * distance, {"v": v, "moved": moved}


def _average(decay: float, old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
    return decay * old + (1 - decay) * new


_FORMS = {
    "sgd": (("momentum",), _momentum),
    "lars": (("momentum",), _momentum),
    "adam": (("m", "v"), _adam),
    "lazy_adam": (("m", "v"), _adam),
    "adagrad": (("accumulator",), _adagrad),
    "rmsprop": (("v",), _rmsprop),
    "adadelta": (("v", "moved"), _adadelta),
}
