"""Draws random samples of anchors and proposals: balanced, of exact size, the same on whichever replica."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from common.detection import topk
from common.layers import philox
from common.layers.xla import under_xla


def noise(seed: int, step: tf.Tensor, image_id: tf.Tensor, count: int, use: int = 0) -> tf.Tensor:
    """Returns numbers in [0, 1), float32 [b, count], that depend only on seed, step, each image's id and use.

    They are fp32 in every precision, so that every precision draws the same sample. Of the generator's
    n = ceil(count / 4) blocks of four words, number k * n + j is word k of block j; so they depend on `count` too.

    Args:
      seed: of the run; seeds that differ by 2^31 draw the same.
      step: int64 scalar, below 2^32; int32 where the device emulates 64-bit integers (`Replicas.narrow`). That, and
        XLA, draw the same numbers in 32-bit operations, and all images' in one kernel.
      image_id: int64 [b], below 2^32.
      count: numbers for each image, at least 1.
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
    # The first words of all blocks come first, then the second ones: a block's four in a row cost a TPU a shuffle.
    bits = tf.transpose(tf.reshape(bits, [-1, blocks, 4]), [0, 2, 1])
    bits = tf.reshape(bits, [-1, 4 * blocks])[:, :count]
    low = tf.bitwise.bitwise_and(bits, 2**24 - 1)
    return tf.cast(low, tf.float32) * 2.0**-24


def _narrow_bits(seed: int, step: tf.Tensor, image_id: tf.Tensor, blocks: int, use: int) -> tf.Tensor:
    """Returns the words of all images' streams, uint32 [b, blocks, 4], without 64-bit operations."""
    number = tf.range(blocks, dtype=tf.int32)[None]
    words = tf.cast(step, tf.uint32), use % 2**31, tf.cast(image_id, tf.uint32)[:, None], seed % 2**31
    block = tf.cast(number, tf.uint32), tf.zeros_like(number, tf.uint32)
    return philox.random_words(words, block)


class Sample(NamedTuple):
    """Whether each element is drawn: bool [..., n] each, disjoint."""

    positive: tf.Tensor
    negative: tf.Tensor


def balanced(positive: tf.Tensor, negative: tf.Tensor, noise: tf.Tensor, size: int, positives: int) -> Sample:
    """Draws at most `positives` of the positive elements, and negative ones until there are `size`.

    Exactly min(positives, number of positive) and min(size - that, number of negative) are drawn: those of the largest
    noise, and of equal noise the first.

    Args:
      positive, negative: bool [..., n], disjoint.
      noise: floating [..., n], at least 0.
      size, positives: 256 and 128 for the RPN, 512 and 128 for the second stage (docs/sources.md, mlperf 2).
    """

    first = _count(positive, positives)
    counts = tf.stack([first, _count(negative, size - first)], -1)
    candidates = tf.stack([positive, negative], -2)
    noise = noise[..., None, :]
    ranked = tf.where(candidates, noise, -tf.ones_like(noise))
    return Sample(*tf.unstack(topk.topk_mask(ranked, counts, exact=True), axis=-2))


def _count(candidates: tf.Tensor, wanted: int | tf.Tensor) -> tf.Tensor:
    return tf.minimum(tf.reduce_sum(tf.cast(candidates, tf.int32), -1), wanted)


class Chosen(NamedTuple):
    """A sample's elements one after the other, positive ones first.

    Attributes:
      index: int32 [..., k]; of any element where not `valid`.
      valid: bool [..., k], whether the sample has so many elements.
      positive: bool [..., k].
    """

    index: tf.Tensor
    valid: tf.Tensor
    positive: tf.Tensor


def compact(sample: Sample, size: int) -> Chosen:
    """Returns the first `size` elements of a sample, positive ones first, each kind in the order of the elements."""
    rank = 2 * tf.cast(sample.positive, tf.float32) + tf.cast(sample.negative, tf.float32)
    # top_k takes the first of equal ranks.
    rank, index = tf.math.top_k(rank, size)
    return Chosen(index, rank > 0, rank > 1)
