"""Builds AlexNet-BN: AlexNet with batch normalization instead of local response normalization.

The 11-minute run in "ImageNet Training in Minutes" uses this network. The layers follow `borisgin/nvcaffe`
models/alexnet_bn/train_val2.prototxt (docs/sources.md, mlperf 2): batch norm, without gamma and beta and with epsilon
1e-4, precedes every convolution but the first, and follows the pooling if there is one. The network has 60,965,224
parameters at 227 px and 1000 classes.
"""

import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas
from common.layers.convolution import GroupedConv2D, PaddedConv2D
from common.layers.dense import Dense
from common.layers.dropout import Dropout
from common.layers.image_layers import ImageLayers, seeds
from common.layers.precision import Precision
from resnet.config import Config


def build(config: Config, replicas: Replicas, precision: Precision) -> tf_keras.Model:
    """Builds AlexNet-BN; `config.width` 64 is the published size; other widths scale every layer but the last.

    The configuration's residual, initializer, zero-gamma and space-to-depth fields have no effect here. Returns a
    functional model: images [b, H, W, 3], normalized, any float dtype -> logits [b, classes] in `precision.variable`.
    """
    net = _Layers(config, replicas, precision, seeds(config.seed, 16))
    shape = (config.image_size, config.image_size, 3)
    images = replicas.model_input(shape, config.micro_batch_size, precision.compute)

    x = net.pool(net.conv(images, 96, 11, stride=4))
    x = net.pool(net.conv(net.batch_norm(x, 0), 256, 5, pad=2, groups=2))
    x = net.conv(net.batch_norm(x, 1), 384, 3, pad=1)
    x = net.conv(net.batch_norm(x, 2), 384, 3, pad=1, groups=2)
    x = net.pool(net.conv(net.batch_norm(x, 3), 256, 3, pad=1, groups=2))
    x = tf_keras.layers.Flatten(dtype=precision.layer)(x)
    x = net.dropout(net.dense(x, 4096))
    x = net.dropout(net.dense(x, 4096))
    return tf_keras.Model(images, net.classifier(x, bias=0.01), name=config.model)


class _Layers(ImageLayers):
    """The layers of AlexNet-BN."""

    def conv(
        self, x: tf.Tensor, filters: int, size: int, stride: int = 1, pad: int = 0, groups: int = 1
    ) -> tf.Tensor:
        """Applies a convolution and ReLU; weights N(0, .01), bias .01."""
        kind = GroupedConv2D if groups > 1 else PaddedConv2D
        x = kind(
            self._scaled(filters),
            size,
            pad=pad,
            strides=stride,
            groups=groups,
            kernel_initializer=self.normal(0.01),
            bias_initializer=tf_keras.initializers.Constant(0.01),
            dtype=self.precision.layer,
        )(x)
        return self.relu(x)

    def batch_norm(self, x: tf.Tensor, number: int) -> tf.Tensor:
        """Applies batch norm without gamma and beta, under the name that checkpoints have."""
        name = f"span_batch_norm.{number}"
        return self.sync_batch_norm(name, affine=False)(x)

    def pool(self, x: tf.Tensor) -> tf.Tensor:
        """Applies 3x3 max pooling with stride 2."""
        return tf_keras.layers.MaxPool2D(3, strides=2, dtype=self.precision.layer)(x)

    def dense(self, x: tf.Tensor, units: int) -> tf.Tensor:
        """Applies a fully connected layer and ReLU; weights N(0, .005), bias .1."""
        return Dense(
            self._scaled(units),
            activation="relu",
            kernel_initializer=self.normal(0.005),
            bias_initializer=tf_keras.initializers.Constant(0.1),
            dtype=self.precision.layer,
        )(x)

    def dropout(self, x: tf.Tensor) -> tf.Tensor:
        return Dropout(self.replicas, 0.5, seed=next(self.seeds), dtype=self.precision.layer)(x)

    def _scaled(self, channels: int) -> int:
        return channels * self.config.width // 64
