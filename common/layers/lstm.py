"""LSTM with the input projection hoisted out of the loop and the weight gradients computed after it.

In the plain form every time step multiplies [x_t, h] by the whole matrix, and every step of the backward loop adds an
outer product to that matrix's gradient. Neither is recurrent: x_t W for all t is one matrix product before the loop,
and dW = sum_t x_t^T dz_t, dR = sum_t h_{t-1}^T dz_t are one product each after it ("Scale MLPerf-0.6 Models on Google
TPU-v3 Pods", GNMT). Only h R and dz R^T stay in the loops. The results equal the plain form's, which tests have.

The gates' order is input, forget, candidate, output, as in tf_keras.layers.LSTM, so its weights fit unchanged. Inputs
and outputs are time-major, [T, b, n]; a batch-major layer would transpose them at each end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf
import tf_keras

from common.layers.dense import product, rows
from common.layers.precision import Precision
from common.layers.scan import Steps, Tensors, delayed, scan, stacked
from common.layers.xla import under_xla

State = tuple[tf.Tensor, tf.Tensor]
# On a CPU the batch is cut in two if a step's product has fewer multiply-adds than this. The halves run
# independently, so TensorFlow's threads compute two steps at once instead of half a product each. Measured on two
# cores, forward and backward: 0.63 of the time at [128, 128] x [128, 512], 0.93 to 1.03 at this size.
SMALL_PRODUCT = 1 << 26


class LSTM(tf_keras.layers.Layer):
    """One direction of one LSTM layer.

    Attributes:
      kinds: kinds of its variables, for `common.layers.variable_kinds`.
      kernel, recurrent_kernel, bias: [n, 4 units], [units, 4 units], [4 units].
    """

    kinds = {"kernel": "kernel", "recurrent_kernel": "kernel", "bias": "bias"}

    def __init__(
        self,
        units: int,
        precision: Precision,
        kernel_initializer: str | tf_keras.initializers.Initializer = "glorot_uniform",
        recurrent_initializer: str | tf_keras.initializers.Initializer = "orthogonal",
        forget_bias: float = 1.0,
        bias_initializer: tf_keras.initializers.Initializer | None = None,
        name: str | None = None,
    ):
        """Keeps the settings.

        Args:
          units: width of h and c.
          precision: matrix products run in `precision.compute`; gates, state and variables in `variable`.
          kernel_initializer, recurrent_initializer: as in tf_keras.
          forget_bias: initial value of the forget gate's bias; the others start at 0.
          bias_initializer: initializer of all gates' biases, instead of `forget_bias`.
          name: name of the layer.
        """
        super().__init__(name=name, dtype=precision.full, autocast=False)
        self.units, self.precision = units, precision
        self._initializers = kernel_initializer, recurrent_initializer
        self._forget_bias, self._bias_initializer = forget_bias, bias_initializer

    def build(self, input_shape: tf.TensorShape) -> None:
        """Creates the variables for inputs [..., n]."""
        inputs, gates = tf.TensorShape(input_shape)[-1], 4 * self.units
        kernel, recurrent = self._initializers
        self.kernel = self.add_weight(name="kernel", shape=[inputs, gates], initializer=kernel)
        self.recurrent_kernel = self.add_weight(
            name="recurrent_kernel", shape=[self.units, gates], initializer=recurrent
        )
        self.bias = self.add_weight(
            name="bias", shape=[gates], initializer=self._bias_initializer or self._initial_bias
        )
        super().build(input_shape)

    def _initial_bias(self, shape: Sequence[int], dtype: tf.DType, **_: object) -> tf.Tensor:
        forget = tf.fill([self.units], tf.constant(self._forget_bias, dtype))
        return tf.concat([tf.zeros([self.units], dtype), forget, tf.zeros([2 * self.units], dtype)], 0)

    def call(
        self, x: tf.Tensor, state: State | None = None, lengths: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, State]:
        """Runs over a sequence.

        Args:
          x: [T, b, n], any float dtype.
          state: initial (h, c), each [b, units]; zeros by default.
          lengths: int [b]; from step `lengths[i]` on, example i keeps its state and outputs zeros.

        Returns:
          (outputs [T, b, units], (h, c) after the last step of each example), in `precision.variable`.
        """
        dtype = self.precision.variable
        if state is None:
            zeros = tf.zeros([tf.shape(x)[1], self.units], dtype)
            state = (zeros, zeros)
        state = (tf.cast(state[0], dtype), tf.cast(state[1], dtype))
        mask = None
        if lengths is not None:
            mask = tf.transpose(tf.sequence_mask(lengths, tf.shape(x)[0], dtype))[..., None]  # [T, b, 1]
        weights = [tf.convert_to_tensor(w) for w in (self.kernel, self.recurrent_kernel, self.bias)]
        return lstm_sequence(x, *weights, state, mask, self.precision)


def lstm_sequence(
    x: tf.Tensor,
    kernel: tf.Tensor,
    recurrent: tf.Tensor,
    bias: tf.Tensor,
    state: State,
    mask: tf.Tensor | None,
    precision: Precision,
) -> tuple[tf.Tensor, State]:
    """Runs an LSTM with one matrix product for all inputs and one for each weight gradient.

    Args:
      x: [T, b, n].
      kernel, recurrent, bias: [n, 4u], [u, 4u], [4u].
      state: (h, c), each [b, u].
      mask: [T, b, 1] of 0 and 1, or None: 0 keeps the state and outputs 0.
      precision: dtypes of matrix products and of everything else.

    Returns:
      (outputs [T, b, u], (h, c) at the end).
    """

    def chain(x: tf.Tensor, h: tf.Tensor, c: tf.Tensor, mask: tf.Tensor | None) -> Tensors:
        z = inputs_part(x, kernel, precision)
        return _make_core(mask, precision)(*_biased(z, bias, precision), recurrent, h, c)

    chains = _chains(x.shape[1], recurrent.shape[0])
    if chains == 1:
        outputs, h, c = chain(x, *state, mask)
        return outputs, (h, c)
    masks = [None] * chains if mask is None else tf.split(mask, chains, axis=1)
    cut = zip(tf.split(x, chains, axis=1), *(tf.split(s, chains) for s in state), masks)
    outputs, h, c = zip(*(chain(*part) for part in cut))
    return tf.concat(outputs, 1), (tf.concat(h, 0), tf.concat(c, 0))


def inputs_part(x: tf.Tensor, kernel: tf.Tensor, precision: Precision) -> tf.Tensor:
    """Returns the inputs' products for all steps: [T, b, n] -> [T, b, 4u], in the precision of products."""
    z = product(tf.cast(rows(x), precision.compute), tf.cast(kernel, precision.compute))
    z = tf.reshape(z, tf.concat([tf.shape(x)[:2], [z.shape[-1]]], 0))
    return tf.ensure_shape(z, [x.shape[0], x.shape[1], z.shape[-1]])


def _biased(z: tf.Tensor, bias: tf.Tensor, precision: Precision) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns (z, bias) for a loop under XLA, which adds them; elsewhere z with its bias, and zero."""
    if under_xla():
        return z, bias
    return tf.nn.bias_add(tf.cast(z, precision.variable), bias), tf.zeros([], precision.variable)


def side_by_side(layers: Sequence[LSTM], inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the outputs of independent layers, each on its own [T, b, n], starting from zero states.

    Under XLA, one loop runs all of them: a step multiplies all their states in one batched product, so a GPU launches
    as many kernels as for one layer. Elsewhere each runs its own loop.
    """
    if not under_xla():
        return [layer(x)[0] for layer, x in zip(layers, inputs)]
    for layer, x in zip(layers, inputs):
        if not layer.built:
            layer.build(x.shape)
    precision = layers[0].precision
    z = tf.stack([inputs_part(x, one.kernel, precision) for one, x in zip(layers, inputs)], 1)
    bias, recurrent = (
        tf.stack([tf.convert_to_tensor(w) for w in of_layers])
        for of_layers in zip(*((one.bias, one.recurrent_kernel) for one in layers))
    )
    zeros = tf.zeros_like(z[0, :, :, : layers[0].units], precision.variable)
    outputs, _, _ = _make_core(None, precision)(z, bias[:, None], recurrent, zeros, zeros)
    return tf.unstack(outputs, len(layers), axis=1)


def _chains(batch: int | None, units: int) -> int:
    """Number of parts the batch is cut into, see SMALL_PRODUCT; 1 under XLA and on a GPU, which need no cut."""
    if under_xla() or tf.config.list_physical_devices("GPU"):
        return 1
    return 2 if batch and batch % 2 == 0 and batch * 4 * units**2 < SMALL_PRODUCT else 1


def _make_core(mask: tf.Tensor | None, precision: Precision) -> Callable[..., Tensors]:
    """Returns the recurrence alone, (z, bias, recurrent, h, c) -> (outputs, h, c), with its own gradient.

    For G layers side by side, the arguments are [T, G, b, 4u], [G, 1, 4u], [G, u, 4u], [G, b, u], [G, b, u]. Under XLA,
    the gates and their gradients are stored in the precision of products, which halves what the loops move.
    """
    compute, variable = precision.compute, precision.variable
    stored = compute if under_xla() else variable
    # XLA's gradient computes tanh of c again from c, in the kernel that uses it, so that a loop writes one result less.
    keeps_tanh = not under_xla()

    def times(a: tf.Tensor, b: tf.Tensor, **transpose: bool) -> tf.Tensor:
        return tf.cast(tf.matmul(tf.cast(a, compute), tf.cast(b, compute), **transpose), variable)

    def outer(h: tf.Tensor, dz: tf.Tensor) -> tf.Tensor:
        """Returns the recurrent weights' gradient: one product over all steps for each layer."""
        if len(h.shape) == 3:
            return times(rows(h), rows(dz), transpose_a=True)
        return tf.stack([outer(*pair) for pair in zip(*(tf.unstack(x, axis=1) for x in (h, dz)))])

    @tf.custom_gradient
    def core(z: tf.Tensor, bias: tf.Tensor, recurrent: tf.Tensor, h0: tf.Tensor, c0: tf.Tensor) -> tuple:
        matrix = tf.cast(recurrent, compute)

        def step(before: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
            h, c = before
            z = tf.cast(inputs[0], variable) + bias if under_xla() else inputs[0]
            i, f, g, o, new_c, squashed, new_h = cell(z + times(h, matrix), c)
            if mask is not None:
                m = inputs[1]
                new_h, new_c = m * new_h + (1 - m) * h, m * new_c + (1 - m) * c
            gates = [tf.cast(x, stored) for x in (i, f, g, o)]
            return (new_h, new_c), (*gates, new_h, new_c, *([squashed] if keeps_tanh else []))

        sequences = (z,) if mask is None else (z, mask)
        (h, c), (i, f, g, o, hs, cs, *squashed) = scan(step, (h0, c0), sequences, stack=False)

        def gradient(d_outputs: tf.Tensor, d_h: tf.Tensor, d_c: tf.Tensor) -> Tensors:
            saved = [i, f, g, o, *(squashed or [cs]), delayed(c0, cs)]
            dz, d_h0, d_c0 = backward(saved, matrix, d_outputs, d_h, d_c)
            d_bias = tf.reduce_sum(tf.cast(dz, variable), [0, -2]) if under_xla() else bias
            return dz, tf.reshape(d_bias, bias.shape), outer(stacked(delayed(h0, hs)), dz), d_h0, d_c0

        outputs = stacked(hs)
        return (outputs if mask is None else outputs * mask, h, c), gradient

    def backward(
        saved: Sequence[Steps], matrix: tf.Tensor, d_outputs: tf.Tensor, d_h: tf.Tensor, d_c: tf.Tensor
    ) -> Tensors:
        """Returns (dz [T, b, 4u], dh0, dc0); `saved` holds i, f, g, o, tanh of c or c, and c before the step."""
        # Transposed once, because `transpose_b` would transpose at every step. Grappler turns a plain transpose in
        # front of products into `transpose_b`, but does not look through ensure_shape.
        transposed = tf.linalg.matrix_transpose(matrix)
        transposed = tf.ensure_shape(transposed, transposed.shape)

        def step(after: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
            *gates, squashed, c_before, d_output = inputs[:7]
            i, f, g, o = (tf.cast(x, variable) for x in gates)
            masks = inputs[7:]
            squashed = squashed if keeps_tanh else tf.tanh(squashed)
            d_h, d_c = after
            if masks:
                m = masks[0]
                kept_h, kept_c = (1 - m) * d_h, (1 - m) * d_c
                d_h, d_c = m * (d_h + d_output), m * d_c
            else:
                d_h += d_output
            dz, d_c = cell_gradient(i, f, g, o, c_before, squashed, d_h, d_c)
            d_h = times(dz, transposed)
            if masks:
                d_h, d_c = d_h + kept_h, d_c + kept_c
            return (d_h, d_c), (tf.cast(dz, stored),)

        inputs = [*saved, d_outputs, *([] if mask is None else [mask])]
        (d_h0, d_c0), (dz,) = scan(step, (d_h, d_c), inputs, reverse=True)
        return dz, d_h0, d_c0

    return core


def cell_gradient(
    i: tf.Tensor,
    f: tf.Tensor,
    g: tf.Tensor,
    o: tf.Tensor,
    c_before: tf.Tensor,
    squashed: tf.Tensor,
    d_h: tf.Tensor,
    d_c: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the gradients of z [..., 4u] and of c before the step [..., u] from those of h and c after it."""
    d_c += tanh_gradient(squashed, d_h * o)
    dz = tf.concat(
        [
            sigmoid_gradient(i, d_c * g),
            sigmoid_gradient(f, d_c * c_before),
            tanh_gradient(g, d_c * i),
            sigmoid_gradient(o, d_h * squashed),
        ],
        -1,
    )
    return dz, d_c * f


def sigmoid_gradient(y: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    """Returns dy y (1 - y), in one pass over memory."""
    return tf.raw_ops.SigmoidGrad(y=y, dy=dy)


def tanh_gradient(y: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    """Returns dy (1 - y^2), in one pass over memory."""
    return tf.raw_ops.TanhGrad(y=y, dy=dy)


def cell(z: tf.Tensor, c: tf.Tensor) -> Tensors:
    """Returns (i, f, g, o, new c, tanh(new c), new h) from gate inputs z, [..., b, 4u], and c, [..., b, u]."""
    # Not tf.split: along the last axis it copies element by element, which took a fifth of a step.
    i, f, g, o = tf.unstack(tf.reshape(z, [*z.shape[:-2], -1, 4, c.shape[-1]]), axis=-2)
    i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
    c = f * c + i * g
    squashed = tf.tanh(c)
    return i, f, g, o, c, squashed, o * squashed
