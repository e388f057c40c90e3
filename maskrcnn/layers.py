"""Creates the layers of Mask R-CNN; layers of one kind share their settings."""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas
from common.distributed.spatial import WHOLE_IMAGES, Spatial
from common.layers import gpu_forms
from common.layers.batch_norm import SyncBatchNorm
from common.layers.convolution import PaddedConv2D
from common.layers.dense import LastAxisDense
from common.layers.image_layers import ImageLayers, seeds
from common.layers.precision import Precision
from maskrcnn.config import Config


class Layers(ImageLayers):
    """Creates layers; `Layers.from_config(config, replicas, precision)` returns those of a configuration.

    `spatial` says how the first stage partitions images; the second stage gets whole feature maps.
    """

    @classmethod
    def from_config(cls, config: Config, replicas: Replicas, precision: Precision) -> Layers:
        # The network has fewer than 128 layers.
        return cls(config, replicas, precision, seeds(config.seed, 128), Spatial(replicas, config.partitions))

    def batch_norm(self, name: str) -> SyncBatchNorm:
        """Creates batch norm; with `config.batch_norm` "frozen", training also uses its evaluation form."""
        return self.sync_batch_norm(name, trainable=self.config.batch_norm == "span")

    def normalized(
        self, x: tf.Tensor, filters: int, size: int, stride: int, names: tuple[str, str], trainable: bool
    ) -> tf.Tensor:
        """Applies a convolution and its batch norm, called `names`; `trainable` is about the convolution."""
        norm = self.batch_norm(names[1])
        return norm(self.backbone_conv(filters, size, stride, names[0], trainable, norm)(x))

    def biased_conv(
        self,
        filters: int,
        size: int,
        name: str,
        initial: tf_keras.initializers.Initializer | None = None,
        spatial: Spatial | None = None,
        relu: bool = False,
    ) -> PaddedConv2D:
        """Creates a convolution with bias that keeps the image's size; `uniform` is the default initializer."""
        return PaddedConv2D(
            filters,
            size,
            pad=(size - 1) // 2,
            spatial=spatial or self.spatial,
            kernel_initializer=initial or self.uniform(),
            activation=self.activation(relu),
            dtype=self.precision.layer,
            name=name,
        )

    def mask_conv(self, filters: int, size: int, name: str, relu: bool = True) -> PaddedConv2D:
        """Creates a mask head convolution; its inputs are regions, which every replica holds in full."""
        return self.biased_conv(filters, size, name, self.fan_out(), WHOLE_IMAGES, relu)

    def dense(
        self, units: int, name: str, stddev: float | None = None, relu: bool = False
    ) -> tf_keras.layers.Dense:
        """Creates a dense layer: with `stddev`, a predictor, N(0, stddev) in full precision; otherwise `uniform`."""
        return LastAxisDense(
            units,
            activation=self.activation(relu),
            kernel_initializer=self.uniform() if stddev is None else self.normal(stddev),
            dtype=self.precision.layer if stddev is None else self.precision.full,
            name=name,
        )

    def activation(self, relu: bool = True) -> Callable[[tf.Tensor], tf.Tensor] | None:
        """Returns a layer's activation: ReLU or none."""
        return functools.partial(gpu_forms.relu, self.replicas) if relu else None

    def uniform(self) -> tf_keras.initializers.Initializer:
        """Creates the initializer for the pyramid and the box head's hidden layers."""
        mode = self.config.details.uniform_initializer
        return tf_keras.initializers.VarianceScaling(1.0, mode, "uniform", seed=next(self.seeds))
