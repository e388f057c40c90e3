"""Runs LSTM layers that read each other, or an attention, in one loop: in step s, layer l computes its step s - l.

A step multiplies what all layers read in one batched product, so a GPU launches a few kernels for all of them. The
first layer may query an attention at every step; then each layer also reads the context. Before a layer's first time
step and after its last, its state stays zero.

The hand-written gradient keeps each step's gates, states, query and attention weights; TensorFlow would keep the memory
and the matrices of every step. Gradients of matrices, keys, values and direction are sums over all steps, computed
after the loop. The softmax's gradient, w (d - sum w d), becomes w times a sum over the width: with d = context' . value
and sum w d = context' . context, it is w (context' . (value - context)).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from common.layers.dense import rows
from common.layers.lstm import LSTM, cell, cell_gradient
from common.layers.precision import Precision
from common.layers.scan import STEPS_OF_A_TURN, Tensors, delayed, scan
from gnmt.attention import MASKED, Attention, Memory, key_gradients, query_gradients, scores_of


def wavefront(
    layers: Sequence[LSTM],
    x: tf.Tensor | None,
    residual: Sequence[bool],
    masks: Sequence[tf.Tensor] | None = None,
    scale: float = 1.0,
    z: tf.Tensor | None = None,
    attention: Attention | None = None,
    memory: Memory | None = None,
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Returns the last layer's outputs, [n, b, u], and without `x` the contexts; states and contexts start at zero.

    All sizes are static.

    Args:
      layers: of u units each. The last rows of a kernel multiply what the loop reads: the layer's input, [b, u], and
        with `attention` the context after it, [b, u].
      x: the first layer's input, [n, b, u]; None for one layer with an attention, if `z` has the whole input's part.
      residual: for each layer, whether its input is added to its output.
      masks: for each layer, which elements of what it reads are kept, bool [n, b, u or 2u].
      scale: factor of the elements that are kept.
      z: a part of the first layer's gates that does not depend on the loop, [n, b, 4u].
      attention, memory: what the first layer queries.
    """
    attended, real = [], None
    if attention is not None and memory is not None:
        # With the queries' bias in the keys, a step launches a kernel less.
        keys, real = memory.keys + attention.bias, memory.real[:, 0]
        kernel = tf.convert_to_tensor(attention.query_kernel)
        attended = [kernel, keys, memory.values, attention.scaled_direction()]
    loop = _Loop(layers, z if x is None else x, x is not None, residual, masks, scale, real)
    matrix = tf.stack([tf.concat([one.kernel[-loop.reads :], one.recurrent_kernel], 0) for one in layers])
    bias = tf.stack([tf.convert_to_tensor(one.bias) for one in layers])[:, None]
    outputs, *contexts = loop.run([part for part in (x, z) if part is not None], matrix, bias, attended)
    return outputs, contexts[0] if contexts else None


class _Loop:
    """Both passes of the loop: S steps of L layers, each for n time steps."""

    def __init__(
        self,
        layers: Sequence[LSTM],
        like: tf.Tensor,
        stacked: bool,
        residual: Sequence[bool],
        masks: Sequence[tf.Tensor] | None,
        scale: float,
        real: tf.Tensor | None,
    ):
        precision: Precision = layers[0].precision
        self.compute, self.variable = precision.compute, precision.variable
        (self.length, self.batch, _), self.units, self.layers = like.shape, layers[0].units, len(layers)
        steps = self.length + self.layers - 1
        turns = -(-steps // STEPS_OF_A_TURN)
        self.steps = turns * -(-steps // turns)
        self.residual, self.scale, self.stacked, self.real = residual, scale, stacked, real
        self.reads = self.units * (stacked + (real is not None))
        self.contexts = 0 if real is None else max(1, self.layers - 1)  # Contexts that a step reads.
        time = np.arange(self.steps)[:, None] - np.arange(self.layers)
        active = (time >= 0) & (time < self.length)
        self.always = bool(active.all())
        # For each step: 1 for the layers that compute a time step of theirs, [S, L, 1, 1]; [S, L, b, reads].
        self.step_masks = [tf.constant(active[..., None, None], self.variable)]
        if masks is not None:
            self.step_masks.append(tf.stack([self._padded(mask, late) for late, mask in enumerate(masks)], 1))

    def _padded(self, x: tf.Tensor, before: int = 0) -> tf.Tensor:
        """Returns [n, ...] as [S, ...], with `before` zeros before it."""
        after = self.steps - self.length - before
        return tf.pad(x, [[before, after], *[[0, 0]] * (len(x.shape) - 1)])

    def _start(self) -> list[tf.Tensor]:
        """Three zeros [L, b, u], and one [b, u] for each context."""
        sides = [[self.layers, self.batch, self.units]] * 3 + [[self.batch, self.units]] * self.contexts
        return [tf.zeros(shape, self.variable) for shape in sides]

    def _times(self, a: tf.Tensor, b: tf.Tensor, **transpose: bool) -> tf.Tensor:
        product = tf.matmul(tf.cast(a, self.compute), tf.cast(b, self.compute), **transpose)
        return tf.cast(product, self.variable)

    def _masked(self, x: tf.Tensor, masks: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.where(masks[1], x * self.scale, tf.zeros_like(x)) if len(masks) > 1 else x

    def _of_layer(self, x: tf.Tensor, layer: int) -> tf.Tensor:
        """Returns [b, n] as [L, b, n], zero for the other layers."""
        return tf.pad(x[None], [[layer, self.layers - 1 - layer], [0, 0], [0, 0]])

    def run(self, sequences: list, matrix: tf.Tensor, bias: tf.Tensor, attended: list) -> list[tf.Tensor]:
        """Returns the outputs and, if `sequences` is only z, the contexts, [n, b, u] each; `sequences` has x and z."""

        @tf.custom_gradient
        def core(matrix: tf.Tensor, bias: tf.Tensor, *rest: tf.Tensor) -> tuple[list[tf.Tensor], Any]:
            parts, attended = rest[: len(sequences)], list(rest[len(sequences) :])
            matrix = tf.cast(matrix, self.compute)
            if attended:
                attended[2] = tf.cast(attended[2], self.compute)
            saved = self._forward(parts, matrix, bias, attended)
            outputs = saved[6][self.layers - 1 :][: self.length]

            def gradient(*above: tf.Tensor) -> list[tf.Tensor]:
                slopes = self._slopes(above, saved, matrix, attended)
                return self._gradients(slopes, saved, parts, attended)

            contexts = [] if self.stacked else [saved[9][: self.length]]
            return [outputs, *contexts], gradient

        return core(matrix, bias, *sequences, *attended)

    def _forward(
        self, sequences: Sequence, matrix: tf.Tensor, bias: tf.Tensor, attended: Sequence
    ) -> Tensors:
        """Returns for all steps: gates, 4 x [S, L, b, u], c, what the product reads, outputs, [S, b, u], and with an
        attention queries, weights and contexts.
        """

        def step(before: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
            h, c, x, *contexts = before
            masks, z = inputs[: len(self.step_masks)], list(inputs[len(self.step_masks) :])
            read = []
            if self.stacked:
                below = [h[i] + x[i] if self.residual[i] else h[i] for i in range(self.layers - 1)]
                x = tf.stack([z.pop(0), *below])
                read.append(x)
            if contexts:
                read.append(tf.stack([contexts[0], *contexts][: self.layers]))
            read = self._masked(tf.concat(read, -1), masks)
            read = tf.concat([tf.cast(part, self.compute) for part in (read, h)], -1)
            gates = self._times(read, matrix) + bias
            for part in z:
                gates += self._of_layer(tf.cast(part, self.variable), 0)
            i, f, g, o, c, _, h = cell(gates, c)
            h, c = (h, c) if self.always else (h * masks[0], c * masks[0])
            attention: Tensors = ()
            if contexts:
                attention = self._attend(self._times(h[0], attended[0]), *attended[1:])
                contexts = [attention[2], *contexts[:-1]]
            gates = [tf.cast(gate, self.compute) for gate in (i, f, g, o)]
            output = h[-1] + x[-1] if self.residual[-1] else h[-1]
            return (h, c, x, *contexts), (*gates, c, read, output, *attention)

        return scan(step, self._start(), [*self.step_masks, *map(self._padded, sequences)])[1]

    def _attend(self, query: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, direction: tf.Tensor) -> Tensors:
        """Returns (query, weights [b, m], context) of a step's query [b, u]."""
        scores = scores_of(query[:, None], keys, direction)[:, 0]
        weights = tf.nn.softmax(tf.where(self.real, scores, tf.constant(MASKED, scores.dtype)))
        context = tf.linalg.matvec(values, tf.cast(weights, self.compute), transpose_a=True)
        return query, weights, tf.cast(context, self.variable)

    def _gradients(
        self, slopes: Tensors, saved: Tensors, sequences: Sequence, attended: Sequence
    ) -> list[tf.Tensor]:
        """Returns the gradients of `core`'s arguments from those of `_slopes`."""
        read, (dz, *of_x), n = saved[5], slopes[: 1 + self.stacked], self.length
        products = [
            self._times(rows(read[:, i]), rows(dz[:, i]), transpose_a=True) for i in range(self.layers)
        ]
        d_bias = tf.reduce_sum(tf.cast(dz, self.variable), [0, 2])[:, None]
        of_z = [dz[:, 0]] * (len(sequences) - len(of_x))
        d_sequences = [tf.cast(d[:n], x.dtype) for d, x in zip([*of_x, *of_z], sequences)]
        if not attended:
            return [tf.stack(products), d_bias, *d_sequences]
        queries, weights, _ = (part[:n] for part in saved[7:])
        d_queries, d_scores, d_contexts = (part[:n] for part in slopes[1 + self.stacked :])
        outputs = saved[6][:n] if self.layers == 1 else read[1 : n + 1, 0, :, self.reads :]
        d_kernel = self._times(rows(outputs), rows(d_queries), transpose_a=True)
        d_values = tf.einsum("nbm,nbu->bmu", tf.cast(weights, self.compute), d_contexts)
        d_scores, queries = (tf.transpose(part, [1, 0, 2]) for part in (d_scores, queries))
        d_keys, d_direction = key_gradients(d_scores, queries, attended[1], attended[3])
        of_memory = [d_kernel, d_keys, tf.cast(d_values, self.variable), d_direction]
        return [tf.stack(products), d_bias, *d_sequences, *of_memory]

    def _slopes(
        self, above: Sequence[tf.Tensor], saved: Tensors, matrix: tf.Tensor, attended: Sequence
    ) -> Tensors:
        """Returns for all steps the gradients of gates, [S, L, b, 4u], x, [S, b, u], and with an attention of queries,
        scores and contexts.
        """
        layers, units, c = self.layers, self.units, saved[4]
        transposed = tf.linalg.matrix_transpose(matrix)
        to_output = tf.transpose(attended[0]) if attended else None
        above = [self._padded(d, late) for d, late in zip(above, (layers - 1, 0))]
        before = delayed(self._start()[0], c)

        def step(after: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
            # Of h and c after the step, of the next step's x, and of the contexts of this step and those before.
            d_h, d_c, d_x, *d_contexts = after
            masks, inputs = inputs[: len(self.step_masks)], inputs[len(self.step_masks) :]
            (d_output, *d_contexts_read), (*gates, c, c_before) = (
                inputs[: len(above)],
                inputs[len(above) :][:6],
            )
            d_h += self._of_layer(d_output, layers - 1)
            slopes: Tensors = ()
            if attended:
                d_contexts[0] += sum(d_contexts_read)
                slopes = self._attention_slopes(d_contexts[0], inputs[-3:], *attended[1:])
                d_h += self._of_layer(self._times(slopes[0], to_output), 0)
            i, f, g, o = (tf.cast(gate, self.variable) for gate in gates)
            d_h, d_c = (d_h, d_c) if self.always else (d_h * masks[0], d_c * masks[0])
            dz, d_c = cell_gradient(i, f, g, o, c_before, tf.tanh(c), d_h, d_c)
            d_read, d_h = tf.split(self._times(dz, transposed), [self.reads, units], -1)
            d_read, of_x = self._masked(d_read, masks), []
            if self.stacked:
                residual_slopes = zip([*tf.unstack(d_x)[1:], d_output], self.residual)
                d_x = d_read[..., :units] + tf.stack(
                    [d if r else tf.zeros_like(d) for d, r in residual_slopes]
                )
                d_h, of_x = d_h + tf.concat([d_x[1:], tf.zeros_like(d_x[:1])], 0), [d_x[0]]
            if attended:
                first, *rest = tf.unstack(d_read[..., -units:])
                d_contexts = [*d_contexts[1:], *[tf.zeros_like(first)]]
                d_contexts = [d + e for d, e in zip(d_contexts, rest or [0.0])]
                d_contexts[0] += first
            return (d_h, d_c, d_x, *d_contexts), (tf.cast(dz, self.compute), *of_x, *slopes)

        inputs = [*self.step_masks, *above, *saved[:5], before, *saved[7:]]
        return scan(step, self._start(), inputs, reverse=True)[1]

    def _attention_slopes(
        self, d_context: tf.Tensor, saved: Sequence, keys: tf.Tensor, values: tf.Tensor, direction: tf.Tensor
    ) -> Tensors:
        """Returns a step's gradients of query [b, u], scores [b, m] and context; `saved` is the result of `_attend`."""
        query, weights, context = saved
        shares = tf.cast(values, self.variable) - context[:, None]
        d_scores = weights * tf.reduce_sum(shares * d_context[:, None], -1)
        d_query = query_gradients(d_scores[:, None], query[:, None], keys, direction)[:, 0]
        return tf.cast(d_query, self.compute), d_scores, tf.cast(d_context, self.compute)
