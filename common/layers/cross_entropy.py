"""Cross-entropy over many classes with few memory accesses; over a vocabulary it is 1/6 of a step on a CPU."""

from collections.abc import Callable

import tensorflow as tf

from common.distributed.tensorflow_private import gen_xla_ops
from common.layers.scan import Tensors
from common.layers.xla import under_xla


def sparse_cross_entropy(logits: tf.Tensor, targets: tf.Tensor, smoothing: float = 0.0) -> tf.Tensor:
    """Computes `tf.nn.sparse_softmax_cross_entropy_with_logits` with one exponential for each logit.

    TensorFlow's kernel computes every exponential twice and subtracts the one-hot target class by class. This function
    keeps the forward pass's exponentials, subtracts the target from one number per row, and merges a row's sum and the
    upstream gradient into one factor. It makes no tensor for smoothed targets either. XLA fuses elementwise
    operations, so under XLA this function recomputes the exponentials and finds the target by comparison. Then it
    keeps nothing as large as the logits, and reads them twice.

    Args:
      logits: [n, classes].
      targets: integers [n].
      smoothing: probability spread evenly over all classes, including the target's.

    Returns:
      The losses, [n].
    """
    if under_xla():
        return _fused(logits, targets, smoothing)
    return _sparse_cross_entropy(smoothing)(logits, targets)


def spread_over_all(smoothing: float, over: str, classes: int) -> float:
    """Returns the probability to spread over all classes, the target's included.

    Args:
      smoothing: fraction of the target probability that is spread.
      over: "all": every class gets smoothing / V, and the label 1 - smoothing more, as in tf.losses, G6 and the
        references; "others": every other class gets smoothing / (V - 1), and the label 1 - smoothing, as in the
        Transformer, G7's GNMT and MXNet's SoftmaxOutput (docs/sources.md, mlperf 0.7).
      classes: V.
    """
    return smoothing if over == "all" else smoothing * classes / (classes - 1)


def _fused(logits: tf.Tensor, targets: tf.Tensor, smoothing: float) -> tf.Tensor:
    """The form for XLA: one pass over the logits for the losses, one for the gradient."""
    classes = logits.shape[-1]
    spread = smoothing / classes

    @tf.custom_gradient
    def losses_of(logits: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        peak, total, logit_sum = _row_sums(logits)
        normalizer = peak + tf.math.log(total)
        losses = normalizer - (1 - smoothing) * tf.gather(logits, targets, batch_dims=1) - spread * logit_sum

        def gradient(above: tf.Tensor) -> tf.Tensor:
            hit = tf.range(classes, dtype=targets.dtype) == targets[:, None]
            probabilities = tf.where(hit, tf.constant(1 - smoothing + spread, logits.dtype), spread)
            return above[:, None] * (tf.exp(logits - normalizer[:, None]) - probabilities)

        return losses, gradient

    return losses_of(logits)


def _row_sums(logits: tf.Tensor) -> list[tf.Tensor]:
    """Returns each row's maximum, sum of exp(logit - maximum) and sum of logits, [n] each, in one pass under XLA.

    Separate reductions would read the logits three times, because the exponentials need the maximum. Here two partial
    results (maximum, sum of powers, sum) are added after both sums of powers are rescaled to the larger maximum
    (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
    """
    scalar = tf.TensorSpec([], logits.dtype)

    @tf.function(input_signature=[scalar] * 6, autograph=False)
    def add(peak: tf.Tensor, powers: tf.Tensor, total: tf.Tensor, *other: tf.Tensor) -> Tensors:
        highest = tf.maximum(peak, other[0])
        powers = powers * tf.exp(peak - highest) + other[1] * tf.exp(other[0] - highest)
        return highest, powers, total + other[2]

    zero = tf.zeros([], logits.dtype)
    parts = [logits, tf.ones_like(logits), logits]
    start = [tf.constant(logits.dtype.min, logits.dtype), zero, zero]
    return gen_xla_ops.xla_variadic_reduce_v2(parts, start, [1], add.get_concrete_function())


def _sparse_cross_entropy(smoothing: float) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    @tf.custom_gradient
    def losses_of(logits: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        peak = tf.reduce_max(logits, -1, keepdims=True)
        powers = tf.exp(logits - peak)
        total = tf.reduce_sum(powers, -1, keepdims=True)
        indices = tf.stack([tf.range(tf.shape(targets, targets.dtype)[0], dtype=targets.dtype), targets], 1)
        losses = (tf.math.log(total) + peak)[:, 0] - (1 - smoothing) * tf.gather_nd(logits, indices)
        if smoothing:
            losses -= smoothing * tf.reduce_mean(logits, -1)

        def gradient(above: tf.Tensor) -> tuple[tf.Tensor, None]:
            shares = tf.tensor_scatter_nd_sub(powers, indices, (1 - smoothing) * total[:, 0])
            if smoothing:
                shares -= total * (smoothing / logits.shape[-1])
            return shares * (above[:, None] / total), None

        return losses, gradient

    return losses_of
