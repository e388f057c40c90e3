"""The LSTM's textbook loop, differentiated by TensorFlow, which common/layers/lstm.py must equal."""

from unittest import mock

import tensorflow as tf

from common.layers import lstm
from common.layers.lstm import LSTM, State, cell
from common.layers.precision import Precision
from common.layers.scan import Tensors, scan


class PlainLSTM(LSTM):
    """An LSTM that multiplies inputs and states at once, in every step."""

    def call(
        self, x: tf.Tensor, state: State | None = None, lengths: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, State]:
        with mock.patch.object(lstm, "lstm_sequence", plain):
            return super().call(x, state, lengths)


def plain(
    x: tf.Tensor,
    kernel: tf.Tensor,
    recurrent: tf.Tensor,
    bias: tf.Tensor,
    state: State,
    mask: tf.Tensor | None,
    precision: Precision,
) -> tuple[tf.Tensor, State]:
    """Arguments and result are those of common.layers.lstm.lstm_sequence."""
    compute, variable = precision.compute, precision.variable
    matrix = tf.cast(tf.concat([kernel, recurrent], 0), compute)

    def step(before: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        h, c = before
        joined = tf.concat([tf.cast(inputs[0], compute), tf.cast(h, compute)], 1)
        z = tf.cast(joined @ matrix, variable) + bias
        *_, new_c, _, new_h = cell(z, c)
        if mask is None:
            return (new_h, new_c), (new_h,)
        m = inputs[1]
        after = (m * new_h + (1 - m) * h, m * new_c + (1 - m) * c)
        return after, (m * after[0],)

    (h, c), (outputs,) = scan(step, state, (x,) if mask is None else (x, mask))
    return outputs, (h, c)
