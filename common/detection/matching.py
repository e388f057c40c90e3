"""Matches anchors and proposals to ground truths."""

from typing import NamedTuple

import tensorflow as tf

from common.detection import boxes as box_ops

NEGATIVE, IGNORED, POSITIVE = 0, -1, 1
_EQUAL = 1 - 1e-6  # Overlaps that differ by less tie: two kernels may round the same overlap differently.


class Match(NamedTuple):
    """Each anchor's ground truth `index`, int32 [..., A], and `state`, int32 [..., A]: POSITIVE, NEGATIVE or IGNORED.

    If the state is not POSITIVE, the index is the ground truth with the largest overlap, or 0 without any overlap.
    """

    index: tf.Tensor
    state: tf.Tensor


def overlaps(boxes: tf.Tensor, valid: tf.Tensor, anchors: tf.Tensor) -> tf.Tensor:
    """Returns the intersection over union [..., G, A] of ground truths and anchors; 0 if not `valid` [..., G]."""
    return box_ops.iou(tf.where(valid[..., None], boxes, tf.zeros_like(boxes)), anchors)


def match(iou: tf.Tensor, positive: float, negative: float, force: bool, ties: bool = False) -> Match:
    """Matches every anchor to the ground truth it overlaps most.

    Args:
      iou: [..., G, A], see `overlaps`. There are many anchors; as the last axis, they make reductions over either axis
        fast on a CPU.
      positive: an anchor with at least this overlap is positive.
      negative: an anchor with less overlap is negative; one in between is ignored. SSD: 0.5 and 0.5; RPN: 0.7 and 0.3
        (docs/sources.md, mlperf 2).
      force: whether to match each ground truth to its best anchor, whatever the overlap, unless it is zero; the anchor
        is then positive. If several ground truths have the same best anchor, the first one gets it, as in
        tf-models-official's matcher.
      ties: with `force`, all anchors that tie for a ground truth's best overlap become positive, and each keeps the
        ground truth that it overlaps most, as in Detectron (REF maskrcnn_benchmark/modeling/matcher.py). A small object
        lies inside many anchors, which all tie.
    """
    index = tf.argmax(iou, -2, tf.int32)
    best = tf.reduce_max(iou, -2)
    # In this order, all anchors are negative if there is no ground truth.
    state = tf.where(best >= positive, POSITIVE, tf.where(best < negative, NEGATIVE, IGNORED))
    if force and ties:
        most = tf.reduce_max(iou, -1, keepdims=True)
        forced = tf.reduce_any((iou >= most * _EQUAL) & (most > 0), -2)
        state = tf.where(forced, POSITIVE, state)
    elif force:
        claimant = _first_claimant(iou)
        forced = claimant < tf.shape(iou)[-2]
        index, state = tf.where(forced, claimant, index), tf.where(forced, POSITIVE, state)
    return Match(index, state)


def _first_claimant(iou: tf.Tensor) -> tf.Tensor:
    """Returns for each anchor the first ground truth that has it as best anchor, int32 [..., A]; G or more for none."""
    truths, anchors = tf.unstack(tf.shape(iou)[-2:])
    claimed = tf.where(tf.reduce_max(iou, -1) > 0, tf.argmax(iou, -1, tf.int32), anchors)
    rows = tf.reshape(claimed, [-1, truths])  # Ground truths without any overlap claim anchor A.
    place = rows + tf.range(tf.shape(rows)[0])[:, None] * (anchors + 1)
    number = tf.broadcast_to(tf.range(truths), tf.shape(rows))
    first = tf.math.unsorted_segment_min(number, place, tf.shape(rows)[0] * (anchors + 1))
    shape = tf.concat([tf.shape(iou)[:-2], [anchors + 1]], 0)
    return tf.reshape(first, shape)[..., :-1]
