"""Random samples of anchors and proposals: balanced, of exact size, and the same wherever an image is computed."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from common.detection import topk


def noise(seed: int, step: tf.Tensor, image_id: tf.Tensor, count: int, use: int = 0) -> tf.Tensor:
    """Numbers in [0, 1), float32 [b, count], that depend on seed, step, each image's id and use only.

    fp32 in every precision, so that all of them draw the same sample.

    Args:
      seed: of the run; seeds that differ by 2^31 draw the same.
      step: int64 scalar, below 2^32.
      image_id: int64 [b], below 2^32.
      count: numbers for each image.
      use: which of a step's samples they are for, below 2^31.
    """
    # Of integers XLA draws the same as TensorFlow, of floating-point numbers other ones.
    first = use % 2**31 * 2**32 + tf.cast(step, tf.int64)
    second = seed % 2**31 * 2**32 + tf.cast(image_id, tf.int64)
    keys = [tf.stack([first, word]) for word in tf.unstack(second)]
    bits = [tf.random.stateless_uniform([count], key, None, None, tf.int32, alg="philox") for key in keys]
    low = tf.bitwise.bitwise_and(tf.stack(bits), 2**24 - 1)
    return tf.cast(low, tf.float32) * 2.0**-24


class Sample(NamedTuple):
    """Which elements were drawn: bool [..., n] each, disjoint."""

    positive: tf.Tensor
    negative: tf.Tensor


def balanced(positive: tf.Tensor, negative: tf.Tensor, noise: tf.Tensor, size: int, positives: int) -> Sample:
    """At most `positives` of the positive elements, and negative ones until there are `size`.

    Exactly min(positives, number of positive) and min(size - that, number of negative) are drawn: those of the largest
    noise; of equal noise the first.

    Args:
      positive, negative: bool [..., n], disjoint.
      noise: floating [..., n], at least 0.
      size, positives: 256 and 128 of the RPN, 512 and 128 of the second stage (mlperf_facts 2).
    """

    def draw(candidates: tf.Tensor, wanted: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        count = tf.minimum(tf.reduce_sum(tf.cast(candidates, tf.int32), -1), wanted)
        return topk.topk_mask(tf.where(candidates, noise, -tf.ones_like(noise)), count, exact=True), count

    chosen, count = draw(positive, tf.constant(positives))
    return Sample(chosen, draw(negative, size - count)[0])


class Chosen(NamedTuple):
    """A sample's elements one after the other, positive ones first: `index` int32 [..., k], and bool [..., k] whether
    there is one and whether it is positive. Where there is none the index is that of something else.
    """

    index: tf.Tensor
    valid: tf.Tensor
    positive: tf.Tensor


def compact(sample: Sample, size: int) -> Chosen:
    """The `size` first elements of a sample, positive ones first, each kind in the order of the elements."""
    rank = 2 * tf.cast(sample.positive, tf.float32) + tf.cast(sample.negative, tf.float32)
    # Of equal ranks top_k takes the first.
    rank, index = tf.math.top_k(rank, size)
    return Chosen(index, rank > 0, rank > 1)
