"""Layers over time for video networks: temporal shift, 3-D convolution, pooling. Activations are [b, T, H, W, C]."""

import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas
from common.layers import gpu_forms
from common.layers.convolution import PaddedConv2D
from common.layers.xla import for_gpu


def shift(x: tf.Tensor, forward: int, backward: int) -> tf.Tensor:
    """Moves channels of [b, T, ..., C] by one frame, with zeros at the ends.

    Channels [0, backward) show the next frame, and the following `forward` channels show the previous frame, as in
    mit-han-lab/temporal-shift-module ops/temporal_shift.py; the others stay. The shift is one concatenation, which XLA
    compiles to one pass over memory. The gradient is the reverse shift, not a sum of padded slices.
    """

    @tf.custom_gradient
    def move(x: tf.Tensor) -> tuple:
        return _moved(x, forward, backward, 1), lambda dy: _moved(dy, forward, backward, -1)

    return move(x) if forward or backward else x


def _moved(x: tf.Tensor, forward: int, backward: int, sign: int) -> tf.Tensor:
    early, late = x[..., :backward], x[..., backward : backward + forward]
    if sign < 0:
        parts = [_later(early), _earlier(late)]
    else:
        parts = [_earlier(early), _later(late)]
    return tf.concat([*parts, x[..., backward + forward :]], axis=-1)


def _earlier(x: tf.Tensor) -> tf.Tensor:
    """Shows frame t + 1 in frame t."""
    return tf.concat([x[:, 1:], tf.zeros_like(x[:, :1])], axis=1)


def _later(x: tf.Tensor) -> tf.Tensor:
    """Shows frame t - 1 in frame t."""
    return tf.concat([tf.zeros_like(x[:, :1]), x[:, :-1]], axis=1)


class TemporalShift(tf_keras.layers.Layer):
    """Shifts a fraction of the channels in each direction; `online` shifts only from the past."""

    def __init__(self, fraction: float, online: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.fraction, self.online = fraction, online

    def call(self, x: tf.Tensor) -> tf.Tensor:
        fold = int(x.shape[-1] * self.fraction)
        return shift(x, fold, 0 if self.online else fold)


class FrameConv2D(PaddedConv2D):
    """Applies a padded 2-D convolution to every frame."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        frames = tf.reshape(inputs, tf.concat([[-1], tf.shape(inputs)[2:]], 0))
        frames = tf.ensure_shape(frames, [None, *inputs.shape[2:]])
        outputs = self.convolution_op(frames, self.kernel)
        shape = tf.concat([tf.shape(inputs)[:2], tf.shape(outputs)[1:]], 0)
        return tf.ensure_shape(tf.reshape(outputs, shape), self.compute_output_shape(inputs.shape))

    def compute_output_shape(self, input_shape: tf.TensorShape) -> tf.TensorShape:
        shape = tf.TensorShape(input_shape)
        frame = super().compute_output_shape([None, *shape[2:]])
        return tf.TensorShape([*shape[:2], *frame[1:]])


class PaddedConv3D(tf_keras.layers.Conv3D):
    """Conv3D without bias that pads (size - 1) / 2 zeros on every side of each axis.

    A kernel of one pixel runs as a 2-D convolution over (frame, pixel), because libraries have better kernels for it.
    """

    def __init__(self, filters: int, kernel_size: tuple[int, int, int], **kwargs):
        super().__init__(filters, kernel_size, padding="valid", use_bias=False, **kwargs)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        if self.kernel_size[1:] == self.strides[1:] == (1, 1):
            return self._over_time(inputs)
        if self.strides == (1, 1, 1):  # The same padding without a copy.
            return tf.nn.conv3d(inputs, self.kernel, [1] * 5, "SAME")
        paddings = [[0, 0], *([size // 2] * 2 for size in self.kernel_size), [0, 0]]
        return tf.nn.conv3d(tf.pad(inputs, paddings), self.kernel, [1, *self.strides, 1], "VALID")

    def _over_time(self, x: tf.Tensor) -> tf.Tensor:
        shape, pad = tf.shape(x), self.kernel_size[0] // 2
        rows = tf.reshape(x, tf.stack([shape[0], shape[1], shape[2] * shape[3], shape[4]]))
        rows = tf.ensure_shape(rows, [*x.shape[:2], None, x.shape[4]])
        kernel = tf.squeeze(self.kernel, 2)
        rows = tf.pad(rows, [[0, 0], [pad, pad], [0, 0], [0, 0]])
        y = tf.nn.conv2d(rows, kernel, [1, self.strides[0], 1, 1], "VALID")
        y = tf.reshape(y, tf.stack([shape[0], tf.shape(y)[1], shape[2], shape[3], self.filters]))
        return tf.ensure_shape(y, self.compute_output_shape(x.shape))

    def compute_output_shape(self, input_shape: tf.TensorShape) -> tf.TensorShape:
        shape = tf.TensorShape(input_shape)
        axes = zip(shape[1:4], self.strides)
        # With this padding, an odd kernel gives one output per stride.
        sizes = [None if size is None else -(-size // stride) for size, stride in axes]
        return tf.TensorShape([shape[0], *sizes, self.filters])


class MaxPool(tf_keras.layers.Layer):
    """Max pooling over space, time or both, with windows of odd size and half a window of padding.

    A maximum over a box is a maximum over space, then over time, so it needs no 3-D kernel. The padding is even, as in
    torchvision's and Keras's ResNet; "same" would start windows elsewhere.

    Attributes:
      replicas: the backend, which knows its devices.
      space: window side; 1 leaves space unchanged, otherwise the stride is 2.
      time: frames in the window; 1 leaves time unchanged, otherwise the stride is 2.
    """

    def __init__(self, replicas: Replicas, space: int, time: int, **kwargs):
        super().__init__(**kwargs)
        self.replicas, self.space, self.time = replicas, space, time

    def call(self, x: tf.Tensor) -> tf.Tensor:
        if self.space > 1:
            x = self._over_space(x)
        return self._over_time(x) if self.time > 1 else x

    def _over_space(self, x: tf.Tensor) -> tf.Tensor:
        frames = tf.reshape(x, tf.concat([[-1], tf.shape(x)[2:]], 0))
        pad = self.space // 2
        if for_gpu(self.replicas) and self.space == gpu_forms.SIZE and None not in x.shape[2:]:
            y = gpu_forms.max_pool(tf.ensure_shape(frames, [None, *x.shape[2:]]), ((pad, pad), (pad, pad)))
        else:
            paddings = [[0, 0], [pad, pad], [pad, pad], [0, 0]]
            frames = tf.pad(frames, paddings, constant_values=x.dtype.min)
            frames = tf.ensure_shape(frames, [None, None, None, x.shape[-1]])
            y = tf.nn.max_pool2d(frames, self.space, 2, "VALID")
        y = tf.reshape(y, tf.concat([tf.shape(x)[:2], tf.shape(y)[1:]], 0))
        sides = [None if side is None else -(-side // 2) for side in x.shape[2:4]]
        return tf.ensure_shape(y, [*x.shape[:2], *sides, x.shape[4]])

    def _over_time(self, x: tf.Tensor) -> tf.Tensor:
        pad = self.time // 2
        padded = tf.pad(x, [[0, 0], [pad, pad], *[[0, 0]] * 3], constant_values=x.dtype.min)
        y, length = None, x.shape[1]
        for offset in range(self.time):
            part = padded[:, offset : offset + length : 2]
            y = part if y is None else tf.maximum(y, part)
        return y
