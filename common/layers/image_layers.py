"""Creates the layers that networks of images and clips have in common; layers of one kind share their settings."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas
from common.distributed.spatial import WHOLE_IMAGES, Spatial
from common.distributed.spatial.geometry import Padding
from common.layers import gpu_forms
from common.layers.batch_norm import SyncBatchNorm
from common.layers.convolution import PaddedConv2D, SpaceToDepthStem
from common.layers.precision import Precision


def seeds(seed: int | tuple[int, ...], most: int) -> Iterator[int]:
    """Yields an independent seed for each layer; the network has fewer than `most`."""
    return (int(s >> 1) for s in np.random.SeedSequence(seed).generate_state(most))


@dataclasses.dataclass(frozen=True)
class ImageLayers:
    """Creates layers of a network whose configuration has the fields of batch norm.

    Attributes:
      seeds: initializer seeds, one per layer.
      spatial: how the network's images are partitioned; None means not at all.
    """

    config: Any
    replicas: Replicas
    precision: Precision
    seeds: Iterator[int]
    spatial: Spatial | None = None

    def conv(self, x: tf.Tensor, filters: int, size: int, stride: int, name: str) -> tf.Tensor:
        """Applies `backbone_conv`."""
        return self.backbone_conv(filters, size, stride, name)(x)

    def backbone_conv(
        self,
        filters: int,
        size: int,
        stride: int,
        name: str,
        trainable: bool = True,
        norm: SyncBatchNorm | None = None,
    ) -> PaddedConv2D:
        """Creates a convolution without bias, zero-padded by (size - 1) / 2 on each side for any stride and image.

        `norm`: the batch norm that follows, if it may be frozen.
        """
        kind = functools.partial(PaddedConv2D, use_bias=False)
        if norm:
            kind = functools.partial(gpu_forms.NormalizedConv2D, norm)
        return kind(
            filters,
            size,
            strides=stride,
            pad=(size - 1) // 2,
            spatial=self.spatial or WHOLE_IMAGES,
            kernel_initializer=self.backbone_kernel(),
            dtype=self.precision.layer,
            name=name,
            trainable=trainable,
        )

    def stem(self, images: tf.Tensor, filters: int, name: str) -> tf.Tensor:
        """Applies the 7x7 convolution with stride 2 and padding 3, in the form that `config.space_to_depth` says."""
        if not self.config.space_to_depth:
            return self.conv(images, filters, 7, 2, name)
        return SpaceToDepthStem(
            filters,
            spatial=self.spatial or WHOLE_IMAGES,
            kernel_initializer=self.backbone_kernel(),
            dtype=self.precision.layer,
            name=name,
        )(images)

    def sync_batch_norm(
        self, name: str | None = None, span: int | None = None, **settings: Any
    ) -> SyncBatchNorm:
        """Creates batch norm over `span` images, `config.batch_norm_span` by default; `settings` are the layer's."""
        config = self.config
        return SyncBatchNorm(
            self.replicas,
            config.batch_norm_span if span is None else span,
            self.precision,
            momentum=config.batch_norm_momentum,
            epsilon=config.batch_norm_epsilon,
            spatial=self.spatial,
            name=name,
            **settings,
        )

    def relu(self, x: tf.Tensor) -> tf.Tensor:
        return gpu_forms.ReLU(self.replicas, dtype=self.precision.layer)(x)

    def max_pool(self, x: tf.Tensor, padding: Padding) -> tf.Tensor:
        """Takes the maximum over windows of 3x3 elements with stride 2."""
        spatial = self.spatial or WHOLE_IMAGES
        return gpu_forms.MaxPool(self.replicas, spatial, padding, dtype=self.precision.layer)(x)

    def add(self, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return tf_keras.layers.Add(dtype=self.precision.layer)([a, b])

    def residual(self, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        """Adds batch norm's result and a shortcut, and applies a ReLU."""
        return gpu_forms.ReLU(self.replicas, in_bits=True, dtype=self.precision.layer)(self.add(a, b))

    def classifier(self, x: tf.Tensor, bias: float = 0.0) -> tf.Tensor:
        """Computes the logits in full precision; weights N(0, .01)."""
        logits = tf_keras.layers.Dense(
            self.config.num_classes,
            kernel_initializer=self.normal(0.01),
            bias_initializer=tf_keras.initializers.Constant(bias),
            dtype=self.precision.full,
            name="fc",
        )
        return logits(x)

    def backbone_kernel(self) -> tf_keras.initializers.Initializer:
        """Creates the initializer of a backbone's convolution."""
        return self.fan_out()

    def fan_out(self) -> tf_keras.initializers.Initializer:
        """Creates N(0, 2 / fan-out), ResNet's, for a backbone without a checkpoint (docs/sources.md, mlperf 2)."""
        return tf_keras.initializers.VarianceScaling(
            2.0, "fan_out", "untruncated_normal", seed=next(self.seeds)
        )

    def normal(self, stddev: float) -> tf_keras.initializers.Initializer:
        return tf_keras.initializers.RandomNormal(stddev=stddev, seed=next(self.seeds))
