"""Draws random samples of anchors and proposals: balanced, of exact size, and the same on any replica."""

from typing import NamedTuple

import tensorflow as tf

from common.detection import topk
from common.layers import philox
from common.layers.xla import under_xla


def noise(seed: int, step: tf.Tensor, image_id: tf.Tensor, count: int, use: int = 0) -> tf.Tensor:
    """Returns random numbers in [0, 1), float32 [b, count], from seed, step, image id, use and count alone.

    They are float32 in every precision, so that every precision draws the same sample. The generator makes
    n = ceil(count / 4) blocks of four words; number k * n + j is word k of block j.

    Args:
      seed: the run's seed; seeds that differ by 2^31 give the same numbers.
      step: int64 scalar below 2^32; int32 if the device emulates 64-bit integers (`Replicas.narrow`). With int32 or
        under XLA, the same numbers come from 32-bit operations, in one kernel for all images.
      image_id: int64 [b], below 2^32.
      count: numbers per image, at least 1.
      use: number of the sample within a step, below 2^31.
    """
    blocks = -(-count // 4)
    if step.dtype == tf.int32 or under_xla():
        bits = _narrow_bits(seed, step, image_id, blocks, use)
    else:
        # XLA draws the same integers as TensorFlow, but other floating-point numbers.
        first = use % 2**31 * 2**32 + step
        second = seed % 2**31 * 2**32 + tf.cast(image_id, tf.int64)
        keys = [tf.stack([first, word]) for word in tf.unstack(second)]
        bits = tf.stack(
            [
                tf.random.stateless_uniform([4 * blocks], key, None, None, tf.uint32, alg="philox")
                for key in keys
            ]
        )
    # First the first words of all blocks, then the second words: a block's four words in a row would cost a TPU a
    # shuffle.
    bits = tf.transpose(tf.reshape(bits, [-1, blocks, 4]), [0, 2, 1])
    bits = tf.reshape(bits, [-1, 4 * blocks])[:, :count]
    low = tf.bitwise.bitwise_and(bits, 2**24 - 1)
    return tf.cast(low, tf.float32) * 2.0**-24


def _narrow_bits(seed: int, step: tf.Tensor, image_id: tf.Tensor, blocks: int, use: int) -> tf.Tensor:
    """Returns the random words of all images, uint32 [b, blocks, 4], without 64-bit operations."""
    number = tf.range(blocks, dtype=tf.int32)[None]
    words = tf.cast(step, tf.uint32), use % 2**31, tf.cast(image_id, tf.uint32)[:, None], seed % 2**31
    block = tf.cast(number, tf.uint32), tf.zeros_like(number, tf.uint32)
    return philox.random_words(words, block)


class Sample(NamedTuple):
    """Masks of the drawn elements: bool [..., n] each, disjoint."""

    positive: tf.Tensor
    negative: tf.Tensor


def balanced(positive: tf.Tensor, negative: tf.Tensor, noise: tf.Tensor, size: int, positives: int) -> Sample:
    """Draws at most `positives` positive elements, and negative ones until there are `size`.

    It draws exactly p = min(positives, number of positive) and min(size - p, number of negative) elements: those with
    the largest noise; of equal noise, the first. All are [..., n], the noise at least 0. `size` and `positives` are 256
    and 128 for the RPN, 512 and 128 for the second stage (docs/sources.md, mlperf 2).
    """

    first = _count(positive, positives)
    counts = tf.stack([first, _count(negative, size - first)], -1)
    candidates = tf.stack([positive, negative], -2)
    noise = noise[..., None, :]
    ranked = tf.where(candidates, noise, -tf.ones_like(noise))
    return Sample(*tf.unstack(topk.topk_mask(ranked, counts, exact=True), axis=-2))


def _count(candidates: tf.Tensor, limit: int | tf.Tensor) -> tf.Tensor:
    return tf.minimum(tf.reduce_sum(tf.cast(candidates, tf.int32), -1), limit)


class Slots(NamedTuple):
    """A sample as a list of k slots, positive elements first.

    Attributes:
      index: int32 [..., k], the element in each slot; arbitrary if not `valid`.
      valid: bool [..., k], whether the slot is filled (the sample can be smaller than k).
      positive: bool [..., k], whether the slot's element is positive.
    """

    index: tf.Tensor
    valid: tf.Tensor
    positive: tf.Tensor


def compact(sample: Sample, size: int) -> Slots:
    """Returns the first `size` elements of a sample: positive ones first, each kind in its original order."""
    rank = 2 * tf.cast(sample.positive, tf.float32) + tf.cast(sample.negative, tf.float32)
    # For equal ranks, top_k returns the first.
    rank, index = tf.math.top_k(rank, size)
    return Slots(index, rank > 0, rank > 1)
