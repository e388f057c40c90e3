"""Which ground truth an anchor, or a proposal, stands for."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from common.detection import boxes as box_ops

NEGATIVE, IGNORED, POSITIVE = 0, -1, 1


class Match(NamedTuple):
    """`index` int32 [..., A]: of the ground truth; `state` int32 [..., A]: POSITIVE, NEGATIVE or IGNORED.

    Where the state is not POSITIVE the index is that of the best overlap, 0 if there is none.
    """

    index: tf.Tensor
    state: tf.Tensor


def overlaps(boxes: tf.Tensor, valid: tf.Tensor, anchors: tf.Tensor) -> tf.Tensor:
    """Intersection over union of ground truths with anchors, [..., G, A]; 0 of padding.

    Args:
      boxes: corners [..., G, 4].
      valid: bool [..., G]; the others are padding.
      anchors: corners [..., A, 4].
    """
    return box_ops.iou(tf.where(valid[..., None], boxes, tf.zeros_like(boxes)), anchors)


def match(iou: tf.Tensor, positive: float, negative: float, force: bool) -> Match:
    """Matches every anchor to the ground truth it overlaps most.

    Args:
      iou: [..., G, A], see `overlaps`. The anchors, of which there are many, come last: reductions over either axis
        are then fast on a CPU.
      positive: an anchor of at least this overlap is positive.
      negative: one below this is negative, one in between ignored. SSD: 0.5 and 0.5; RPN: 0.7 and 0.3
        (mlperf_facts 2).
      force: the anchor that a ground truth overlaps most is positive and matched to it, whatever the overlap, unless
        that is zero. Two ground truths that want the same anchor: the first gets it, as in tf-models-official's
        matcher.
    """
    index = tf.argmax(iou, -2, tf.int32)
    best = tf.reduce_max(iou, -2)
    # So that no ground truth at all means negative everywhere.
    state = tf.where(best >= positive, POSITIVE, tf.where(best < negative, NEGATIVE, IGNORED))
    if force:
        wanting = _first_that_wants(iou)
        forced = wanting < tf.shape(iou)[-2]
        index, state = tf.where(forced, wanting, index), tf.where(forced, POSITIVE, state)
    return Match(index, state)


def _first_that_wants(iou: tf.Tensor) -> tf.Tensor:
    """Of each anchor the first ground truth that overlaps it most, int32 [..., A]; G or more where there is none."""
    truths, anchors = tf.unstack(tf.shape(iou)[-2:])
    wanted = tf.where(tf.reduce_max(iou, -1) > 0, tf.argmax(iou, -1, tf.int32), anchors)
    rows = tf.reshape(wanted, [-1, truths])  # One more anchor for the ground truths that want none.
    place = rows + tf.range(tf.shape(rows)[0])[:, None] * (anchors + 1)
    number = tf.broadcast_to(tf.range(truths), tf.shape(rows))
    first = tf.math.unsorted_segment_min(number, place, tf.shape(rows)[0] * (anchors + 1))
    shape = tf.concat([tf.shape(iou)[:-2], [anchors + 1]], 0)
    return tf.reshape(first, shape)[..., :-1]
