"""Builds ResNet-50 v1.5: the 50-layer column of table 1 of "Deep Residual Learning for Image Recognition".

In v1.5 the 3x3 convolution of a stage's first block has the stride, not the 1x1 before it. Details follow Google's v0.6
submission (`resnet_model.py`) and the reference `resnet-tf2` (docs/sources.md, mlperf 2).
"""

from __future__ import annotations

import tensorflow as tf
import tf_keras

from common.config import plugins
from common.distributed.replicas.base import Replicas
from common.distributed.spatial import Spatial
from common.distributed.spatial.layers import Enter, GlobalAverage
from common.errors import UserError
from common.layers.image_layers import ImageLayers, seeds
from common.layers.precision import Precision
from resnet import alexnet
from resnet.config import Config

BLOCKS = (3, 4, 6, 3)  # bottleneck blocks of conv2_x ... conv5_x
EXPANSION = 4  # a bottleneck's last 1x1 has four times the channels of its 3x3


def build(config: Config, replicas: Replicas, precision: Precision) -> tf_keras.Model:
    """Builds the network named by `config.model`.

    Returns a functional model: images [b, H, W, 3], normalised, any float dtype -> logits [b, classes] in
    `precision.variable`. Raises UserError if the model or initialiser is unknown, or the network cannot take the image
    size.
    """
    if config.model == "alexnet_bn":
        return alexnet.build(config, replicas, precision)
    if config.model != "resnet50":
        raise UserError(f"config.model={config.model!r}: unknown; known: resnet50, alexnet_bn")
    spatial = Spatial(replicas, config.partitions)
    net = _Layers(config, replicas, precision, seeds(config.seed, 64), spatial)
    shape = (config.image_size, config.image_size, 3)
    images = replicas.model_input(shape, config.micro_batch_size, precision.compute)

    x = Enter(spatial, dtype=precision.layer)(images)
    x = net.stem(x, config.width, "conv1")
    x = net.batch_norm(x, "bn1", relu=True)
    x = net.max_pool(x, "same")
    for stage, blocks in enumerate(BLOCKS):  # conv2_x ... conv5_x
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            name = f"layer{stage + 1}.{block}"
            x = bottleneck(net, x, config.width * 2**stage, stride, block == 0, name)
    x = GlobalAverage(spatial, dtype=precision.full)(x)
    return tf_keras.Model(images, net.classifier(x), name=config.model)


def bottleneck(net: _Layers, x: tf.Tensor, filters: int, stride: int, project: bool, name: str) -> tf.Tensor:
    """Applies a bottleneck block, figure 5 (right) of the paper; the first block of a stage projects the shortcut.

    Layer names are the block's `name` plus torchvision's names, as in published checkpoints.
    """
    y = net.batch_norm(net.conv(x, filters, 1, 1, f"{name}.conv1"), f"{name}.bn1", relu=True)
    y = net.batch_norm(net.conv(y, filters, 3, stride, f"{name}.conv2"), f"{name}.bn2", relu=True)
    y = net.batch_norm(net.conv(y, EXPANSION * filters, 1, 1, f"{name}.conv3"), f"{name}.bn3", last=True)
    if not net.config.residual:
        return net.relu(y)
    if project:
        x = net.conv(x, EXPANSION * filters, 1, stride, f"{name}.downsample.0")
        x = net.batch_norm(x, f"{name}.downsample.1")
    return net.residual(y, x)


class _Layers(ImageLayers):
    """The layers of ResNet-50."""

    def batch_norm(self, x: tf.Tensor, name: str, last: bool = False, relu: bool = False) -> tf.Tensor:
        """Applies batch norm, or `config.norm`, and a ReLU if `relu` is true.

        `last`: the residual branch's last batch norm, which `config.zero_init_last_gamma` starts with gamma 0.
        """
        config = self.config
        gamma = "zeros" if last and config.zero_init_last_gamma else "ones"
        if config.norm:
            dtype = self.precision.layer
            settings = {"name": name, "gamma_initializer": gamma, "dtype": dtype}
            x = plugins.call("norm", config.norm, config, **settings)(x)
            return self.relu(x) if relu else x
        trainable = not config.freeze_batch_norm
        tiles = {"tile_rows": config.batch_norm_tile_rows, "grid_columns": config.batch_norm_grid_columns}
        return self.norm(name, gamma_initializer=gamma, trainable=trainable, relu=relu, **tiles)(x)

    def backbone_kernel(self) -> tf_keras.initializers.Initializer:
        """Creates the TPU submissions' initialiser, or the TF2 reference's, which has twice the variance."""
        name = self.config.kernel_initializer
        if name == "truncated_fan_in":
            return tf_keras.initializers.VarianceScaling(
                1.0, "fan_in", "truncated_normal", seed=next(self.seeds)
            )
        if name == "he_normal":
            return tf_keras.initializers.HeNormal(seed=next(self.seeds))
        raise UserError(f"config.kernel_initializer={name!r}: unknown; known: truncated_fan_in, he_normal")
