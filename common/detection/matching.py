"""Which ground truth an anchor, or a proposal, stands for."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

NEGATIVE, IGNORED, POSITIVE = 0, -1, 1


class Match(NamedTuple):
    """`index` int32 [..., A]: of the ground truth; `state` int32 [..., A]: POSITIVE, NEGATIVE or IGNORED.

    Where the state is not POSITIVE the index is that of the best overlap, 0 if there is none.
    """

    index: tf.Tensor
    state: tf.Tensor


def match(iou: tf.Tensor, valid: tf.Tensor, positive: float, negative: float, force: bool) -> Match:
    """Matches every anchor to the ground truth it overlaps most.

    Args:
      iou: [..., A, G] of anchors with ground truths.
      valid: bool [..., G]; the others are padding.
      positive: an anchor of at least this overlap is positive.
      negative: one below this is negative, one in between ignored. SSD: 0.5 and 0.5; RPN: 0.7 and 0.3
        (mlperf_facts 2).
      force: the anchor that a ground truth overlaps most is positive and matched to it, whatever the overlap, unless
        that is zero. Two ground truths that want the same anchor: the first gets it, as in tf-models-official's
        matcher.
    """
    iou = tf.where(valid[..., None, :], iou, -tf.ones_like(iou))
    index = tf.argmax(iou, -1, tf.int32)
    best = tf.reduce_max(iou, -1)
    # So that no ground truth at all means negative everywhere.
    state = tf.where(best >= positive, POSITIVE, tf.where(best < negative, NEGATIVE, IGNORED))
    if force:
        anchors, most = tf.argmax(iou, -2, tf.int32), tf.reduce_max(iou, -2)  # [..., G]
        wanted = tf.equal(tf.range(tf.shape(iou)[-2])[:, None], anchors[..., None, :])
        wanted &= (most > 0)[..., None, :]  # [..., A, G]
        forced = tf.reduce_any(wanted, -1)
        index = tf.where(forced, tf.argmax(tf.cast(wanted, tf.int32), -1, tf.int32), index)
        state = tf.where(forced, POSITIVE, state)
    return Match(index, state)
