"""Convolutions with explicit padding, with groups on a CPU, and the space-to-depth form of a 7x7 stem."""

import tensorflow as tf
import tf_keras

from common.distributed.spatial import WHOLE_IMAGES, Spatial
from common.distributed.spatial.geometry import output_size
from common.layers.dense import Biased
from common.layers.xla import under_xla


class Conv2D(Biased, tf_keras.layers.Conv2D):
    """tf_keras's layer with `add_bias`; also the base of layers with another `convolution_op`."""

    def _product(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.convolution_op(inputs, self.kernel)


class Conv2DTranspose(Biased, tf_keras.layers.Conv2DTranspose):
    """tf_keras's layer for windows that do not overlap (size = stride): [b, H, W, C] -> [b, sH, sW, n]."""

    def __init__(self, filters: int, size: int, **kwargs):
        super().__init__(filters, size, strides=size, **kwargs)

    def _product(self, inputs: tf.Tensor) -> tf.Tensor:
        batch, height, width = tf.unstack(tf.shape(inputs)[:3])
        down, right = self.strides
        shape = [batch, height * down, width * right, self.filters]
        outputs = tf.nn.conv2d_transpose(inputs, self.kernel, tf.stack(shape), self.strides, padding="VALID")
        outputs.set_shape(self.compute_output_shape(inputs.shape))
        return outputs


class PaddedConv2D(Conv2D):
    """Conv2D of [b, H, W, C] with `pad` zeros on every side of the image; `spatial` may partition its rows.

    "same" would pad a strided convolution unevenly, by a width that depends on the image size.
    """

    def __init__(self, filters: int, kernel_size: int, pad: int, spatial: Spatial = WHOLE_IMAGES, **kwargs):
        super().__init__(filters, kernel_size, padding="valid", **kwargs)
        self.pad, self.spatial = pad, spatial

    def convolution_op(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        stride, pad = self.strides[0], self.pad
        if under_xla() and self.spatial.partitions == 1:
            # One operation avoids a product in another layout, and a padded copy whose gradient must be cut.
            around = [[0, 0], [pad, pad], [pad, pad], [0, 0]]
            return tf.nn.conv2d(inputs, kernel, stride, around if pad else "VALID")
        # Not `padding=[...]`: with explicit padding, oneDNN's kernels do not compute the gradients, and a bf16 step
        # takes forty times as long. At stride 1, "SAME" is the same padding without the copy.
        if self.kernel_size == self.strides == (1, 1) and not pad:
            return _matrix_product(inputs, tf.convert_to_tensor(kernel))
        same = self.strides == (1, 1) and self.kernel_size == (2 * pad + 1,) * 2
        return self.spatial.conv2d(inputs, kernel, stride, "same" if same else pad)

    def compute_output_shape(self, input_shape: tf.TensorShape) -> tf.TensorShape:
        batch, height, width, _ = tf.TensorShape(input_shape)
        size, stride = self.kernel_size[0], self.strides[0]
        columns = None if width is None else output_size(width, size, stride, self.pad, self.pad)
        rows = None if height is None else self.spatial.output_rows(height, width, size, stride, self.pad)
        return tf.TensorShape([batch, rows, columns, self.filters])


def _matrix_product(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """The 1x1 convolution of [b, H, W, C] as a product; on a CPU its weight gradient is up to 1.6 times as fast."""
    channels, filters = kernel.shape[2:]
    product = tf.reshape(x, [-1, channels]) @ tf.reshape(kernel, [channels, filters])
    return tf.reshape(product, tf.concat([tf.shape(x)[:-1], [filters]], axis=0))


class SpaceToDepthStem(PaddedConv2D):
    """The 7x7 convolution of stride 2 and padding 3, computed as a 4x4 one of stride 1 on 2x2 blocks of pixels.

    Three input channels use a matrix unit badly; twelve use it better. The variable is still the 7x7 kernel, so
    checkpoints, initialization, regularization and the result equal the plain stem's. The kernel is padded at the top
    and left to 8x8; output i reads pixels 2i-4 ... 2i+3, which are the blocks i-2 ... i+1 (docs/sources.md, mlperf
    0.3).
    """

    def __init__(self, filters: int, **kwargs):
        super().__init__(filters, 7, pad=3, strides=2, use_bias=False, **kwargs)

    def convolution_op(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        _, _, channels, filters = kernel.shape
        kernel = tf.pad(kernel, [[1, 0], [1, 0], [0, 0], [0, 0]])
        kernel = tf.reshape(kernel, [4, 2, 4, 2, channels, filters])
        # Space-to-depth orders its channels (row in block, column in block, channel).
        kernel = tf.reshape(tf.transpose(kernel, [0, 2, 1, 3, 4, 5]), [4, 4, 4 * channels, filters])
        pixels = self.spatial.window(inputs, 8, 2, ((4, 2), (4, 2)))
        return tf.nn.conv2d(tf.nn.space_to_depth(pixels, 2), kernel, 1, padding="VALID")


class GroupedConv2D(PaddedConv2D):
    """Grouped convolution: the input and output channels fall into `groups` independent parts.

    It runs one convolution per group, because TensorFlow's CPU kernels have no gradient for a grouped one. tf_keras's
    own layer goes through XLA, which the mirrored backend cannot use.
    """

    def convolution_op(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        parts = zip(tf.split(inputs, self.groups, axis=-1), tf.split(kernel, self.groups, axis=-1))
        return tf.concat([super(GroupedConv2D, self).convolution_op(*part) for part in parts], axis=-1)
