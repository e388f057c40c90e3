"""Builds the heads on the pyramid: the region proposal network on every cell, box and mask heads on regions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf
import tf_keras

from common.detection import roi_align
from common.detection.anchors import PYRAMID_ASPECTS
from common.distributed.spatial.layers import Leave
from common.layers.convolution import Conv2DTranspose
from maskrcnn.layers import Layers

ANCHORS = len(PYRAMID_ASPECTS)  # anchors per cell
BOX_SIZE = 7  # bins along a side of the box head's regions; the mask head's regions have config.mask_size / 2


def region_proposals(layers: Layers, maps: dict[int, tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Applies the region proposal network, figure 3 of "Faster R-CNN", with the same weights on all levels.

    Returns (logits [b, A_l], codes [b, A_l, 4]) of each level in `precision.variable`, anchors in the order aspect, y,
    x. Replicas that share images all get the outputs for the whole image.
    """
    hidden = layers.biased_conv(layers.config.sizes.fpn_channels, 3, "rpn", layers.normal(0.01), relu=True)
    score = layers.biased_conv(ANCHORS, 1, "rpn_score", layers.normal(0.01))
    box = layers.biased_conv(4 * ANCHORS, 1, "rpn_box", layers.normal(0.01))
    full = layers.precision.full

    def flat(x: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
        return Flat(shape, dtype=full)(Leave(layers.spatial, dtype=full)(x))

    features = [hidden(x) for x in maps.values()]
    return [flat(score(x), []) for x in features], [flat(box(x), [4]) for x in features]


class Flat(tf_keras.layers.Layer):
    """Reorders [b, H, W, ANCHORS * n] to [b, ANCHORS * H * W, *shape], where `shape` has n elements.

    The order is aspect, y, x, which keeps rows of the image together. In the order y, x, aspect, a TPU moves single
    numbers, which takes several times as long, and the compiler needs minutes (docs/compile.md).
    """

    def __init__(self, shape: Sequence[int], **kwargs):
        super().__init__(**kwargs)
        self.shape = list(shape)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        _, height, width, channels = x.shape
        values = channels // ANCHORS
        rows = tf.reshape(tf.transpose(x, [0, 3, 1, 2]), [-1, ANCHORS, values, height * width])
        # First groups one value of all anchors, then transposes to all values of one anchor.
        columns = tf.reshape(tf.transpose(rows, [0, 2, 1, 3]), [-1, values, ANCHORS * height * width])
        return tf.reshape(tf.transpose(columns, [0, 2, 1]), [-1, ANCHORS * height * width, *self.shape])


class Crop(tf_keras.layers.Layer):
    """Applies ROIAlign: feature maps by level and corners [b, n, 4] in pixels -> [b, n, size, size, C]."""

    def __init__(self, size: int, min_level: int, samples: int, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.size, self.min_level, self.samples = size, min_level, samples

    def call(self, maps: Sequence[tf.Tensor], boxes: tf.Tensor) -> tf.Tensor:
        levels = dict(enumerate(maps, self.min_level))
        return roi_align.roi_align(levels, boxes, self.size, self.samples)


class BoxHead(tf_keras.layers.Layer):
    """Classifies and refines regions: [b, n, 7, 7, C] -> (logits [b, n, classes], codes [b, n, classes, 4]).

    The outputs are in `precision.variable`.
    """

    def __init__(self, layers: Layers):
        super().__init__(dtype=layers.precision.layer, name="box_head")
        config = layers.config
        self.classes = config.num_classes
        self.hidden = [layers.dense(config.sizes.head_units, f"box_fc{i}", relu=True) for i in (1, 2)]
        self.score = layers.dense(self.classes, "box_score", stddev=0.01)
        self.box = layers.dense(4 * self.classes, "box_code", stddev=0.001)

    def call(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        number = x.shape[1]
        x = tf.reshape(x, [-1, math.prod(x.shape[2:])])
        for layer in self.hidden:
            x = layer(x)
        logits = tf.reshape(self.score(x), [-1, number, self.classes])
        return logits, tf.reshape(self.box(x), [-1, number, self.classes, 4])


class MaskHead(tf_keras.layers.Layer):
    """Predicts masks, figure 4 (right) of the paper: [b, n, 14, 14, C] -> logits [b, n, 28, 28, classes].

    The logits are in `precision.variable`.
    """

    def __init__(self, layers: Layers):
        super().__init__(dtype=layers.precision.layer, name="mask_head")
        config, channels = layers.config, layers.config.sizes.mask_channels
        self.full = layers.precision.variable
        self.convs = [layers.mask_conv(channels, 3, f"mask_conv{i + 1}") for i in range(config.mask_convs)]
        self.larger = Conv2DTranspose(
            channels,
            2,
            activation=layers.activation(),
            kernel_initializer=layers.fan_out(),
            dtype=layers.precision.layer,
            name="mask_larger",
        )
        self.score = layers.mask_conv(config.num_classes, 1, "mask_score", relu=False)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        number, size = x.shape[1], 2 * x.shape[2]
        x = tf.cast(self.score(self.larger(self._convolved(x))), self.full)
        return tf.reshape(x, [-1, number, size, size, x.shape[-1]])

    def of_class(self, x: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
        """Predicts only the mask of each region's class: [b, n, 14, 14, C], int32 [b, n] -> logits [b, n, 28, 28].

        Training and detection need no other class, so the last layer does 91 times fewer products.
        """
        number, size = x.shape[1], 2 * x.shape[2]
        x = self.larger(self._convolved(x))
        x = tf.reshape(x, [-1, size * size, x.shape[-1]])
        # A product with a one-hot matrix is faster than the gradient of a gather.
        one_hot = tf.one_hot(tf.reshape(classes, [-1]), self.score.filters, dtype=self.score.kernel.dtype)
        kernel = tf.cast(tf.matmul(one_hot, self.score.kernel[0, 0], transpose_b=True), x.dtype)
        bias = tf.linalg.matvec(one_hot, self.score.bias)
        x = tf.cast(tf.linalg.matvec(x, kernel), self.full) + tf.cast(bias, self.full)[:, None]
        return tf.reshape(x, [-1, number, size, size])

    def _convolved(self, x: tf.Tensor) -> tf.Tensor:
        x = tf.reshape(x, [-1, *x.shape[2:]])
        for layer in self.convs:
            x = layer(x)
        return x
