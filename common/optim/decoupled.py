"""AdamW and LAMB: Adam's direction with corrected averages, and a weight decay added to it.

Sources: "Decoupled Weight Decay Regularization" (AdamW); "Large Batch Optimization for Deep Learning: Training
BERT in 76 minutes", algorithm 2 with phi(z) = z (LAMB). As in optax, the rate multiplies the decay, and epsilon is
added to the root of the corrected average. `adam` of `optimizers.py` differs: its decay is part of the gradient.
"""

import tensorflow as tf

from common.config.optimizer import AdamW
from common.optim.rule import (
    Rule,
    Segments,
    Slots,
    WeightState,
    average,
    bias,
    raw_gradient,
    with_decay,
    zeros,
)


def adamw(config: AdamW) -> Rule:
    """Returns AdamW."""

    def update(state: WeightState) -> tuple[tf.Tensor, Slots]:
        direction, after = _direction(config, state)
        return state.weight - state.learning_rate * direction, after

    return Rule(("m", "v"), zeros("m", "v"), update)


def lamb(config: AdamW) -> Rule:
    """Returns LAMB: AdamW's step, scaled to the weight's norm for the kinds that adapt."""

    def measured(state: WeightState) -> tf.Tensor:
        return _direction(config, state)[0]

    def update(state: WeightState) -> tuple[tf.Tensor, Slots]:
        direction, after = _direction(config, state)
        trust = _trust(state.weight, direction, state.segments)
        return state.weight - state.learning_rate * trust * direction, after

    return Rule(("m", "v"), zeros("m", "v"), update, adapts_by_norms=True, measured=measured)


def _direction(config: AdamW, state: WeightState) -> tuple[tf.Tensor, Slots]:
    """Returns Adam's direction plus the decay, and the slots after it."""
    gradient, step = raw_gradient(config, state), state.step
    beta, dtype = config.beta_1, state.weight.dtype
    m = average(beta, state.slots["m"], gradient)
    v = average(config.beta_2, state.slots["v"], gradient * gradient)
    direction = m / bias(beta, step, dtype) / (tf.sqrt(v / bias(config.beta_2, step, dtype)) + config.epsilon)
    return with_decay(config, state, direction), {"m": m, "v": v}


def _trust(weight: tf.Tensor, direction: tf.Tensor, segments: Segments) -> tf.Tensor:
    """Returns |w| / |direction|; 1 if either is zero, and for weights that do not adapt."""
    one = tf.ones([], weight.dtype)
    if segments.adapts is False:
        return one
    weight_norm, norm = segments.norms(weight, direction)
    defined = (weight_norm > 0) & (norm > 0)
    ratio = tf.where(defined, weight_norm / tf.where(defined, norm, one), one)
    return ratio if segments.adapts is True else tf.where(segments.adapts, ratio, one)
