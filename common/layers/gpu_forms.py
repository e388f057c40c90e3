"""Layers in the form that XLA:GPU compiles to fewer passes; for other devices they are the stock operations.

cuDNN computes a convolution, the addition of a bias and a ReLU in one kernel. XLA:GPU uses that kernel only if no other
operation reads the sum. So a ReLU's gradient reads the ReLU's result. A frozen batch norm becomes a factor of the
convolution's kernel and a bias.

XLA:GPU turns the gradient of max pooling into a pooling with four 32-bit indices per window, a tensor of zeros and a
scatter with atomic additions. Here the forward pass also writes the number of each window's maximum, one byte. In the
backward pass an element adds up what the windows around it give it, at most four. A TPU has an instruction for the
stock gradient.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas
from common.distributed.spatial import Spatial
from common.distributed.spatial import layers as spatial_layers
from common.distributed.spatial.geometry import Padding, resolve
from common.distributed.tensorflow_private import enable_auto_cast_variables, gen_xla_ops
from common.layers.batch_norm import SyncBatchNorm
from common.layers.convolution import PaddedConv2D
from common.layers.dense import add_bias
from common.layers.xla import for_gpu

SIZE, STRIDE = 3, 2
_BITS = np.left_shift(1, np.arange(8)).astype(np.uint8)

Sides = tuple[tuple[int, int], tuple[int, int]]


def relu(replicas: Replicas, x: tf.Tensor, in_bits: bool = False) -> tf.Tensor:
    """ReLU whose gradient reads its result; otherwise XLA:GPU computes the sum before it twice.

    With `in_bits` the forward pass also writes the signs, a sixteenth of a bfloat16 result, and the gradient reads
    those. Only if a kernel of XLA's computes the result, because a kernel of cuDNN's could not write them.
    """
    return _kept_relu(x, in_bits) if for_gpu(replicas) else tf.nn.relu(x)


class ReLU(tf_keras.layers.ReLU):
    """`relu` as a layer."""

    def __init__(self, replicas: Replicas, in_bits: bool = False, dtype: Any = None, name: str | None = None):
        super().__init__(dtype=dtype, name=name)
        self.replicas, self.in_bits = replicas, in_bits

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return relu(self.replicas, inputs, self.in_bits)


class NormalizedConv2D(PaddedConv2D):
    """A convolution without bias before a batch norm.

    If the norm was created frozen, the convolution computes both on a GPU. Its output is then normalized, so nothing
    but the norm may read it. The norm's offset is rounded to the precision of products, as the sum is.
    """

    def __init__(self, norm: SyncBatchNorm, *args: Any, **kwargs: Any):
        super().__init__(*args, use_bias=False, **kwargs)
        norm.in_convolution = not norm.trainable
        self.norm = lambda: norm  # A function, so that the variables belong to one layer only.

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        norm = self.norm()
        if not norm.in_convolution or not for_gpu(norm.replicas):
            return super().call(inputs)
        scale, offset = map(tf.stop_gradient, norm.frozen_scale_offset())
        with enable_auto_cast_variables(None):  # The product is rounded once.
            kernel = tf.convert_to_tensor(self.kernel) * scale
        inputs, kernel, offset = (tf.cast(x, self.compute_dtype) for x in (inputs, kernel, offset))
        return add_bias(self.convolution_op(inputs, kernel), offset)


class MaxPool(spatial_layers.MaxPool):
    """Maximum over windows of 3x3 elements with stride 2."""

    def __init__(self, replicas: Replicas, spatial: Spatial, padding: Padding, **kwargs: Any):
        super().__init__(spatial, SIZE, STRIDE, padding, **kwargs)
        self.replicas = replicas

    def call(self, x: tf.Tensor) -> tf.Tensor:
        if not for_gpu(self.replicas) or self.spatial.partitions > 1 or None in x.shape[1:]:
            return super().call(x)
        return max_pool(x, resolve(self.window[2], *x.shape[1:3], SIZE, STRIDE))


def _kept_relu(x: tf.Tensor, in_bits: bool) -> tf.Tensor:
    in_bits = in_bits and x.shape[-1] % _BITS.size == 0

    @tf.custom_gradient
    def function(x: tf.Tensor) -> tuple:
        y = tf.nn.relu(x)
        (residual,) = gen_xla_ops.xla_optimization_barrier(input=[_packed(y > 0) if in_bits else y])

        def gradient(above: tf.Tensor) -> tf.Tensor:
            mask = tf.bitwise.bitwise_and(residual[..., None], _BITS) if in_bits else residual
            return tf.where(tf.reshape(mask > 0, tf.shape(above)), above, tf.zeros_like(above))

        return y, gradient

    return function(x)


def _packed(mask: tf.Tensor) -> tf.Tensor:
    """Packs bool [..., n] into bytes [..., n / 8]."""
    split = tf.reshape(mask, tf.concat([tf.shape(mask)[:-1], [mask.shape[-1] // _BITS.size, _BITS.size]], 0))
    return tf.reduce_sum(tf.where(split, _BITS, tf.zeros_like(_BITS)), -1)


def in_weight_layout(replicas: Replicas, gradient: tf.Tensor) -> tf.Tensor:
    """Returns a gradient; that of a convolution's kernel gets the memory layout of the kernel.

    cuDNN computes the gradient in another layout. XLA:GPU would bring the weights and their slots into that layout,
    update them, and copy both back.
    """
    if gradient.shape.rank < 4 or not for_gpu(replicas):
        return gradient
    (flat,) = gen_xla_ops.xla_optimization_barrier(input=[tf.reshape(gradient, [-1])])
    return tf.reshape(flat, gradient.shape)


def max_pool(x: tf.Tensor, padding: Sides) -> tf.Tensor:
    """Takes the maximum over windows of 3x3 elements with stride 2; the first of several maxima takes the gradient.

    Args:
      x: [b, H, W, C], any float type, of known H and W.
      padding: ((top, bottom), (left, right)), 0 or 1 each; padded elements are below every number.
    """

    @tf.custom_gradient
    def pooled(x: tf.Tensor) -> tuple:
        y, number = _maxima(x, padding)
        return y, lambda above: _gradient(above, number, x, padding)

    return pooled(x)


def _maxima(x: tf.Tensor, padding: Sides) -> tuple[tf.Tensor, tf.Tensor]:
    """Each window's maximum, and its number in the window, row by row, uint8."""
    padded = tf.pad(x, [[0, 0], *padding, [0, 0]], constant_values=x.dtype.min)
    rows, columns = ((side - SIZE) // STRIDE + 1 for side in padded.shape[1:3])
    best, number = None, None
    for i, (row, column) in enumerate(itertools.product(range(SIZE), repeat=2)):
        part = padded[
            :, row : row + STRIDE * rows - 1 : STRIDE, column : column + STRIDE * columns - 1 : STRIDE
        ]
        if best is None:
            best, number = part, tf.zeros_like(part, tf.uint8)
        else:
            larger = part > best
            best = tf.where(larger, part, best)
            number = tf.where(larger, tf.constant(i, tf.uint8), number)
    return best, number


def _gradient(above: tf.Tensor, number: tf.Tensor, x: tf.Tensor, padding: Sides) -> tf.Tensor:
    """Each element's sum over the windows whose maximum it is.

    With the padding, element 2 i + p belongs to window i as its row p, and for p = 0 to window i - 1 as its row 2.
    """
    (top, _), (left, _) = padding
    full = tf.float32 if x.dtype.size < 4 else x.dtype
    rows, columns = -(-(x.shape[1] + top) // STRIDE), -(-(x.shape[2] + left) // STRIDE)
    place = tf.constant([[3 * p + q for q in (0, 1)] for p in (0, 1)], tf.uint8)[None, None, :, None, :, None]
    total = tf.zeros([], full)
    for down, right in itertools.product((0, 1), repeat=2):
        # The window's row is p + 2 * down, which exists if p = 0 or down = 0; likewise for columns.
        exists = tf.constant([[(p, down) != (1, 1) and (q, right) != (1, 1) for q in (0, 1)] for p in (0, 1)])
        theirs = _of_cells(number, down, right, rows, columns) == place + tf.constant(
            6 * down + 2 * right, tf.uint8
        )
        upstream = tf.cast(_of_cells(above, down, right, rows, columns), full)
        total += tf.where(theirs & exists[None, None, :, None, :, None], upstream, tf.zeros([], full))
    total = tf.reshape(total, tf.stack([tf.shape(x)[0], STRIDE * rows, STRIDE * columns, x.shape[3]]))
    return tf.cast(total[:, top : top + x.shape[1], left : left + x.shape[2]], x.dtype)


def _of_cells(values: tf.Tensor, down: int, right: int, rows: int, columns: int) -> tf.Tensor:
    """The windows' values at the cells of 2x2 elements, moved down and right: [b, rows, 1, columns, 1, C]."""
    values = values[:, : rows - down, : columns - right]  # Other windows begin past the image's end.
    after = [rows - down - values.shape[1], columns - right - values.shape[2]]
    moved = tf.pad(values, [[0, 0], [down, after[0]], [right, after[1]], [0, 0]])
    return moved[:, :, None, :, None, :]
