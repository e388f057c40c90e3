"""Batch normalization over a configured number of images, the span, on any number of replicas.

The number of images that share batch-norm statistics decides how fast a large-batch ResNet converges (MLPerf v0.6
results with 32 and with 128 images differ by four epochs). So the *span* is a hyperparameter of its own, separate from
a replica's batch. A span equal to the replica's batch is the ordinary layer. A smaller span makes virtual groups
inside the replica; a larger span joins neighboring replicas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import tensorflow as tf
import tf_keras

from common.config.batch_norm_span import span_groups
from common.distributed.replicas.base import Groups, Replicas, contiguous_groups
from common.distributed.spatial.partition import Spatial
from common.errors import UserError
from common.layers import batch_norm_compiled
from common.layers.precision import Precision
from common.layers.xla import for_gpu, under_xla

# Dtypes that TensorFlow's fused kernel accepts; for others the layer uses elementary operations.
_FUSED_DTYPES = (tf.float32, tf.bfloat16, tf.float16)


class SyncBatchNorm(tf_keras.layers.Layer):
    """Batch normalization over the last axis of [b, ..., C], with statistics of `span` images.

    A replica has b images. A span of 0 or b is local; a divisor of b makes b/span virtual groups inside the replica;
    k*b joins k replicas, either consecutive ones or a tile of a grid of replicas. If `spatial` partitions images, b
    counts the images of a group that shares them; the span still counts whole images, and rows beyond the image's end
    do not count.

    The moments have dtype `precision.variable`. A moving average takes the population variance, without zero-debias,
    and every group of every replica has its own. Evaluation uses `merged_mean` and `merged_variance`; `merge_moments`
    fills them. As in Keras, a layer with `trainable` false stays in its evaluation form while training.

    Attributes:
      kinds: kinds of this layer's variables, for `common.layers.variable_kinds`.
      relu: whether the layer also applies the ReLU that follows it.
      in_convolution: on a GPU, the convolution before this layer, which was created frozen, computes the layer too.
      joins_replicas: whether training exchanges moments with other replicas; known once the layer is built.
      moving_mean, moving_variance: [G, C], one per replica; G is the number of virtual groups in a replica.
      merged_mean, merged_variance: [C], equal on all replicas.
    """

    kinds = {"gamma": "norm", "beta": "norm"}

    def __init__(
        self,
        replicas: Replicas,
        span: int,
        precision: Precision,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        affine: bool = True,
        gamma_initializer: str = "ones",
        name: str | None = None,
        trainable: bool = True,
        spatial: Spatial | None = None,
        relu: bool = False,
    ):
        """Keeps the settings.

        The defaults, momentum .9 and epsilon 1e-5, are those of the TPU submissions (docs/sources.md, mlperf 1.1).

        Args:
          replicas: the backend; its collectives join replicas, and it holds the per-replica moments.
          span: number of images that share statistics, see the class; 0 means the replica's batch.
          precision: the policy; activations keep their dtype.
          momentum: moving average = momentum * moving average + (1 - momentum) * batch.
          epsilon: added to the variance.
          affine: whether the layer has a gamma and a beta.
          gamma_initializer: a tf_keras initializer, "zeros" for the last layer of a residual branch.
          name: name of the layer.
          trainable: false freezes gamma and beta and keeps the evaluation form.
          spatial: how the network's images are partitioned; None means not at all.
          relu: apply a ReLU to the result; under XLA this saves a pass over the gradient.
        """
        super().__init__(name=name, dtype=precision.full, autocast=False, trainable=trainable)
        self.replicas, self.span, self.precision = replicas, span, precision
        self.momentum, self.epsilon, self.affine = momentum, epsilon, affine
        self.gamma_initializer = gamma_initializer
        self.spatial = spatial or Spatial(replicas)
        self.relu, self.in_convolution = relu, False

    def build(self, input_shape: tf.TensorShape) -> None:
        """Creates the variables; a nonzero span needs b in `input_shape`, [b, ..., C].

        Raises UserError if the span neither divides nor is a multiple of b, or its groups do not divide the replicas.
        """
        shape = tf.TensorShape(input_shape)
        channels = shape[-1]
        virtual, groups = self._grouping(shape[0])
        self.joins_replicas = groups is not None
        self.gamma = self.beta = None
        if self.affine:
            self.gamma = self.add_weight(name="gamma", shape=[channels], initializer=self.gamma_initializer)
            self.beta = self.add_weight(name="beta", shape=[channels], initializer="zeros")
        moments = {"mean": tf.zeros, "variance": tf.ones}
        for moment, initial in moments.items():
            value = initial([virtual, channels], self.precision.variable)
            moving = self.replicas.per_replica_variable(value, f"{self.name}/moving_{moment}")
            setattr(self, f"moving_{moment}", moving)
            merged = self.add_weight(
                name=f"merged_{moment}",
                shape=[channels],
                initializer={"mean": "zeros", "variance": "ones"}[moment],
                trainable=False,
            )
            setattr(self, f"merged_{moment}", merged)
        super().build(input_shape)

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Normalizes `x`, [b, ..., C], keeping its dtype; in training, updates the moving moments.

        Raises UserError if the span does not fit this batch.
        """
        if self.in_convolution and for_gpu(self.replicas):
            return self._activated(x)
        if not training:
            return self._activated(self._normalize_merged(x))
        if not self.trainable:
            return self._activated(self._frozen(x))
        virtual, groups = self._grouping(x.shape[0])
        if virtual != self.moving_mean.shape[0]:
            raise UserError(
                f"config.batch_norm_span={self.span}: {virtual} groups in a batch of {x.shape[0]}, but the "
                f"layer was built for {self.moving_mean.shape[0]}; train with one batch size"
            )
        if virtual == 1 and groups is None and under_xla():
            offset = self._scale_offset(x.shape[-1])
            y, mean, variance = batch_norm_compiled.normalize(x, *offset, self.epsilon, self.relu)
            mean, variance = mean[None], variance[None]
        elif virtual == 1 and groups is None and x.dtype in _FUSED_DTYPES:
            y, mean, variance = self._fused(x)
            y = self._activated(y)
        else:
            y, mean, variance = self._composite(x, virtual, groups)
            y = self._activated(y)
        self._average(self.moving_mean, mean)
        self._average(self.moving_variance, variance)
        return y

    def _activated(self, y: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(y) if self.relu else y

    def frozen_scale_offset(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the factor and the offset, [C] each, by which the evaluation form normalizes."""
        return self._factor_offset(*self._constants(self.merged_mean.shape[0]))

    def _grouping(self, batch: int | None) -> tuple[int, Groups | None]:
        """Returns (virtual groups in a replica, groups of replicas or None) for `batch` images on a replica."""
        partitions = self.spatial.partitions
        sharing = None if partitions == 1 else self.spatial.groups
        if self.span == 0 or self.span == batch:
            return 1, sharing
        if batch is None:
            fix = "build the model with one"
            raise UserError(f"config.batch_norm_span={self.span}: needs a fixed batch size; {fix}")
        total = self.replicas.num_replicas // partitions
        virtual, size = span_groups(self.span, batch, total)
        if size == 1:
            return virtual, sharing
        joined = contiguous_groups(total, size)
        return 1, [[place * partitions + i for place in group for i in range(partitions)] for group in joined]

    def _scale_offset(self, channels: int) -> tuple[tf.Tensor, tf.Tensor]:
        if self.affine:
            return tf.convert_to_tensor(self.gamma), tf.convert_to_tensor(self.beta)
        return tf.ones([channels], self.precision.variable), tf.zeros([channels], self.precision.variable)

    def _fused(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Normalizes one group on one replica with TensorFlow's fused kernel: (y, mean [1, C], variance [1, C])."""
        gamma, beta = self._scale_offset(x.shape[-1])
        y, mean, variance = _kernel(x, gamma, beta, None, None, self.epsilon, training=True)
        # The kernel reports the sample variance; the moving average uses the population variance.
        count = tf.cast(tf.size(x) // x.shape[-1], variance.dtype)
        population = variance * (tf.maximum(count - 1, 1) / count)
        return y, mean[None], population[None]

    def _composite(
        self, x: tf.Tensor, virtual: int, groups: Groups | None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Normalizes with any grouping and dtype: (y, mean [G, C], variance [G, C])."""
        full = tf.cast(x, self.precision.variable)
        # The groups of images become a leading dimension: on a TPU, rows of pixels would be another layout.
        grouped = tf.reshape(full, tf.concat([[virtual, -1], tf.shape(x)[1:]], 0))
        pixels = list(range(1, grouped.shape.rank - 1))
        if groups is None and x.dtype.size > 2:
            mean, variance = tf.nn.moments(grouped, pixels)  # [G, C]
        else:
            mean, variance = self._joined(full, grouped, virtual, groups)
        gamma, beta = self._scale_offset(x.shape[-1])
        scale = gamma * tf.math.rsqrt(variance + self.epsilon)

        def broadcast(constants: tf.Tensor) -> tf.Tensor:
            return tf.reshape(constants, [virtual, *[1] * len(pixels), x.shape[-1]])

        y = grouped * broadcast(scale) + broadcast(beta - mean * scale)
        return tf.cast(tf.reshape(y, tf.shape(x)), x.dtype), mean, variance

    def _joined(
        self, full: tf.Tensor, grouped: tf.Tensor, virtual: int, groups: Groups | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance [G, C] from the means of the activations and of their squares, as XLA's batch norm does.

        One pass (openxla/xla, xla/service/batchnorm_expander.cc): a compiler fuses both means into the convolution
        before them, and replicas exchange them in one collective. Its error grows with mean² / variance.
        """
        if self.spatial.partitions == 1:
            pixels = list(range(1, grouped.shape.rank - 1))
            means, part = tf.stack([tf.reduce_mean(x, pixels) for x in (grouped, grouped * grouped)]), 1.0
        else:
            means, part = self.spatial.means(full, virtual)
        if groups is not None:
            part = part * self.spatial.partitions / len(groups[0])
            means = self.replicas.all_reduce(means * part, groups)
        mean, square = tf.unstack(means)
        return mean, tf.maximum(square - mean * mean, 0)

    def _normalize_merged(self, x: tf.Tensor) -> tf.Tensor:
        return self._evaluated(x, *self._constants(x.shape[-1]))

    def _frozen(self, x: tf.Tensor) -> tf.Tensor:
        """`_normalize_merged` with a gradient for `x` only.

        TensorFlow's kernel would also sum up gamma's and beta's gradients over all pixels.
        """

        # All tensors are arguments, because tf.custom_gradient searches the graph behind other tensors for variables.
        @tf.custom_gradient
        def normalized(x: tf.Tensor, *constants: tf.Tensor) -> tuple[tf.Tensor, Callable]:
            gamma, _, _, variance = constants
            scale = gamma * tf.math.rsqrt(variance + self.epsilon)

            def gradient(above: tf.Tensor) -> tuple[tf.Tensor | None, ...]:
                return tf.cast(tf.cast(above, scale.dtype) * scale, above.dtype), *[None] * len(constants)

            return self._evaluated(x, *constants), gradient

        return normalized(x, *self._constants(x.shape[-1]))

    def _constants(self, channels: int) -> tuple[tf.Tensor, ...]:
        """Returns an evaluation's gamma, beta, mean and variance, [C] each."""
        moments = tf.convert_to_tensor(self.merged_mean), tf.convert_to_tensor(self.merged_variance)
        return *self._scale_offset(channels), *moments

    def _evaluated(
        self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor
    ) -> tf.Tensor:
        if x.dtype in _FUSED_DTYPES:
            return _kernel(x, gamma, beta, mean, variance, self.epsilon, training=False)[0]
        scale, offset = self._factor_offset(gamma, beta, mean, variance)
        return tf.cast(x, scale.dtype) * scale + offset

    def _factor_offset(
        self, gamma: tf.Tensor, beta: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        scale = gamma * tf.math.rsqrt(variance + self.epsilon)
        return scale, beta - mean * scale

    def _average(self, moving: tf.Variable, batch: tf.Tensor) -> None:
        moving.assign(moving.read_value() * self.momentum + tf.stop_gradient(batch) * (1 - self.momentum))


def _kernel(
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    mean: tf.Tensor | None,
    variance: tf.Tensor | None,
    epsilon: float,
    training: bool,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Runs FusedBatchNormV3 on [b, ..., C]: (y, mean, sample variance)."""
    images = x if x.shape.rank == 4 else tf.reshape(x, [tf.shape(x)[0], 1, -1, x.shape[-1]])
    y, mean, variance = tf.compat.v1.nn.fused_batch_norm(
        images, gamma, beta, mean, variance, epsilon=epsilon, is_training=training
    )
    return y if x.shape.rank == 4 else tf.reshape(y, tf.shape(x)), mean, variance


def span_layers(model: tf.Module | Iterable[tf_keras.layers.Layer]) -> list[SyncBatchNorm]:
    """Returns the SyncBatchNorm layers of a collection of layers or of a model, including nested ones."""
    modules = model.submodules if isinstance(model, tf.Module) else model
    return [m for m in modules if isinstance(m, SyncBatchNorm)]


def merge_moments(model: tf.Module | Iterable[tf_keras.layers.Layer], replicas: Replicas) -> None:
    """Fills `merged_mean` and `merged_variance` of every SyncBatchNorm from all groups of all replicas.

    Call it inside `replicas.run`, before each evaluation. The merged moments are those of the union of all groups, by
    the law of total variance: mean of means, mean of variances plus variance of means (docs/sources.md, mlperf 0.8).
    If there is one group on one replica, its moments stay exactly the same.
    """
    layers = span_layers(model)
    if not layers:
        return
    means = [layer.moving_mean.read_value() for layer in layers]
    variances = [layer.moving_variance.read_value() for layer in layers]
    means_merged = _mean_over_groups(means, replicas)
    # As E[var + (mean - merged)^2], which loses no digits, unlike E[var + mean^2] - merged^2.
    totals = [v + tf.math.squared_difference(m, c) for v, m, c in zip(variances, means, means_merged)]
    variances_merged = _mean_over_groups(totals, replicas)
    merged = [v for layer in layers for v in (layer.merged_mean, layer.merged_variance)]
    values = [x for pair in zip(means_merged, variances_merged) for x in pair]
    replicas.assign(merged, values)


def _mean_over_groups(moments: list[tf.Tensor], replicas: Replicas) -> list[tf.Tensor]:
    """Returns the mean of each [G, C] over groups and replicas; one collective serves the whole network."""
    local = [tf.reduce_mean(m, axis=0) for m in moments]
    if replicas.num_replicas == 1:
        return local
    mean = replicas.all_reduce(tf.concat(local, axis=0)) / replicas.num_replicas
    return tf.split(mean, [math.prod(m.shape) for m in local])
