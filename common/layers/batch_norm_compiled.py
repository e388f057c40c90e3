"""Batch norm of one group on one replica in the form that XLA compiles to the fewest passes over the activations.

The forward pass reads the activations twice: for both moments, and to normalize. The backward pass reads activations
and gradient twice: for both sums, and for the result. The ReLU is part of both passes. As an operation of its own, its
gradient is another pass that reads both and writes a tensor, which the other two passes then read.
"""

from __future__ import annotations

import tensorflow as tf


def normalize(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float, relu: bool
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Normalizes `x`, [..., C], over all axes but the last.

    Args:
      x: activations of any float type.
      gamma, beta: [C]; their type is the type of the arithmetic.
      epsilon: added to the variance.
      relu: whether to apply a ReLU to the result.

    Returns:
      (y like `x`, mean [C], population variance [C]); no gradient passes through the moments.
    """

    @tf.custom_gradient
    def normalized(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tuple:
        axes, full = list(range(x.shape.rank - 1)), tf.cast(x, gamma.dtype)
        mean = tf.reduce_mean(full, axes)
        # Both means in one pass, as in XLA's own expansion of batch norm (openxla/xla batchnorm_expander.cc).
        variance = tf.maximum(tf.reduce_mean(full * full, axes) - mean * mean, 0)
        inverse = tf.math.rsqrt(variance + epsilon)
        scale = gamma * inverse
        offset = beta - mean * scale

        def gradient(above: tf.Tensor, *_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            return _gradient(above, x, mean, inverse, scale, offset, relu)

        y = full * scale + offset
        return (tf.cast(tf.nn.relu(y) if relu else y, x.dtype), mean, variance), gradient

    return normalized(x, gamma, beta)


def _gradient(
    above: tf.Tensor,
    x: tf.Tensor,
    mean: tf.Tensor,
    inverse: tf.Tensor,
    scale: tf.Tensor,
    offset: tf.Tensor,
    relu: bool,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Gradients of x, gamma and beta, from section 3 of "Batch Normalization" (Ioffe and Szegedy)."""
    axes, full = list(range(x.shape.rank - 1)), tf.cast(x, scale.dtype)
    dy = tf.cast(above, scale.dtype)
    if relu:
        # Exactly where y > 0. With y itself, the forward pass would write this mask for the backward pass.
        dy = tf.where(full * scale > -offset, dy, tf.zeros_like(dy))
    centered = full - mean
    beta = tf.reduce_sum(dy, axes)
    gamma = tf.reduce_sum(dy * centered, axes) * inverse
    count = tf.cast(tf.size(x) // x.shape[-1], scale.dtype)
    dx = scale * (dy - beta / count - centered * (inverse * gamma / count))
    return tf.cast(dx, x.dtype), gamma, beta
