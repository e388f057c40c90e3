"""Runs LSTM layers that read each other in one loop, for a GPU: in step s, layer l computes its time step s - l.

A step multiplies the inputs of all layers in one batched product, so a GPU launches a few kernels for all of them and
fills its cores better than one layer's product does. The first layer may query an attention; then every layer also
reads the context. Before a layer's first time step and after its last, it computes on zeros, and its state stays zero.

Every step reads the whole matrices. A TPU, which keeps only the recurrent ones at hand, uses one loop for each layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from common.layers.dense import rows
from common.layers.lstm import LSTM, cell, cell_gradient
from common.layers.precision import Precision
from common.layers.scan import STEPS_OF_A_TURN, Tensors, delayed, scan
from gnmt.attention import Memory
from gnmt.recurrent_compiled import attend_once, attention_gradients, attention_slopes


class Query(NamedTuple):
    """What the first layer's output attends to: the matrix to queries, [u, u], the memory, and the direction, [u].

    The memory's keys include the queries' bias.
    """

    kernel: tf.Tensor
    memory: Memory
    direction: tf.Tensor


def wavefront(
    layers: Sequence[LSTM],
    x: tf.Tensor,
    residual: Sequence[bool],
    masks: Sequence[tf.Tensor] | None = None,
    scale: float = 1.0,
    z: tf.Tensor | None = None,
    query: Query | None = None,
) -> tf.Tensor:
    """Returns the last layer's outputs, [n, b, u]; all sizes are static, and states and context start at zero.

    Args:
      layers: at least two, each of u units. The last rows of a kernel multiply what the loop reads: the layer's input,
        [b, u], and with `query` the context after it, [b, u].
      x: the first layer's input, [n, b, u].
      residual: for each layer, whether its input is added to its output.
      masks: for each layer, which elements of what it reads are kept, bool [n, b, u], or [n, b, 2u] with `query`.
      scale: factor of the elements that are kept.
      z: a part of the first layer's gates that does not depend on the loop, [n, b, 4u].
      query: attention of the first layer.
    """
    kernels = [layer.kernel[-x.shape[-1] * (1 if query is None else 2) :] for layer in layers]
    matrix = tf.stack([tf.concat([k, layer.recurrent_kernel], 0) for k, layer in zip(kernels, layers)])
    bias = tf.stack([tf.convert_to_tensor(layer.bias) for layer in layers])[:, None]
    loop = _Loop(layers[0].precision, x.shape, residual, masks, scale, query)
    attended = (
        [] if query is None else [query.kernel, query.memory.keys, query.memory.values, query.direction]
    )
    return loop.run(x, [] if z is None else [z], matrix, bias, attended)


class _Loop:
    """Both passes of the loop; L layers, S steps."""

    def __init__(
        self,
        precision: Precision,
        shape: tf.TensorShape,
        residual: Sequence[bool],
        masks: Sequence[tf.Tensor] | None,
        scale: float,
        query: Query | None,
    ):
        self.compute, self.variable = precision.compute, precision.variable
        (self.length, self.batch, self.units), self.layers = shape, len(residual)
        steps = self.length + self.layers - 1
        turns = -(-steps // STEPS_OF_A_TURN)
        self.steps = turns * -(-steps // turns)
        self.residual, self.scale = residual, scale
        self.real = None if query is None else query.memory.real[:, 0]
        self.reads = self.units * (1 if query is None else 2)
        time = np.arange(self.steps)[:, None] - np.arange(self.layers)
        active = tf.constant(((time >= 0) & (time < self.length))[..., None, None], self.variable)
        # For each step: 1 for the layers that compute a time step of theirs, [S, L, 1, 1]; [S, L, b, reads].
        self.given = [active]
        if masks is not None:
            late = [self._padded(mask, before) for before, mask in enumerate(masks)]
            self.given.append(tf.stack(late, 1))

    def _padded(self, x: tf.Tensor, before: int = 0) -> tf.Tensor:
        """Returns [n, ...] as [S, ...], with `before` zeros before it."""
        after = self.steps - self.length - before
        return tf.pad(x, [[before, after], *[[0, 0]] * (len(x.shape) - 1)])

    def _zeros(self, *sides: int) -> tf.Tensor:
        return tf.zeros([*sides, self.batch, self.units], self.variable)

    def _times(self, a: tf.Tensor, b: tf.Tensor, **transpose: bool) -> tf.Tensor:
        product = tf.matmul(tf.cast(a, self.compute), tf.cast(b, self.compute), **transpose)
        return tf.cast(product, self.variable)

    def _masked(self, x: tf.Tensor, given: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.where(given[1], x * self.scale, tf.zeros_like(x)) if len(given) > 1 else x

    def _of_layer(self, x: tf.Tensor, layer: int) -> tf.Tensor:
        """Returns [b, n] as [L, b, n], zero for the other layers."""
        return tf.pad(x[None], [[layer, self.layers - 1 - layer], [0, 0], [0, 0]])

    def run(
        self, x: tf.Tensor, z: list[tf.Tensor], matrix: tf.Tensor, bias: tf.Tensor, attended: list[tf.Tensor]
    ) -> tf.Tensor:
        """Returns the outputs, [n, b, u], for all that has a gradient."""

        @tf.custom_gradient
        def core(x: tf.Tensor, matrix: tf.Tensor, bias: tf.Tensor, *rest: tf.Tensor) -> tuple[tf.Tensor, Any]:
            z_, attended = rest[: len(z)], rest[len(z) :]
            matrix, attended = tf.cast(matrix, self.compute), list(attended)
            if attended:
                attended[2] = tf.cast(attended[2], self.compute)
            saved = self._forward(x, z_, matrix, bias, attended)

            def gradient(above: tf.Tensor) -> list[tf.Tensor]:
                return self._gradients(above, saved, z_, matrix, attended)

            return saved[6][self.layers - 1 :][: self.length], gradient

        return core(x, matrix, bias, *z, *attended)

    def _forward(
        self, x: tf.Tensor, z: Sequence[tf.Tensor], matrix: tf.Tensor, bias: tf.Tensor, attended: Sequence
    ) -> Tensors:
        """Returns for all steps: gates, 4 x [S, L, b, u], c, what the product reads, outputs, [S, b, u], and with an
        attention queries, weights and contexts.
        """
        layers, units = self.layers, self.units
        given = [*self.given, self._padded(x), *(self._padded(part) for part in z)]

        def step(before: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
            h, c, x, *contexts = before
            given, (first, *z) = inputs[: len(self.given)], inputs[len(self.given) :]
            below = [h[i] + x[i] if self.residual[i] else h[i] for i in range(layers - 1)]
            read = x = tf.stack([first, *below])
            if contexts:
                read = tf.concat([x, tf.stack([contexts[0], *contexts])], -1)
            read = tf.concat([tf.cast(part, self.compute) for part in (self._masked(read, given), h)], -1)
            gates = self._times(read, matrix) + bias
            for part in z:
                gates += self._of_layer(tf.cast(part, self.variable), 0)
            i, f, g, o, c, _, h = cell(gates, c)
            h, c = h * given[0], c * given[0]
            output = h[-1] + x[-1] if self.residual[-1] else h[-1]
            attention: Tensors = ()
            if contexts:
                attention = attend_once(
                    self._times(h[0], attended[0]), *attended[1:], self.real, self.compute
                )
                contexts = [attention[2], *contexts[:-1]]
            gates = [tf.cast(gate, self.compute) for gate in (i, f, g, o)]
            return (h, c, x, *contexts), (*gates, c, read, output, *attention)

        wide, narrow = [layers, self.batch], [self.batch]
        shapes = [[*wide, units]] * 5 + [[*wide, self.reads + units], [*narrow, units]]
        dtypes = [self.compute] * 4 + [self.variable, self.compute, self.variable]
        start = [self._zeros(layers)] * 3
        if attended:
            shapes += [[*narrow, n] for n in (units, attended[1].shape[1], units)]
            dtypes += [self.variable] * 3
            start += [self._zeros()] * (layers - 1)
        return scan(step, start, given, shapes, dtypes=dtypes)[1]

    def _gradients(
        self, above: tf.Tensor, saved: Tensors, z: Sequence, matrix: tf.Tensor, attended: Sequence
    ) -> list[tf.Tensor]:
        """Returns the gradients of `core`'s arguments."""
        read = saved[5]
        slopes = self._slopes(above, saved, matrix, attended)
        dz, d_x = slopes[:2]
        d_matrix = tf.stack(
            [self._times(rows(read[:, i]), rows(dz[:, i]), transpose_a=True) for i in range(self.layers)]
        )
        d_bias = tf.reduce_sum(tf.cast(dz, self.variable), [0, 2])[:, None]
        d_z = [tf.cast(dz[: self.length, 0], part.dtype) for part in z]
        d_attended: list[tf.Tensor] = []
        if attended:
            queries, weights, _ = (part[: self.length] for part in saved[7:])
            d_queries, d_scores, d_contexts = (part[: self.length] for part in slopes[2:])
            outputs = read[1 : self.length + 1, 0, :, self.reads :]
            d_kernel = self._times(rows(outputs), rows(d_queries), transpose_a=True)
            of_memory = attention_gradients(
                queries, weights, d_scores, d_contexts, attended[1], attended[3], self.compute
            )
            d_attended = [d_kernel, *of_memory]
        return [d_x[: self.length], d_matrix, d_bias, *d_z, *d_attended]

    def _slopes(self, above: tf.Tensor, saved: Tensors, matrix: tf.Tensor, attended: Sequence) -> Tensors:
        """Returns for all steps the gradients of gates, [S, L, b, 4u], and x, [S, b, u]; with an attention also of
        queries, scores and contexts.
        """
        layers, units = self.layers, self.units
        transposed = tf.linalg.matrix_transpose(matrix)
        to_output = tf.transpose(attended[0]) if attended else None
        *gates, c = saved[:5]
        inputs = [
            *self.given,
            self._padded(above, layers - 1),
            *gates,
            c,
            delayed(self._zeros(layers), c),
            *saved[7:],
        ]

        def step(after: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
            # Of h and c after the step, of the next step's x, and of the contexts of this step and those before.
            d_h, d_c, d_x, *d_contexts = after
            given, (d_output, *inputs) = inputs[: len(self.given)], inputs[len(self.given) :]
            i, f, g, o = (tf.cast(gate, self.variable) for gate in inputs[:4])
            c, c_before, *attention = inputs[4:]
            d_h += self._of_layer(d_output, layers - 1)
            slopes: Tensors = ()
            if attended:
                slopes = attention_slopes(d_contexts[0], *attention, *attended[1:], self.compute)
                d_h += self._of_layer(self._times(slopes[0], to_output), 0)
            dz, d_c = cell_gradient(i, f, g, o, c_before, tf.tanh(c), d_h * given[0], d_c * given[0])
            d_read, d_h = tf.split(self._times(dz, transposed), [self.reads, units], -1)
            d_read = self._masked(d_read, given)
            passed = [d_x[i + 1] for i in range(layers - 1)] + [d_output]
            d_x = d_read[..., :units] + tf.stack(
                [p if r else tf.zeros_like(p) for p, r in zip(passed, self.residual)]
            )
            d_h += tf.concat([d_x[1:], tf.zeros_like(d_x[:1])], 0)
            if attended:
                below, *rest = tf.unstack(d_read[..., units:])
                rest[0] += below
                d_contexts = [a + b for a, b in zip(rest, [*d_contexts[1:], tf.zeros_like(below)])]
            return (d_h, d_c, d_x, *d_contexts), (tf.cast(dz, self.compute), d_x[0], *slopes)

        shapes = [[layers, self.batch, 4 * units], [self.batch, units]]
        dtypes = [self.compute, self.variable]
        start = [self._zeros(layers)] * 3
        if attended:
            shapes += [[self.batch, n] for n in (units, attended[1].shape[1], units)]
            dtypes += [self.compute, self.variable, self.compute]
            start += [self._zeros()] * (layers - 1)
        return scan(step, start, inputs, shapes, reverse=True, dtypes=dtypes)[1]
