"""Muon: momentum, made nearly orthogonal by a Newton-Schulz iteration, for hidden matrices; AdamW for the rest.

Source: github.com/KellerJordan/Muon and its author's page "Muon: An optimizer for hidden layers in neural networks", in
the form of optax.contrib.muon: averages are corrected, and the step is scaled by sqrt(max(1, outputs / inputs)). The
rest are embeddings, vectors and the output layer's kernel; its rate is `adamw_rate_factor` times the rate.
"""

import math

import tensorflow as tf

from common.config.optimizer import Muon
from common.optim import cuts, decoupled
from common.optim.rule import (
    Matrices,
    Rule,
    Slots,
    WeightState,
    Whole,
    ahead,
    average,
    bias,
    raw_gradient,
    with_decay,
    zeros,
)

# The quintic polynomial's coefficients, from the page above: the steepest at zero that keeps the values near 1.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_TINY = 1e-8  # optax.contrib.muon's `eps`: keeps the norm by which the iteration divides above zero.


def muon(config: Muon) -> Rule:
    """Returns Muon, with AdamW for the weights other than hidden matrices."""
    rest = decoupled.adamw(config)

    def update(state: WeightState) -> tuple[tf.Tensor, Slots]:
        return rest.update(state._replace(learning_rate=config.adamw_rate_factor * state.learning_rate))

    return Rule(rest.slots, rest.init, update, matrices=Matrices(_hidden, _orthogonal(config)))


def _hidden(shape: tuple[int, ...], whole: Whole) -> cuts.Cut | None:
    hidden = whole.kind == "kernel" and not whole.output and len(shape) > 1
    return cuts.folded(shape) if hidden else None


def _orthogonal(config: Muon) -> Rule:
    beta = config.momentum

    def update(state: WeightState) -> tuple[tf.Tensor, Slots]:
        gradient, step = raw_gradient(config, state), state.step
        momentum = average(beta, state.slots["momentum"], gradient)
        if config.nesterov:
            moment = ahead(beta, momentum, gradient, step)
        else:
            moment = momentum / bias(beta, step, momentum.dtype)
        inputs, outputs = momentum.shape[-2:]
        direction = math.sqrt(max(1, outputs / inputs)) * orthogonalised(moment, config.orthogonal_steps)
        move = state.learning_rate * with_decay(config, state, direction)
        return state.weight - move, {"momentum": momentum}

    return Rule(("momentum",), zeros("momentum"), update)


def orthogonalised(x: tf.Tensor, steps: int) -> tf.Tensor:
    """Returns matrices [k, m, n] with the singular vectors of `x` and singular values near 1.

    The products are in the dtype of `x`, the slots': the author's code runs them in bfloat16.
    """
    tall = x.shape[-2] > x.shape[-1]
    x = tf.linalg.matrix_transpose(x) if tall else x
    x /= tf.norm(x, axis=[-2, -1], keepdims=True) + _TINY
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        square = tf.matmul(x, x, transpose_b=True)
        x = a * x + tf.matmul(b * square + c * tf.matmul(square, square), x)
    return tf.linalg.matrix_transpose(x) if tall else x
