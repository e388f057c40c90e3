"""Runs the first decoder layer in Google's wiring, where it sees the attention's context of the step before.

LSTM and attention alternate in a loop. The product of the embeddings, which does not depend on the attention, is
hoisted out of the loop as in common/layers/lstm.py.
"""

from __future__ import annotations

import tensorflow as tf

from common.layers.lstm import LSTM, cell
from common.layers.scan import Tensors, scan
from gnmt.attention import Attention, Memory


def attend_in_turn(
    lstm: LSTM,
    attention: Attention,
    memory: Memory,
    x: tf.Tensor,
    masks: tf.Tensor | None,
    hoisted: bool,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Runs an LSTM over concat(x_t, context_{t-1}) whose output queries `attention` at every step.

    Args:
      lstm: the first rows of its kernel are those of x; it is built here if it is not yet.
      attention: computes the context of every step's query.
      memory: keys and values from `attention.memory`.
      x: [n, b, width].
      masks: dropout masks of the context, [n, b, width], or None.
      hoisted: compute the product of x for all steps at once, before the loop.

    Returns:
      (outputs, contexts), each [n, b, width].
    """
    width, precision = lstm.units, lstm.precision
    if not lstm.built:
        lstm.build([None, None, 2 * width])
    compute, variable = precision.compute, precision.variable
    x_kernel, context_kernel = tf.split(tf.cast(lstm.kernel, compute), 2)
    matrix = tf.concat([context_kernel, tf.cast(lstm.recurrent_kernel, compute)], 0)

    def project(x: tf.Tensor) -> tf.Tensor:
        flat = tf.cast(tf.reshape(x, [-1, width]), compute) @ x_kernel
        z = tf.cast(flat, variable) + lstm.bias
        return tf.reshape(z, tf.concat([tf.shape(x)[:-1], [4 * width]], 0))

    def step(before: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        h, c, context = before
        first, *mask = inputs
        z = first if hoisted else project(first)
        if mask:
            context *= mask[0]
        z += tf.cast(tf.cast(tf.concat([context, h], -1), compute) @ matrix, variable)
        *_, c, _, h = cell(z, c)
        found, _ = attention(h[:, None], memory)
        context = found[:, 0]
        return (h, c, context), (h, context)

    inputs = project(x) if hoisted else x
    inputs = tf.ensure_shape(inputs, [*x.shape[:-1], inputs.shape[-1] or 4 * width])
    zeros = tf.zeros([tf.shape(x)[1], width], variable)
    zeros = tf.ensure_shape(zeros, [x.shape[1], width])
    sequences = (inputs,) if masks is None else (inputs, masks)
    _, (outputs, contexts) = scan(step, (zeros, zeros, zeros), sequences, [width, width])
    return outputs, contexts
