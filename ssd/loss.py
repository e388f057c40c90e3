"""Computes SSD's loss: smooth L1 of the positives' codes, cross-entropy of the positives and the hardest negatives.

Each image's loss is divided by its own number of positives, then averaged over images (docs/sources.md, mlperf 2). An
image without positives counts as a loss of zero.
"""

from typing import NamedTuple

import tensorflow as tf

from common.detection import boxes as box_ops
from common.detection import matching, topk


class Targets(NamedTuple):
    """Anchor targets: codes [b, A, 4]; classes int32 [b, A], 0 for the background."""

    codes: tf.Tensor
    classes: tf.Tensor


def targets(boxes: tf.Tensor, classes: tf.Tensor, anchors: tf.Tensor, overlap: float) -> Targets:
    """Matches anchors [A, 4] in center form with boxes, corners [b, G, 4], and encodes the boxes of positive anchors.

    An anchor is positive from an IoU of `overlap`, or if it is an object's best. A class of 0 in [b, G] is padding.
    """
    iou = matching.overlaps(boxes, classes > 0, box_ops.to_corners(anchors)[None])
    matches = matching.match(iou, overlap, overlap, force=True)
    matched = tf.gather(boxes, matches.index, batch_dims=1)
    label = tf.gather(classes, matches.index, batch_dims=1)
    positive = tf.equal(matches.state, matching.POSITIVE)
    codes = box_ops.encode(matched, anchors[None])
    return Targets(tf.where(positive[..., None], codes, tf.zeros_like(codes)), tf.where(positive, label, 0))


def hard_negatives(losses: tf.Tensor, positive: tf.Tensor, ratio: int) -> tf.Tensor:
    """Marks the negatives with the largest losses, `ratio` per positive of the image, bool [b, A].

    It includes ties with the last one. `losses`, [b, A], are at least 0.
    """
    count = ratio * tf.reduce_sum(tf.cast(positive, tf.int32), -1)
    available = tf.reduce_sum(tf.cast(~positive, tf.int32), -1)
    masked = tf.where(positive, -tf.ones_like(losses), losses)
    return topk.topk_mask(masked, tf.minimum(count, available)) & ~positive


def per_image(codes: tf.Tensor, logits: tf.Tensor, targets: Targets, ratio: int) -> tf.Tensor:
    """Computes the loss of each image, [b], of the network's codes [b, A, 4] and logits [b, A, classes].

    `ratio` is the number of negatives per positive.
    """
    positive = targets.classes > 0
    count = tf.reduce_sum(tf.cast(positive, codes.dtype), -1)
    error = tf.abs(codes - tf.cast(targets.codes, codes.dtype))
    smooth = tf.reduce_sum(tf.where(error < 1, 0.5 * error * error, error - 0.5), -1)
    entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(targets.classes, logits)
    counted = positive | hard_negatives(entropy, positive, ratio)
    box_loss = tf.reduce_sum(tf.where(positive, smooth, tf.zeros_like(smooth)), -1)
    class_loss = tf.reduce_sum(tf.where(counted, entropy, tf.zeros_like(entropy)), -1)
    return (box_loss + class_loss) / tf.maximum(count, 1)
