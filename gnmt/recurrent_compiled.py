"""Implements the loop of gnmt/recurrent.py for XLA, with a hand-written gradient; both passes launch few kernels.

Differences from the loop that TensorFlow differentiates:
- One matrix, [recurrent, query], multiplies a step's output h. The product gives the step's query and h's part of the
  next step's gates. Another matrix multiplies the context. TensorFlow's form joins context and h in one more kernel.
- The loop keeps only each step's gates, states, query and attention weights, the gates in the precision of products.
  TensorFlow keeps everything its gradients read, including the memory and the matrices of every step.
- The gradients of keys, values and direction are sums over all steps, computed after the loop.
- The softmax gradient, w (d - sum w d), becomes w times a sum over the width. With d = context' . value and
  sum w d = context' . context, it is w (context' . (value - context)).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from common.layers.dense import rows
from common.layers.lstm import cell, cell_gradient
from common.layers.precision import Precision
from common.layers.scan import Tensors, delayed, scan
from gnmt.attention import MASKED, Memory, key_gradients, query_gradients, scores_of


def attend_compiled(
    z: tf.Tensor,
    weights: Tensors,
    memory: Memory,
    direction: tf.Tensor,
    masks: tf.Tensor | None,
    precision: Precision,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Runs the steps; states and context start at zero.

    Args:
      z: the inputs' part of the gates without the bias, [n, b, 4u].
      weights: the gates' bias, [4u]; matrices from context and from h to the gates, [u, 4u] each, and from h to
        queries, [u, u].
      memory: keys and values [b, m, u]; the keys include the queries' bias, which saves a kernel per step.
      direction: [u], see `gnmt.attention.additive_scores`.
      masks: dropout masks of the context, [n, b, u], or None.
      precision: precision of products and of everything else.

    Returns:
      (outputs, contexts), each [n, b, u].
    """
    compute, variable = precision.compute, precision.variable
    real = memory.real[:, 0]

    def times(a: tf.Tensor, b: tf.Tensor, **transpose: bool) -> tf.Tensor:
        return tf.cast(tf.matmul(tf.cast(a, compute), tf.cast(b, compute), **transpose), variable)

    @tf.custom_gradient
    def core(z: tf.Tensor, *rest: tf.Tensor) -> tuple[Tensors, Any]:
        bias, *matrices, keys, values, direction = rest
        of_context, of_h, of_query = (tf.cast(x, compute) for x in matrices)
        of_output, values = tf.concat([of_h, of_query], 1), tf.cast(values, compute)
        units, length = of_query.shape[0], keys.shape[1]

        def step(before: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
            recurrent, c, context = before
            z, *mask = inputs
            context = context * mask[0] if mask else context
            z = tf.cast(z, variable) + bias
            i, f, g, o, c, _, h = cell(z + recurrent + times(context, of_context), c)
            recurrent, query = tf.split(times(h, of_output), [4 * units, units], -1)
            attended = attend_once(query, keys, values, direction, real, compute)
            gates = [tf.cast(x, compute) for x in (i, f, g, o)]
            return (recurrent, c, attended[-1]), (*gates, c, h, *attended)

        start = tuple(tf.cast(_zeros(z, width), variable) for width in (4 * units, units, units))
        widths, dtypes = [units] * 7 + [length, units], [compute] * 4 + [variable] * 5
        _, states = scan(step, start, (z,) if masks is None else (z, masks), widths, dtypes=dtypes)
        outputs, contexts = states[5], states[8]

        def gradient(d_outputs: tf.Tensor, d_contexts: tf.Tensor) -> Tensors:
            slopes = backward(
                states, of_context, of_h, of_query, keys, values, direction, d_outputs, d_contexts
            )
            dz, d_queries, d_scores, d_attended = slopes
            *_, queries, weights, _ = states
            seen = delayed(_zeros(contexts, units), contexts)
            seen = seen if masks is None else seen * masks
            h_before = delayed(_zeros(outputs, units), outputs)
            d_matrices = [
                times(rows(a), rows(b), transpose_a=True)
                for a, b in ((seen, dz), (h_before, dz), (outputs, d_queries))
            ]
            of_memory = attention_gradients(queries, weights, d_scores, d_attended, keys, direction, compute)
            return dz, tf.reduce_sum(tf.cast(dz, variable), [0, 1]), *d_matrices, *of_memory

        return (outputs, contexts), gradient

    def backward(
        kept: Tensors,
        of_context: tf.Tensor,
        of_h: tf.Tensor,
        of_query: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        direction: tf.Tensor,
        d_outputs: tf.Tensor,
        d_contexts: tf.Tensor,
    ) -> Tensors:
        """Returns each step's gradients of gates [n, b, 4u], query [n, b, u], scores [n, b, m], context [n, b, u]."""
        units = of_query.shape[0]
        joined = tf.transpose(tf.concat([of_context, of_h], 0))
        to_output = tf.transpose(of_query)

        def step(after: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
            d_context, d_h, d_c = after  # The context's gradient excludes its dropout.
            *gates, c, c_before, query, weights, context, d_output, d_seen = inputs[:11]
            i, f, g, o = (tf.cast(x, variable) for x in gates)
            mask = inputs[11:]
            d_context += d_seen
            slopes = attention_slopes(d_context, query, weights, context, keys, values, direction, compute)
            d_h += d_output + times(slopes[0], to_output)
            dz, d_c = cell_gradient(i, f, g, o, c_before, tf.tanh(c), d_h, d_c)
            d_before, d_h = tf.split(times(dz, joined), 2, -1)
            d_before = d_before * mask[0] if mask else d_before
            return (d_before, d_h, d_c), (tf.cast(dz, compute), *slopes)

        i, f, g, o, c, _, query, weights, context = kept
        c_before = delayed(_zeros(c, units), c)
        inputs = [i, f, g, o, c, c_before, query, weights, context, d_outputs, d_contexts]
        widths, dtypes = [4 * units, units, weights.shape[-1], units], [compute, compute, variable, compute]
        start, inputs = (_zeros(c, units),) * 3, inputs if masks is None else [*inputs, masks]
        return scan(step, start, inputs, widths, reverse=True, dtypes=dtypes)[1]

    return core(z, *weights, memory.keys, memory.values, direction)


def attend_once(
    query: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    direction: tf.Tensor,
    real: tf.Tensor,
    compute: tf.DType,
) -> Tensors:
    """Returns (query, weights [b, m], context [b, u]) of one step's query [b, u].

    `real` is bool [b, m]; the values have the type of products, `compute`.
    """
    scores = scores_of(query[:, None], keys, direction)[:, 0]
    weights = tf.nn.softmax(tf.where(real, scores, tf.constant(MASKED, scores.dtype)))
    context = tf.linalg.matvec(values, tf.cast(weights, compute), transpose_a=True)
    return query, weights, tf.cast(context, query.dtype)


def attention_slopes(
    d_context: tf.Tensor,
    query: tf.Tensor,
    weights: tf.Tensor,
    context: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    direction: tf.Tensor,
    compute: tf.DType,
) -> Tensors:
    """Returns one step's gradients of query [b, u] and scores [b, m], and the context's in the type of products."""
    shares = tf.cast(values, query.dtype) - context[:, None]
    d_scores = weights * tf.reduce_sum(shares * d_context[:, None], -1)
    d_query = query_gradients(d_scores[:, None], query[:, None], keys, direction)[:, 0]
    return tf.cast(d_query, compute), d_scores, tf.cast(d_context, compute)


def attention_gradients(
    queries: tf.Tensor,
    weights: tf.Tensor,
    d_scores: tf.Tensor,
    d_contexts: tf.Tensor,
    keys: tf.Tensor,
    direction: tf.Tensor,
    compute: tf.DType,
) -> Tensors:
    """Returns the gradients of keys, values and direction from those of all steps, each [n, b, ...]."""
    d_values = tf.einsum("nbm,nbu->bmu", tf.cast(weights, compute), tf.cast(d_contexts, compute))
    d_keys, d_direction = key_gradients(_by_sentence(d_scores), _by_sentence(queries), keys, direction)
    return d_keys, tf.cast(d_values, queries.dtype), d_direction


def _zeros(like: tf.Tensor, width: int) -> tf.Tensor:
    """Returns zeros [b, width] with the type of `like`, [n, b, ...]."""
    return tf.ensure_shape(tf.zeros([tf.shape(like)[1], width], like.dtype), [like.shape[1], width])


def _by_sentence(x: tf.Tensor) -> tf.Tensor:
    return tf.transpose(x, [1, 0, 2])
