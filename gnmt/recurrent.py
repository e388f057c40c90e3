"""Runs the first decoder layer in Google's wiring, where it sees the previous step's attention context.

LSTM and attention alternate in a loop. As in common/layers/lstm.py, the embeddings' product, which does not depend on
the attention, comes before the loop. After the loop, one product computes the gradient of each matrix the loop uses.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from common.layers.dense import rows
from common.layers.lstm import LSTM, cell, inputs_part
from common.layers.precision import Precision
from common.layers.scan import Tensors, delayed, scan
from gnmt.attention import Attention, Memory


def attend_in_turn(
    lstm: LSTM, attention: Attention, memory: Memory, x: tf.Tensor, masks: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Runs an LSTM over concat(x_t, context_{t-1}); its output queries `attention` at every step.

    Args:
      lstm: the first rows of its kernel multiply x; this function builds it if necessary.
      attention: computes the context of every step's query.
      memory: keys and values from `attention.memory`.
      x: [n, b, width].
      masks: dropout masks of the context, [n, b, width], or None.

    Returns:
      (outputs, contexts), each [n, b, width].
    """
    width = lstm.units
    if not lstm.built:
        lstm.build([None, None, 2 * width])
    x_kernel, context_kernel = tf.split(lstm.kernel, 2)
    recurrent = tf.concat([context_kernel, lstm.recurrent_kernel], 0)
    precision, zeros = lstm.precision, _zeros(x, lstm)
    query_kernel = tf.convert_to_tensor(attention.query_kernel)
    matrix, query_matrix = (tf.cast(x, precision.compute) for x in (recurrent, query_kernel))
    # All steps' factors of the loop's products; filled by the time gradients are computed.
    states: list[tf.Tensor] = []
    z = tf.cast(inputs_part(x, x_kernel, precision), precision.variable) + lstm.bias
    z = _gradient_after(z, recurrent, lambda: states[0], precision)
    queries = tf.zeros_like(x, precision.variable) + attention.bias
    queries = _gradient_after(queries, query_kernel, lambda: states[1], precision)

    def step(before: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        h, c, context = before
        z, query, *mask = inputs
        context = context * mask[0] if mask else context
        z += _times(tf.concat([context, h], -1), tf.stop_gradient(matrix), precision)
        *_, c, _, h = cell(z, c)
        query += _times(h, tf.stop_gradient(query_matrix), precision)
        context = attention.attend(query[:, None], memory)[0][:, 0]
        return (h, c, context), (h, context)

    sequences = (z, queries) if masks is None else (z, queries, masks)
    _, (outputs, contexts) = scan(step, zeros, sequences)
    previous_contexts = delayed(zeros[2], contexts)
    previous_contexts = previous_contexts if masks is None else previous_contexts * masks
    states += [tf.concat([previous_contexts, delayed(zeros[0], outputs)], -1), outputs]
    return outputs, contexts


def _zeros(x: tf.Tensor, lstm: LSTM) -> Tensors:
    """Returns (h, c, context) before the first step."""
    zeros = tf.zeros([tf.shape(x)[1], lstm.units], lstm.precision.variable)
    return (tf.ensure_shape(zeros, [x.shape[1], lstm.units]),) * 3


def _times(a: tf.Tensor, b: tf.Tensor, precision: Precision, **transpose: bool) -> tf.Tensor:
    compute = precision.compute
    return tf.cast(tf.matmul(tf.cast(a, compute), tf.cast(b, compute), **transpose), precision.variable)


def _gradient_after(
    x: tf.Tensor, matrix: tf.Tensor, factors: Callable[[], tf.Tensor], precision: Precision
) -> tf.Tensor:
    """Returns `x`, [n, b, m]; every step of a loop adds to it a product with `matrix`, which the loop holds constant.

    Args:
      x: input to the loop's sums; its gradient equals the sums' gradient.
      matrix: [k, m]; one product computes its gradient over all steps.
      factors: returns the steps' other factors, [n, b, k]; called when gradients are computed.
      precision: precision of the product.
    """

    @tf.custom_gradient
    def same(x: tf.Tensor, matrix: tf.Tensor) -> tuple:
        def gradient(above: tf.Tensor) -> Tensors:
            return above, _times(rows(factors()), rows(above), precision, transpose_a=True)

        return tf.identity(x), gradient

    return same(x, matrix)
