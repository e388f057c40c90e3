"""Cross-entropy of a large vocabulary without its logits: a part of the rows at a time.

The gradient of a sum of cross-entropies is known as soon as the logits are, up to the factor from above. So the forward
pass computes it too, and no logits stay for the backward pass or are computed twice ("Cut Your Losses in
Large-Vocabulary Language Models", Wijmans et al. 2024, computes them again instead).
"""

from collections.abc import Callable

import tensorflow as tf

from common.layers.xla import iota


def summed_cross_entropy(
    x: tf.Tensor, kernel: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, chunks: int, compute: tf.DType
) -> tf.Tensor:
    """Returns the sum of weight * cross-entropy(softmax(x kernel), label) over rows, a scalar in the kernel's dtype.

    Args:
      x: [rows, width] in `compute`; sizes are static, and `chunks` divides the rows.
      kernel: [width, classes] in full precision.
      labels: int32 [rows].
      weights: [rows] in full precision; they have no gradient.
      chunks: number of parts.
      compute: dtype of the products.
    """
    (rows, width), classes, full = x.shape, kernel.shape[1], kernel.dtype
    labels, weights = (tf.reshape(v, [chunks, -1]) for v in (labels, weights))

    @tf.custom_gradient
    def total(x: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        matrix, pieces = tf.cast(kernel, compute), tf.reshape(x, [chunks, -1, width])

        def step(i: tf.Tensor, loss: tf.Tensor, d_kernel: tf.Tensor, d_x: tf.Tensor) -> tuple:
            part, d_logits = _part(pieces[i], matrix, labels[i], weights[i], full)
            d_logits = tf.cast(d_logits, compute)
            d_kernel += tf.cast(tf.matmul(pieces[i], d_logits, transpose_a=True), full)
            d_part = tf.matmul(d_logits, matrix, transpose_b=True)
            return i + 1, loss + part, d_kernel, tf.tensor_scatter_nd_update(d_x, [[i]], [d_part])

        start = (tf.constant(0), tf.zeros([], full), tf.zeros([width, classes], full), tf.zeros_like(pieces))
        _, loss, d_kernel, d_x = tf.while_loop(
            lambda i, *_: i < chunks, step, start, parallel_iterations=1, maximum_iterations=chunks
        )

        def gradient(above: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            scaled = tf.cast(d_x, full) * above
            return tf.reshape(tf.cast(scaled, d_x.dtype), [rows, width]), d_kernel * above

        return loss, gradient

    return total(x, kernel)


def cross_entropies(
    x: tf.Tensor, kernel: tf.Tensor, labels: tf.Tensor, chunks: int, compute: tf.DType
) -> tf.Tensor:
    """Returns each row's cross-entropy, [rows], without a gradient; arguments as in `summed_cross_entropy`."""
    matrix, width = tf.cast(kernel, compute), x.shape[1]

    def part(piece: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        return _losses(piece[0], matrix, piece[1], kernel.dtype)[0]

    pieces = (tf.reshape(x, [chunks, -1, width]), tf.reshape(labels, [chunks, -1]))
    losses = tf.map_fn(part, pieces, parallel_iterations=1, fn_output_signature=kernel.dtype)
    return tf.stop_gradient(tf.reshape(losses, [-1]))


def _part(
    x: tf.Tensor, matrix: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, full: tf.DType
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns (sum of the rows' weighted losses, its gradient by the logits [rows, classes])."""
    losses, logits, normalizer, hit = _losses(x, matrix, labels, full)
    d_logits = (tf.exp(logits - normalizer) - tf.cast(hit, full)) * weights[:, None]
    return tf.reduce_sum(losses * weights), d_logits


def _losses(
    x: tf.Tensor, matrix: tf.Tensor, labels: tf.Tensor, full: tf.DType
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns (losses [rows], logits, logarithm of each row's sum of exponentials [rows, 1], label's place)."""
    logits = tf.cast(tf.matmul(x, matrix), full)
    normalizer = tf.reduce_logsumexp(logits, -1, keepdims=True)
    hit = iota(matrix.shape[1])[None, :] == labels[:, None]
    # Selects with zeros, because a product with 0 would turn an infinite logit into NaN.
    target_logits = tf.reduce_sum(tf.where(hit, logits, tf.zeros([], full)), -1)
    return normalizer[:, 0] - target_logits, logits, normalizer, hit
