"""Finds the k largest of each row without sorting; k may differ by row, and shapes stay static under XLA."""

from __future__ import annotations

import tensorflow as tf

from common.layers.xla import under_xla

# Bits of a threshold that are found at a time behind XLA: on a GPU each time is a kernel or two, whatever it counts.
_XLA_BITS = 3
# Rows shorter than this are ranked behind XLA by comparing every pair.
_LARGE = 2048
_INTEGERS = {tf.float32: tf.int32, tf.float64: tf.int64}


def topk_mask(values: tf.Tensor, k: tf.Tensor, exact: bool = False) -> tf.Tensor:
    """Returns which elements are at least as large as the k-th largest of their row.

    Floating-point numbers keep their order when read as integers, so the k-th largest is found from its highest bits
    down, by asking "are there k elements at least this large?" (docs/sources.md, mlperf 3.18). All ties with the k-th
    are included, so the mask may hold more than k, unless `exact`.

    Args:
      values: float32 or float64 [..., n], no NaN; subnormal numbers may count as 0, as on the hardware.
      k: int32 [...]; 0 gives an empty mask, n or more a full one.
      exact: of the ties with the k-th, only the first ones of the row are included, so that there are k.

    Returns:
      bool [..., n].
    """
    if exact and under_xla() and (values.shape[-1] or _LARGE) < _LARGE:
        return _ranks(tf.stop_gradient(values)) < k[..., None]
    integer = _INTEGERS[values.dtype]
    values = tf.stop_gradient(values)
    # Equal numbers have equal bits: -0.0 counts as 0.0. (XLA leaves out an addition of 0.)
    ordered = tf.bitcast(tf.where(tf.equal(values, 0), tf.zeros_like(values), values), integer)
    # A negative number is smaller the larger its bit pattern: flip all bits but the sign.
    ordered = tf.where(ordered < 0, tf.bitwise.bitwise_xor(ordered, integer.max), ordered)
    k = tf.minimum(k, tf.shape(values)[-1])[..., None]
    threshold = _kth_largest(ordered, k, _XLA_BITS if under_xla() else 1)
    if exact:
        above, ties = ordered > threshold, tf.cast(tf.equal(ordered, threshold), tf.int32)
        left = k - tf.reduce_sum(tf.cast(above, tf.int32), -1, keepdims=True)
        # Fewer than k elements are above the threshold; where k is 0, the threshold is no element's.
        return (above | ((ties > 0) & (tf.cumsum(ties, -1) <= left))) & (k > 0)
    return (ordered >= threshold) & (k > 0)


def _ranks(values: tf.Tensor) -> tf.Tensor:
    """Returns how many elements of its row come before each, larger ones and of equal ones the first: int32 [..., n].

    It compares every pair, in one kernel of a GPU.
    """
    this, other = values[..., :, None], values[..., None, :]
    place = tf.range(values.shape[-1])
    before = (other > this) | (tf.equal(other, this) & (place[None, :] < place[:, None]))
    return tf.reduce_sum(tf.cast(before, tf.int32), -1)


def _kth_largest(values: tf.Tensor, k: tf.Tensor, width: int) -> tf.Tensor:
    """Returns the largest number of which [..., n] has k elements at least as large: [..., 1] for k [..., 1].

    Args:
      values: int32 or int64.
      k: int32; where it is 0, the result is the largest number.
      width: bits found at a time: each round counts for all their values at once.
    """
    integer, bits = values.dtype, values.dtype.size * 8

    def enough(thresholds: tf.Tensor) -> tf.Tensor:
        """Whether k elements reach each of the thresholds, [..., t]."""
        reached = tf.cast(values[..., None, :] >= thresholds[..., None], tf.int32)
        return tf.reduce_sum(reached, -1) >= k

    zero = tf.zeros_like(k, integer)
    found = tf.where(enough(zero), zero, zero + integer.min)
    for high in range(bits - 1, 0, -width):
        low = max(0, high - width)
        digits = tf.constant([digit << low for digit in range(1, 2 ** (high - low))], integer)
        digit = tf.reduce_sum(tf.cast(enough(found + digits), integer), -1, keepdims=True)
        found += tf.bitwise.left_shift(digit, tf.constant(low, integer))
    return found
