"""Biases whose gradients are summed in full precision.

TensorFlow's kernel of `BiasAddGrad` for a CPU adds up bfloat16 numbers in bfloat16, whose eight bits soon swallow what
is added: of 400 rows the sum is wrong by 4 %, of 65,536 by 95 % (TensorFlow 2.20). XLA, and so a TPU, sums in float32.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
import tf_keras


def add_bias(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """x + bias: [..., n], [n] -> [..., n], as `tf.nn.bias_add`."""
    bias = tf.convert_to_tensor(bias)
    return _add(x, bias) if x.dtype == tf.bfloat16 else tf.nn.bias_add(x, bias)


@tf.custom_gradient
def _add(x: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    def gradient(above: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        total = tf.reduce_sum(tf.cast(above, tf.float32), list(range(above.shape.rank - 1)))
        return above, tf.cast(total, bias.dtype)

    return tf.nn.bias_add(x, bias), gradient


class _Biased:
    """A stock layer whose product or convolution is `_product`, and whose bias is added by `add_bias`."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        outputs = self._product(tf.cast(inputs, self.compute_dtype))
        if self.use_bias:
            outputs = add_bias(outputs, self.bias)
        return outputs if self.activation is None else self.activation(outputs)


class Dense(_Biased, tf_keras.layers.Dense):
    """The stock layer of [b, n]."""

    def _product(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.matmul(inputs, self.kernel)


class Conv2D(_Biased, tf_keras.layers.Conv2D):
    """The stock layer, and what has a `convolution_op` of its own."""

    def _product(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.convolution_op(inputs, self.kernel)


class Conv2DTranspose(_Biased, tf_keras.layers.Conv2DTranspose):
    """The stock layer where windows do not overlap: the size is the stride. [b, H, W, C] -> [b, sH, sW, n]."""

    def __init__(self, filters: int, size: int, **kwargs):
        super().__init__(filters, size, strides=size, **kwargs)

    def _product(self, inputs: tf.Tensor) -> tf.Tensor:
        batch, height, width = tf.unstack(tf.shape(inputs)[:3])
        down, right = self.strides
        shape = [batch, height * down, width * right, self.filters]
        outputs = tf.nn.conv2d_transpose(inputs, self.kernel, tf.stack(shape), self.strides, padding="VALID")
        outputs.set_shape(self.compute_output_shape(inputs.shape))
        return outputs
