"""Finds the k largest elements of each row without sorting; k may differ by row; shapes stay static under XLA."""

import tensorflow as tf

from common.layers.xla import under_xla

# Bits of the threshold determined per round under XLA; on a GPU a round takes a kernel or two, whatever the number.
_XLA_BITS = 3
# Under XLA, rows shorter than this are ranked by comparing every pair.
_LARGE = 2048
_INTEGERS = {tf.float32: tf.int32, tf.float64: tf.int64}


def topk_mask(values: tf.Tensor, k: tf.Tensor, exact: bool = False) -> tf.Tensor:
    """Returns a mask, bool [..., n], of the elements that are at least as large as the k-th largest in their row.

    Floating-point numbers keep their order when read as integers. So it finds the k-th largest from its highest bits
    down, by asking "are there k elements at least this large?" (docs/sources.md, mlperf 3.18). It includes all ties
    with the k-th, so the mask may have more than k elements, unless `exact`.

    Args:
      values: float32 or float64 [..., n], no NaN; the hardware may treat subnormal numbers as 0.
      k: int32 [...]; 0 gives an empty mask, n or more a full one.
      exact: whether to include only the first ties with the k-th, so that the mask has exactly k elements.
    """
    if exact and under_xla() and (values.shape[-1] or _LARGE) < _LARGE:
        return _ranks(tf.stop_gradient(values)) < k[..., None]
    integer = _INTEGERS[values.dtype]
    values = tf.stop_gradient(values)
    # Equal numbers need equal bits: replace -0.0 by 0.0. (Adding 0 would not work, because XLA removes the addition.)
    ordered = tf.bitcast(tf.where(tf.equal(values, 0), tf.zeros_like(values), values), integer)
    # Negative numbers sort in reverse order of their bit patterns: flip all bits but the sign.
    ordered = tf.where(ordered < 0, tf.bitwise.bitwise_xor(ordered, integer.max), ordered)
    k = tf.minimum(k, tf.shape(values)[-1])[..., None]
    threshold = _kth_largest(ordered, k, _XLA_BITS if under_xla() else 1)
    if exact:
        above, ties = ordered > threshold, tf.cast(tf.equal(ordered, threshold), tf.int32)
        remaining = k - tf.reduce_sum(tf.cast(above, tf.int32), -1, keepdims=True)
        # Fewer than k elements are above the threshold; if k is 0, the threshold equals no element.
        return (above | ((ties > 0) & (tf.cumsum(ties, -1) <= remaining))) & (k > 0)
    return (ordered >= threshold) & (k > 0)


def _ranks(values: tf.Tensor) -> tf.Tensor:
    """Returns each element's rank in its row, int32 [..., n], by comparing all pairs, in one kernel on a GPU.

    Larger elements are first; of equal ones, the earlier.
    """
    this, other = values[..., :, None], values[..., None, :]
    place = tf.range(values.shape[-1])
    before = (other > this) | (tf.equal(other, this) & (place[None, :] < place[:, None]))
    return tf.reduce_sum(tf.cast(before, tf.int32), -1)


def _kth_largest(values: tf.Tensor, k: tf.Tensor, width: int) -> tf.Tensor:
    """Returns the largest number such that k elements of the row are at least as large, [..., 1].

    `values` are int32 or int64 [..., n]; a `k` of 0, int32 [..., 1], gives the largest number of the type. A round
    tests all values of `width` bits at once.
    """
    integer, bits = values.dtype, values.dtype.size * 8

    def enough(thresholds: tf.Tensor) -> tf.Tensor:
        """Returns for each threshold, [..., t], whether k elements reach it."""
        reached = tf.cast(values[..., None, :] >= thresholds[..., None], tf.int32)
        return tf.reduce_sum(reached, -1) >= k

    zero = tf.zeros_like(k, integer)
    largest = tf.where(enough(zero), zero, zero + integer.min)
    for high in range(bits - 1, 0, -width):
        low = max(0, high - width)
        digits = tf.constant([digit << low for digit in range(1, 2 ** (high - low))], integer)
        digit = tf.reduce_sum(tf.cast(enough(largest + digits), integer), -1, keepdims=True)
        largest += tf.bitwise.left_shift(digit, tf.constant(low, integer))
    return largest
