"""Finds the k largest of each row without sorting; k may differ by row, and shapes stay static under XLA."""

from __future__ import annotations

import tensorflow as tf

_INTEGERS = {tf.float32: tf.int32, tf.float64: tf.int64}


def topk_mask(values: tf.Tensor, k: tf.Tensor, exact: bool = False) -> tf.Tensor:
    """Returns which elements are at least as large as the k-th largest of their row.

    Floating-point numbers keep their order when read as integers, so the k-th largest is found bit by bit, by asking 32
    (64) times "are there k elements at least this large?" (docs/sources.md, mlperf 3.18). All ties with the k-th are
    included, so the mask may hold more than k, unless `exact`.

    Args:
      values: float32 or float64 [..., n], no NaN; subnormal numbers may count as 0, as on the hardware.
      k: int32 [...]; 0 gives an empty mask, n or more a full one.
      exact: of the ties with the k-th, only the first ones of the row are included, so that there are k.

    Returns:
      bool [..., n].
    """
    integer = _INTEGERS[values.dtype]
    bits = values.dtype.size * 8
    # -0.0 + 0.0 is 0.0: equal numbers have equal bits.
    ordered = tf.bitcast(tf.stop_gradient(values) + 0, integer)
    # A negative number is smaller the larger its bit pattern: flip all bits but the sign.
    ordered = tf.where(ordered < 0, tf.bitwise.bitwise_xor(ordered, integer.max), ordered)
    k = tf.minimum(k, tf.shape(values)[-1])[..., None]

    def enough(threshold: tf.Tensor) -> tf.Tensor:
        count = tf.reduce_sum(tf.cast(ordered >= threshold, tf.int32), -1, keepdims=True)
        return count >= k

    zero = tf.zeros_like(k, integer)
    start = tf.where(enough(zero), zero, zero + integer.min)

    def raise_bit(i: tf.Tensor, threshold: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        candidate = threshold + tf.bitwise.left_shift(tf.ones([], integer), tf.cast(bits - 2 - i, integer))
        return i + 1, tf.where(enough(candidate), candidate, threshold)

    _, threshold = tf.while_loop(
        lambda i, _: i < bits - 1, raise_bit, (tf.constant(0), start), maximum_iterations=bits - 1
    )
    if exact:
        above, ties = ordered > threshold, tf.cast(tf.equal(ordered, threshold), tf.int32)
        left = k - tf.reduce_sum(tf.cast(above, tf.int32), -1, keepdims=True)
        # Fewer than k elements are above the threshold; where k is 0, the threshold is no element's.
        return (above | ((ties > 0) & (tf.cumsum(ties, -1) <= left))) & (k > 0)
    return (ordered >= threshold) & (k > 0)
