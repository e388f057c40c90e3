"""RMSNorm: "Root Mean Square Layer Normalization" (Zhang and Sennrich 2019), with a gain and without a mean."""

import tensorflow as tf


def rms_normalized(x: tf.Tensor, gain: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Returns gain x / sqrt(mean(x^2) + epsilon) over the last axis, [..., width], in the dtype of `x`.

    The statistics are computed in the dtype of `gain`, which is the precision of the weights.
    """
    full = tf.cast(x, gain.dtype)
    scale = tf.math.rsqrt(tf.reduce_mean(full * full, -1, keepdims=True) + epsilon)
    return tf.cast(full * scale * gain, x.dtype)
