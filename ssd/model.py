"""Builds SSD-300 with a ResNet-34 backbone: figure 2 of "SSD: Single Shot MultiBox Detector" without its VGG.

The backbone is conv1 to conv4_x of the 34-layer column of table 1 in "Deep Residual Learning for Image Recognition".
Details follow Google's v0.6 submission (`ssd_architecture.py`) and the reference `ssd-v1` (docs/sources.md, mlperf 2).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from common.detection import anchors as anchor_boxes
from common.distributed.replicas.base import Replicas
from common.distributed.spatial import Spatial
from common.distributed.spatial.layers import Enter, LeaveOwn
from common.layers.convolution import PaddedConv2D
from common.layers.image_layers import ImageLayers, seeds
from common.layers.precision import Precision
from ssd.config import Config

BLOCKS = (3, 4, 6)  # number of basic blocks in conv2_x, conv3_x, conv4_x; there is no conv5_x
_BIASES = 1  # makes the seeds of biases differ from the kernels'
STRIDES = (1, 2, 1)  # strides of conv2_x, conv3_x, conv4_x: conv4_x keeps 38x38


def build(config: Config, replicas: Replicas, precision: Precision) -> tf_keras.Model:
    """Builds the network: normalized images [b, S, S, 3], any float -> (codes [b, A, 4], logits [b, A, classes]).

    The outputs have `precision.variable`, anchors the order of `anchors`. If replicas share images, each replica gets
    the outputs for its own images (`Spatial.local_images`), so that loss and suppression are computed once.
    """
    spatial = Spatial(replicas, config.partitions)
    kernels, biases = seeds((config.seed,), 96), seeds((config.seed, _BIASES), 96)
    net = _Layers(config, replicas, precision, kernels, spatial, bias_seeds=biases)
    shape = (config.image_size, config.image_size, 3)
    images = replicas.model_input(shape, config.micro_batch_size, precision.compute)

    x = Enter(spatial, dtype=precision.layer)(images)
    x = backbone(net, x)  # 38x38x256
    maps = [x]
    # 19x19x512, 10x10x512, 5x5x256, 3x3x256, 1x1x256
    for level, (squeeze, filters, stride, pad) in enumerate(extras(config), 1):
        x = net.relu(net.extra(x, squeeze, 1, name=f"extra{level}.conv1"))
        x = net.relu(net.extra(x, filters, 3, stride, pad, name=f"extra{level}.conv2"))
        maps.append(x)
    levels = list(enumerate(zip(maps, config.sizes.per_cell)))
    codes = [net.head(x, number, 4, f"codes{level}") for level, (x, number) in levels]
    logits = [net.head(x, number, config.num_classes, f"logits{level}") for level, (x, number) in levels]
    join = tf_keras.layers.Concatenate(axis=1, dtype=precision.full)
    return tf_keras.Model(images, (join(codes), join(logits)), name=config.model)


def anchors(config: Config) -> np.ndarray:
    """Computes the anchors (cy, cx, h, w) as fractions of the image, float64 [A, 4]; A is 8,732 at 300 pixels."""
    return anchor_boxes.ssd(
        config.feature_sizes,
        [scale / 300 for scale in config.sizes.scales],
        [300 / step for step in config.sizes.steps],
        config.sizes.per_cell,
    )


def backbone(net: _Layers, x: tf.Tensor) -> tf.Tensor:
    """Applies conv1 ... conv4_x of ResNet-34; the result has an eighth of the image's side and four times the width.

    Layer names match published checkpoints (torchvision's), which ssd/backbone.py reads.
    """
    x = net.sync_batch_norm("bn1", relu=True)(net.stem(x, net.config.width, "conv1"))
    x = net.max_pool(x, 1)
    for stage, (blocks, stride) in enumerate(zip(BLOCKS, STRIDES)):
        for block in range(blocks):
            filters, project = net.config.width * 2**stage, stage > 0 and block == 0
            name = f"layer{stage + 1}.{block}"
            x = basic_block(net, x, filters, stride if project else 1, project, name)
    return x


def basic_block(net: _Layers, x: tf.Tensor, filters: int, stride: int, project: bool, name: str) -> tf.Tensor:
    """Applies two 3x3 convolutions and a shortcut; the first block of a wider stage projects the shortcut."""
    y = net.sync_batch_norm(f"{name}.bn1", relu=True)(net.conv(x, filters, 3, stride, f"{name}.conv1"))
    y = net.sync_batch_norm(f"{name}.bn2")(net.conv(y, filters, 3, 1, f"{name}.conv2"))
    if project:
        x = net.conv(x, filters, 1, stride, f"{name}.downsample.0")
        x = net.sync_batch_norm(f"{name}.downsample.1")(x)
    return net.residual(y, x)


def extras(config: Config) -> list[tuple[int, int, int, int]]:
    """Lists (1x1 channels, 3x3 channels, 3x3 stride, 3x3 padding) for each extra feature map."""
    w = config.width
    strided = [(4 * w, 8 * w, 2, 1), (4 * w, 8 * w, 2, 1)] + [(2 * w, 4 * w, 2, 1)] * config.sizes.strided
    return strided[: config.sizes.strided] + [(2 * w, 4 * w, 1, 0)] * config.sizes.unpadded


@dataclasses.dataclass(frozen=True)
class _Layers(ImageLayers):
    """The layers of SSD."""

    bias_seeds: Iterator[int] = dataclasses.field(kw_only=True)

    def extra(
        self, x: tf.Tensor, filters: int, size: int, stride: int = 1, pad: int = 0, name: str = ""
    ) -> tf.Tensor:
        """Applies an extra feature map's convolution: with bias, without batch norm."""
        return self._biased(x, filters, size, stride, pad, name)

    def head(self, x: tf.Tensor, number: int, values: int, name: str) -> tf.Tensor:
        """Predicts `values` numbers for each of a cell's `number` anchors: [b, number * H * W, values]."""
        y = self._biased(x, number * values, 3, 1, 1, name)
        y = LeaveOwn(self.spatial, dtype=self.precision.full)(y)
        return _AnchorMajor(number, dtype=self.precision.full)(y)

    def _biased(self, x: tf.Tensor, filters: int, size: int, stride: int, pad: int, name: str) -> tf.Tensor:
        """Applies a convolution with bias and the reference's initialization, Xavier uniform."""
        bias: Any = "zeros"
        if self.config.details.bias_initializer == "fan_in":
            bound = (size * size * x.shape[-1]) ** -0.5
            bias = tf_keras.initializers.RandomUniform(-bound, bound, seed=next(self.bias_seeds))
        return PaddedConv2D(
            filters,
            size,
            strides=stride,
            pad=pad,
            spatial=self.spatial,
            kernel_initializer=tf_keras.initializers.GlorotUniform(seed=next(self.seeds)),
            bias_initializer=bias,
            dtype=self.precision.layer,
            name=name,
        )(x)


class _AnchorMajor(tf_keras.layers.Layer):
    """Reorders [b, H, W, n * values] to [b, n * H * W, values], in the order anchor, y, x within a level."""

    def __init__(self, number: int, **kwargs):
        super().__init__(**kwargs)
        self.number = number

    def call(self, x: tf.Tensor) -> tf.Tensor:
        _, height, width, channels = x.shape
        values = channels // self.number
        split = tf.reshape(x, [-1, height * width, self.number, values])
        return tf.reshape(tf.transpose(split, [0, 2, 1, 3]), [-1, self.number * height * width, values])
