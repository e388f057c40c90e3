"""Builds the backbone of Mask R-CNN, ResNet-50 v1.5 without its classifier, and loads its published weights.

The network is the 50-layer column of table 1 in "Deep Residual Learning for Image Recognition". The 3x3 convolution of
a stage's first block has the stride. Layer names match published checkpoints (torchvision's).
"""

import os

import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas
from common.distributed.spatial.layers import MaxPool
from common.layers import pretrained
from maskrcnn.layers import Layers

BLOCKS = (3, 4, 6, 3)  # bottleneck blocks of conv2_x ... conv5_x
EXPANSION = 4  # a bottleneck's last 1x1 has four times the channels of its 3x3


class StopGradient(tf_keras.layers.Layer):
    """Ends the backward pass, because the layers before it are frozen and need no gradient."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return tf.stop_gradient(x)


def stages(layers: Layers, x: tf.Tensor) -> dict[int, tf.Tensor]:
    """Computes the features of levels l = 2 ... 5, {l: [b, H / 2^l, W / 2^l, 4 * width * 2^(l - 2)]}.

    `x` holds images [b, H, W, 3]. With `config.freeze`, the stem and the first stage (eleven convolutions) do not train
    (docs/sources.md, mlperf 2).
    """
    config, levels = layers.config, {}
    x = layers.normalized(x, config.backbone_width, 7, 2, ("conv1", "bn1"), not config.freeze)
    x = layers.relu(x)
    x = MaxPool(layers.spatial, 3, 2, 1, dtype=layers.precision.layer)(x)
    for stage, blocks in enumerate(BLOCKS):
        trainable = stage > 0 or not config.freeze
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            name = f"layer{stage + 1}.{block}"
            x = bottleneck(layers, x, config.backbone_width * 2**stage, stride, block == 0, name, trainable)
        if not trainable:
            x = StopGradient(dtype=layers.precision.layer)(x)
        levels[stage + 2] = x
    return levels


def bottleneck(
    layers: Layers, x: tf.Tensor, filters: int, stride: int, project: bool, name: str, trainable: bool
) -> tf.Tensor:
    """Applies a bottleneck block, figure 5 (right) of the paper; the first block of a stage projects the shortcut."""

    def conv(x: tf.Tensor, filters: int, size: int, stride: int, number: int) -> tf.Tensor:
        names = f"{name}.conv{number}", f"{name}.bn{number}"
        return layers.normalized(x, filters, size, stride, names, trainable)

    y = layers.relu(conv(x, filters, 1, 1, 1))
    y = layers.relu(conv(y, filters, 3, stride, 2))
    y = conv(y, EXPANSION * filters, 1, 1, 3)
    if project:
        names = f"{name}.downsample.0", f"{name}.downsample.1"
        x = layers.normalized(x, EXPANSION * filters, 1, stride, names, trainable)
    return layers.relu(layers.add(y, x))


def load(network: tf_keras.Model, path: str | os.PathLike, replicas: Replicas) -> int:
    """Sets the backbone's weights and batch-norm moments; see `common.layers.pretrained.load`."""
    return pretrained.load(network, path, replicas, "config.backbone_width", "ResNet-50")
