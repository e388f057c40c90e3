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
from common.layers.image_layers import ImageLayers, seeds
from common.layers.precision import Precision
from resnet.config import Config

BLOCKS = (3, 4, 6, 3)  # bottleneck blocks of conv2_x ... conv5_x
EXPANSION = 4  # a bottleneck's last 1x1 has four times the channels of its 3x3


def build(config: Config, replicas: Replicas, precision: Precision) -> tf_keras.Model:
    """Builds ResNet-50.

    Returns a functional model: images [b, H, W, 3], normalized, any float dtype -> logits [b, classes] in
    `precision.variable`. Raises UserError if there is no function `config.norm`.
    """
    spatial = Spatial(replicas, config.partitions)
    net = _Layers(config, replicas, precision, seeds(config.seed, 64), spatial)
    shape = (config.image_size, config.image_size, 3)
    images = replicas.model_input(shape, config.micro_batch_size, precision.compute)

    x = Enter(spatial, dtype=precision.layer)(images)
    x = net.norm(net.stem(x, config.width, "conv1"), "bn1", relu=True)
    x = net.max_pool(x, "same")
    for stage, blocks in enumerate(BLOCKS, 1):  # conv2_x ... conv5_x
        for block in range(blocks):
            stride = 2 if stage > 1 and block == 0 else 1
            x = bottleneck(net, x, config.width * 2 ** (stage - 1), stride, f"layer{stage}.{block}")
    x = GlobalAverage(spatial, dtype=precision.full)(x)
    return tf_keras.Model(images, net.classifier(x), name=config.model)


def bottleneck(net: _Layers, x: tf.Tensor, filters: int, stride: int, name: str) -> tf.Tensor:
    """Applies a bottleneck block, figure 5 (right) of the paper; if the size changes, it projects the shortcut.

    Layer names are the block's `name` plus torchvision's names, as in published checkpoints.
    """
    y = net.norm(net.conv(x, filters, 1, 1, f"{name}.conv1"), f"{name}.bn1", relu=True)
    y = net.norm(net.conv(y, filters, 3, stride, f"{name}.conv2"), f"{name}.bn2", relu=True)
    y = net.norm(net.conv(y, EXPANSION * filters, 1, 1, f"{name}.conv3"), f"{name}.bn3", last=True)
    if x.shape[-1] != EXPANSION * filters:
        x = net.conv(x, EXPANSION * filters, 1, stride, f"{name}.downsample.0")
        x = net.norm(x, f"{name}.downsample.1")
    return net.residual(y, x)


class _Layers(ImageLayers):
    """The layers of ResNet-50."""

    def norm(self, x: tf.Tensor, name: str, last: bool = False, relu: bool = False) -> tf.Tensor:
        """Applies batch norm, or the layer that `config.norm` makes, and a ReLU if `relu` is true.

        `last`: the residual branch's last norm, which `config.details` may start with gamma 0.
        """
        config = self.config
        gamma = "zeros" if last and config.details.zero_init_last_gamma else "ones"
        if not config.norm:
            return self.sync_batch_norm(name, gamma_initializer=gamma, relu=relu)(x)
        settings = {"name": name, "gamma_initializer": gamma, "dtype": self.precision.layer}
        x = plugins.call("norm", config.norm, config, **settings)(x)
        return self.relu(x) if relu else x

    def backbone_kernel(self) -> tf_keras.initializers.Initializer:
        """Creates the TPU submissions' initializer, or the TF2 reference's, which has twice the variance."""
        scale = {"truncated_fan_in": 1.0, "he_normal": 2.0}[self.config.details.kernel_initializer]
        seed = next(self.seeds)
        return tf_keras.initializers.VarianceScaling(scale, "fan_in", "truncated_normal", seed=seed)
