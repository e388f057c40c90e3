"""Optimizers as (init, update) pairs over tensors: SGD, LARS, Adam, LazyAdam, Adagrad, RMSprop and Adadelta.

AdamW and LAMB are in `decoupled.py`.
`rule.py` defines the interface. LARS's formulas are figures 5 (scaled momentum) and 6 (unscaled) of "Scale MLPerf-0.6
Models on Google TPU-v3 Pods", and NVIDIA's (`trust_in_velocity`). Adam's are TensorFlow's (its epsilon is the paper's
"epsilon hat"). Adagrad, RMSprop and Adadelta follow tf_keras, with epsilon under the root.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from common.config import plugins
from common.config.optimizer import Adagrad, Adam, Lars, LazyAdam, Optimizer, RMSprop, Sgd
from common.errors import UserError
from common.optim import decoupled
from common.optim.rule import (
    Rule,
    Segments,
    Slots,
    WeightState,
    Whole,
    average,
    bias,
    raw_gradient,
    rows_with_gradient,
    with_decay,
    zeros,
)

# Rules import these names from here (docs/extend.md).
__all__ = [
    "Rule", "Segments", "Slots", "WeightState", "Whole", "raw_gradient", "rows_with_gradient",
    "rule", "with_decay", "zeros",
]  # fmt: skip


def rule(config: Optimizer) -> Rule:
    """Returns the rule that `config` names.

    Raises UserError as `Optimizer.check` does, or if a user function is not found or does not return a rule.
    """
    if config.is_plugin:
        return _own_rule(config)
    config.check()
    return _RULES[config.name](config)


def _own_rule(config: Optimizer) -> Rule:
    rule = plugins.call("optimizer.name", config.name, config)
    if not isinstance(rule, Rule):
        raise UserError(
            f"config.optimizer.name={config.name!r}: returned {type(rule).__name__}, not a common.optim.optimizers.Rule"
        )
    return rule


def clipped(
    gradients: Sequence[tf.Tensor],
    clip_norm: float,
    total: Callable[[tf.Tensor], tf.Tensor] | None = None,
    epsilon: float = 0.0,
) -> list[tf.Tensor]:
    """Returns the gradients, scaled down together if their global norm exceeds `clip_norm`; 0 clips nothing.

    `total` sums a scalar over replicas, where each replica holds a part of the gradients. `epsilon` is added to the
    norm.
    """
    if not clip_norm:
        return list(gradients)
    # l2_loss reads a gradient once; two operations, square and sum, would write the squares to memory.
    squares = 2 * tf.add_n([tf.nn.l2_loss(g) for g in gradients])
    norm = tf.sqrt(squares if total is None else total(squares)) + epsilon
    factor = clip_norm / tf.maximum(norm, clip_norm)
    return [factor * g for g in gradients]


def with_bias_factor(gradients: Sequence[tf.Tensor], kinds: Sequence[str], factor: float) -> list[tf.Tensor]:
    """Multiplies the gradients of biases by `factor`; called before any decay is added."""
    if factor == 1:
        return list(gradients)
    return [factor * g if kind == "bias" else g for g, kind in zip(gradients, kinds, strict=True)]


Move = Callable[[Optimizer, WeightState], tuple[tf.Tensor, Slots]]


def _along_gradient(config: Optimizer, move: Move, *slots: str, start: float = 0.0) -> Rule:
    """Returns the rule that takes `move`'s distance off the weight; its slots have the value `start` at first.

    `move` gets the gradient with the L2 term's gradient and the decay.
    """

    def init(weight: tf.Tensor) -> Slots:
        return {name: tf.fill(weight.shape, tf.constant(start, weight.dtype)) for name in slots}

    def update(state: WeightState) -> tuple[tf.Tensor, Slots]:
        gradient = with_decay(config, state, raw_gradient(config, state))
        distance, after = move(config, state._replace(gradient=gradient))
        return state.weight - distance, after

    return Rule(slots, init, update)


def _sgd(config: Sgd) -> Rule:
    """Without momentum there is no slot, which saves a third of the reads and writes."""
    return (
        _along_gradient(config, _momentum, "momentum") if config.momentum else _along_gradient(config, _plain)
    )


def _lars(config: Lars) -> Rule:
    move = _momentum if config.momentum else _plain

    def update(state: WeightState) -> tuple[tf.Tensor, Slots]:
        rate, gradient = state.learning_rate, raw_gradient(config, state)
        trust = _lars_trust(config, state.weight, gradient, state.segments)
        gradient = with_decay(config, state, gradient)
        if config.trust_in_velocity:
            gradient = trust * gradient
        else:
            rate = rate * trust
        distance, after = move(config, state._replace(gradient=gradient, learning_rate=rate))
        return state.weight - distance, after

    return _sgd(config)._replace(update=update, adapts_by_norms=True)


def _lazy_adam(config: LazyAdam) -> Rule:
    adam = _along_gradient(config, _adam, "m", "v")

    def update(state: WeightState) -> tuple[tf.Tensor, Slots]:
        touched = state.segments.touched(state.gradient)
        weight, after = adam.update(state)
        if touched is True:
            return weight, after
        after = {name: tf.where(touched, after[name], state.slots[name]) for name in after}
        return tf.where(touched, weight, state.weight), after

    return adam._replace(update=update)


def _lars_trust(config: Lars, weight: tf.Tensor, gradient: tf.Tensor, segments: Segments) -> tf.Tensor:
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


# Update formulas: (config, state with the direction as its gradient) -> (decrease of the weight, slots).


def _plain(config: Optimizer, state: WeightState) -> tuple[tf.Tensor, Slots]:
    """Gradient descent: `_momentum` with momentum 0, for which its variants coincide."""
    del config
    return state.learning_rate * state.gradient, {}


def _momentum(config: Sgd, state: WeightState) -> tuple[tf.Tensor, Slots]:
    """Heavy-ball momentum, or Nesterov's, which looks one step ahead, as in tf_keras's SGD."""
    gradient, rate = state.gradient, state.learning_rate
    if not config.scaled_momentum:
        gradient = rate * gradient
    momentum = config.momentum * state.slots["momentum"] + gradient
    distance = config.momentum * momentum + gradient if config.nesterov else momentum
    return rate * distance if config.scaled_momentum else distance, {"momentum": momentum}


def _adam(config: Adam, state: WeightState) -> tuple[tf.Tensor, Slots]:
    gradient, rate = state.gradient, state.learning_rate
    root = tf.sqrt(bias(config.beta_2, state.step, rate.dtype))
    correction = root / bias(config.beta_1, state.step, rate.dtype)
    epsilon = config.epsilon * root if config.corrected_epsilon else config.epsilon
    m = average(config.beta_1, state.slots["m"], gradient)
    v = average(config.beta_2, state.slots["v"], gradient * gradient)
    rate = rate * correction
    return rate * m / (tf.sqrt(v) + epsilon), {"m": m, "v": v}


def _adagrad(config: Adagrad, state: WeightState) -> tuple[tf.Tensor, Slots]:
    total = state.slots["accumulator"] + state.gradient * state.gradient
    distance = state.learning_rate * state.gradient * tf.math.rsqrt(total + config.epsilon)
    return distance, {"accumulator": total}


def _rmsprop(config: RMSprop, state: WeightState) -> tuple[tf.Tensor, Slots]:
    v = average(config.rho, state.slots["v"], state.gradient * state.gradient)
    return state.learning_rate * state.gradient * tf.math.rsqrt(v + config.epsilon), {"v": v}


def _adadelta(config: RMSprop, state: WeightState) -> tuple[tf.Tensor, Slots]:
    slots = state.slots
    v = average(config.rho, slots["v"], state.gradient * state.gradient)
    distance = tf.sqrt((slots["moved"] + config.epsilon) / (v + config.epsilon)) * state.gradient
    moved = average(config.rho, slots["moved"], distance * distance)
    return state.learning_rate * distance, {"v": v, "moved": moved}


_RULES: dict[str, Callable[[Any], Rule]] = {
    "sgd": _sgd,
    "lars": _lars,
    "adam": lambda config: _along_gradient(config, _adam, "m", "v"),
    "lazy_adam": _lazy_adam,
    "adagrad": lambda config: _along_gradient(
        config, _adagrad, "accumulator", start=config.initial_accumulator
    ),
    "rmsprop": lambda config: _along_gradient(config, _rmsprop, "v"),
    "adadelta": lambda config: _along_gradient(config, _adadelta, "v", "moved"),
    "adamw": decoupled.adamw,
    "lamb": decoupled.lamb,
}
