"""Creates the layers of Mask R-CNN; layers of one kind share their settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas
from common.distributed.spatial import WHOLE_IMAGES, Spatial
from common.layers.batch_norm import SpanBatchNorm
from common.layers.convolution import PaddedConv2D
from common.layers.dense import LastAxisDense
from common.layers.precision import Precision
from maskrcnn.config import Config


@dataclasses.dataclass(frozen=True)
class Parts:
    """Creates layers; `Parts.of(config, replicas, precision)` returns the parts for a configuration.

    Attributes:
      spatial: how the first stage partitions images; the second stage gets whole feature maps.
      seeds: initialiser seeds, one per layer.
    """

    config: Config
    replicas: Replicas
    spatial: Spatial
    precision: Precision
    seeds: Iterator[int]

    @classmethod
    def of(cls, config: Config, replicas: Replicas, precision: Precision) -> Parts:
        # The network has fewer than 128 layers.
        seeds = (int(s >> 1) for s in np.random.SeedSequence(config.seed).generate_state(128))
        return cls(config, replicas, Spatial(replicas, config.partitions), precision, seeds)

    def backbone_conv(self, filters: int, size: int, stride: int, name: str, trainable: bool) -> PaddedConv2D:
        """Creates a backbone convolution: no bias, zero-padded evenly, N(0, 2 / fan-out) unless a checkpoint loads."""
        return PaddedConv2D(
            filters,
            size,
            strides=stride,
            pad=(size - 1) // 2,
            spatial=self.spatial,
            use_bias=False,
            kernel_initializer=self.fan_out(),
            dtype=self.precision.layer,
            name=name,
            trainable=trainable,
        )

    def batch_norm(self, name: str) -> SpanBatchNorm:
        """Creates batch norm; with `config.batch_norm` "frozen", training also uses its evaluation form."""
        config = self.config
        return SpanBatchNorm(
            self.replicas,
            config.batch_norm_span,
            self.precision,
            momentum=config.batch_norm_momentum,
            epsilon=config.batch_norm_epsilon,
            name=name,
            trainable=config.batch_norm == "span",
            spatial=self.spatial,
        )

    def conv(
        self,
        filters: int,
        size: int,
        name: str,
        initial: tf_keras.initializers.Initializer | None = None,
        spatial: Spatial | None = None,
        activation: str | None = None,
    ) -> PaddedConv2D:
        """Creates a convolution with bias that keeps the image's size; `uniform` is the default initialiser."""
        return PaddedConv2D(
            filters,
            size,
            pad=(size - 1) // 2,
            spatial=spatial or self.spatial,
            kernel_initializer=initial or self.uniform(),
            activation=activation,
            dtype=self.precision.layer,
            name=name,
        )

    def mask_conv(self, filters: int, size: int, name: str, activation: str | None = "relu") -> PaddedConv2D:
        """Creates a mask head convolution; its inputs are regions, which every replica holds whole."""
        return self.conv(filters, size, name, self.fan_out(), WHOLE_IMAGES, activation)

    def dense(
        self, units: int, name: str, stddev: float | None = None, activation: str | None = None
    ) -> tf_keras.layers.Dense:
        """Creates a dense layer: with `stddev`, a predictor, N(0, stddev) in full precision; otherwise `uniform`."""
        return LastAxisDense(
            units,
            activation=activation,
            kernel_initializer=self.uniform() if stddev is None else self.normal(stddev),
            dtype=self.precision.layer if stddev is None else self.precision.full,
            name=name,
        )

    def relu(self, x: tf.Tensor) -> tf.Tensor:
        return tf_keras.layers.ReLU(dtype=self.precision.layer)(x)

    def add(self, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return tf_keras.layers.Add(dtype=self.precision.layer)([a, b])

    def uniform(self) -> tf_keras.initializers.Initializer:
        """Creates the initialiser for the pyramid and the box head's hidden layers (`config.uniform_initializer`)."""
        mode = "fan_in" if self.config.uniform_initializer == "fan_in" else "fan_avg"
        return tf_keras.initializers.VarianceScaling(1.0, mode, "uniform", seed=next(self.seeds))

    def normal(self, stddev: float) -> tf_keras.initializers.Initializer:
        return tf_keras.initializers.RandomNormal(stddev=stddev, seed=next(self.seeds))

    def fan_out(self) -> tf_keras.initializers.Initializer:
        """Creates N(0, 2 / fan-out), as published for the backbone and the mask head (docs/sources.md, mlperf 2)."""
        return tf_keras.initializers.VarianceScaling(
            2.0, "fan_out", "untruncated_normal", seed=next(self.seeds)
        )
