"""SSD-300 with a ResNet-34 backbone: figure 2 of "SSD: Single Shot MultiBox Detector", its VGG replaced by the first
four stages of table 1's 34-layer column in "Deep Residual Learning for Image Recognition".

Details follow mlperf_facts section 2, read from Google's v0.6 submission (`ssd_architecture.py`) and the reference
`ssd-v1`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
import tf_keras

from common.detection import anchors as anchor_boxes
from common.distributed.replicas.base import Replicas
from common.distributed.spatial import Spatial
from common.distributed.spatial.layers import Enter, Leave, MaxPool
from common.layers.batch_norm import SpanBatchNorm
from common.layers.convolution import PaddedConv2D, SpaceToDepthStem
from common.layers.precision import Precision
from ssd.config import Config

BLOCKS = (3, 4, 6)  # basic blocks of conv2_x, conv3_x, conv4_x; there is no conv5_x
STRIDES = (1, 2, 1)  # of these stages: conv4_x keeps 38x38


def build(config: Config, replicas: Replicas, precision: Precision) -> tf_keras.Model:
    """The network.

    Returns:
      A functional model: images [b, S, S, 3], normalised, any float dtype -> (codes [b, A, 4], logits [b, A, classes])
      in `precision.variable`, anchors in the order of `anchors`.
    """
    spatial = Spatial(replicas, config.partitions)
    net = _Layers(config, replicas, spatial, precision, _seeds(config.seed))
    shape = (config.image_size, config.image_size, 3)
    images = replicas.model_input(shape, config.micro_batch_size, precision.compute)

    x = Enter(spatial, dtype=precision.layer)(images)
    x = backbone(net, x)  # 38x38x256
    maps = [x]
    for squeeze, filters, stride, pad in extras(config):  # 19x19x512, 10x10x512, 5x5x256, 3x3x256, 1x1x256
        x = net.relu(net.extra(x, squeeze, 1))
        x = net.relu(net.extra(x, filters, 3, stride, pad))
        maps.append(x)
    codes = [net.head(x, number, 4) for x, number in zip(maps, config.anchors_per_cell)]
    logits = [net.head(x, n, config.num_classes) for x, n in zip(maps, config.anchors_per_cell)]
    join = tf_keras.layers.Concatenate(axis=1, dtype=precision.full)
    return tf_keras.Model(images, (join(codes), join(logits)), name=config.model)


def anchors(config: Config) -> np.ndarray:
    """The network's anchors (cy, cx, h, w) in parts of the image, float64 [A, 4]; 8,732 of 300 pixels."""
    return anchor_boxes.ssd(
        config.feature_sizes,
        [scale / 300 for scale in config.anchor_scales],
        [300 / step for step in config.anchor_steps],
        config.anchors_per_cell,
    )


def backbone(net: _Layers, x: tf.Tensor) -> tf.Tensor:
    """conv1 ... conv4_x of ResNet-34: an eighth of the image's side, four times the width.

    Its layers have the names of the published checkpoints (torchvision's), which ssd/backbone.py reads.
    """
    x = net.relu(net.batch_norm(net.stem(x, "conv1"), "bn1"))
    x = MaxPool(net.spatial, 3, 2, 1, dtype=net.precision.layer)(x)
    for stage, (blocks, stride) in enumerate(zip(BLOCKS, STRIDES)):
        for block in range(blocks):
            filters, project = net.config.width * 2**stage, stage > 0 and block == 0
            name = f"layer{stage + 1}.{block}"
            x = basic_block(net, x, filters, stride if project else 1, project, name)
    return x


def basic_block(net: _Layers, x: tf.Tensor, filters: int, stride: int, project: bool, name: str) -> tf.Tensor:
    """Two 3x3 convolutions and the shortcut, which the first block of a wider stage projects."""
    y = net.relu(net.batch_norm(net.conv(x, filters, 3, stride, f"{name}.conv1"), f"{name}.bn1"))
    y = net.batch_norm(net.conv(y, filters, 3, 1, f"{name}.conv2"), f"{name}.bn2")
    if project:
        x = net.conv(x, filters, 1, stride, f"{name}.downsample.0")
        x = net.batch_norm(x, f"{name}.downsample.1")
    return net.relu(tf_keras.layers.Add(dtype=net.precision.layer)([y, x]))


def extras(config: Config) -> list[tuple[int, int, int, int]]:
    """(channels of the 1x1, channels, stride and padding of the 3x3) of each extra feature map."""
    w = config.width
    strided = [(4 * w, 8 * w, 2, 1), (4 * w, 8 * w, 2, 1)] + [(2 * w, 4 * w, 2, 1)] * config.strided_extras
    return strided[: config.strided_extras] + [(2 * w, 4 * w, 1, 0)] * config.valid_extras


@dataclasses.dataclass(frozen=True)
class _Layers:
    """The network's kinds of layer, with the settings that are the same everywhere."""

    config: Config
    replicas: Replicas
    spatial: Spatial
    precision: Precision
    seeds: Iterator[int]

    def conv(self, x: tf.Tensor, filters: int, size: int, stride: int, name: str) -> tf.Tensor:
        """The backbone's convolution, without bias, zero-padded evenly."""
        return PaddedConv2D(
            filters,
            size,
            strides=stride,
            pad=(size - 1) // 2,
            spatial=self.spatial,
            use_bias=False,
            kernel_initializer=self._he(),
            dtype=self.precision.layer,
            name=name,
        )(x)

    def stem(self, images: tf.Tensor, name: str) -> tf.Tensor:
        """The 7x7 convolution of stride 2, padded by 3."""
        if not self.config.space_to_depth:
            return self.conv(images, self.config.width, 7, 2, name)
        return SpaceToDepthStem(
            self.config.width,
            spatial=self.spatial,
            kernel_initializer=self._he(),
            dtype=self.precision.layer,
            name=name,
        )(images)

    def extra(self, x: tf.Tensor, filters: int, size: int, stride: int = 1, pad: int = 0) -> tf.Tensor:
        """A convolution of an extra feature map: with bias, no batch norm follows."""
        return self._biased(x, filters, size, stride, pad)

    def head(self, x: tf.Tensor, number: int, values: int) -> tf.Tensor:
        """`values` numbers for each of a feature map's anchors, `number` per cell: [b, number * H * W, values]."""
        y = Leave(self.spatial, dtype=self.precision.full)(self._biased(x, number * values, 3, 1, 1))
        return _AnchorMajor(number, dtype=self.precision.full)(y)

    def batch_norm(self, x: tf.Tensor, name: str) -> tf.Tensor:
        config = self.config
        return SpanBatchNorm(
            self.replicas,
            config.batch_norm_span,
            self.precision,
            momentum=config.batch_norm_momentum,
            epsilon=config.batch_norm_epsilon,
            name=name,
            spatial=self.spatial,
        )(x)

    def relu(self, x: tf.Tensor) -> tf.Tensor:
        return tf_keras.layers.ReLU(dtype=self.precision.layer)(x)

    def _biased(self, x: tf.Tensor, filters: int, size: int, stride: int, pad: int) -> tf.Tensor:
        """Xavier's uniform initialisation, as the reference has it."""
        return PaddedConv2D(
            filters,
            size,
            strides=stride,
            pad=pad,
            spatial=self.spatial,
            kernel_initializer=tf_keras.initializers.GlorotUniform(seed=next(self.seeds)),
            dtype=self.precision.layer,
        )(x)

    def _he(self) -> tf_keras.initializers.Initializer:
        """N(0, 2 / fan-out), ResNet's where no checkpoint gives the backbone's weights."""
        return tf_keras.initializers.VarianceScaling(
            2.0, "fan_out", "untruncated_normal", seed=next(self.seeds)
        )


class _AnchorMajor(tf_keras.layers.Layer):
    """[b, H, W, n * values] -> [b, n * H * W, values]: the anchors' order is anchor, y, x."""

    def __init__(self, number: int, **kwargs):
        super().__init__(**kwargs)
        self.number = number

    def call(self, x: tf.Tensor) -> tf.Tensor:
        _, height, width, channels = x.shape
        values = channels // self.number
        split = tf.reshape(x, [-1, height * width, self.number, values])
        return tf.reshape(tf.transpose(split, [0, 2, 1, 3]), [-1, self.number * height * width, values])


def _seeds(seed: int) -> Iterator[int]:
    """One independent seed per layer; 96 is more than the network has."""
    return (int(s >> 1) for s in np.random.SeedSequence(seed).generate_state(96))
