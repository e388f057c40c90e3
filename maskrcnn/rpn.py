"""Proposes regions from the outputs of the region proposal network, and computes the targets of its anchors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from common.detection import boxes as box_ops
from common.detection import matching, nms, sampling
from maskrcnn.config import Config

WEIGHTS = (1.0, 1.0, 1.0, 1.0)  # scales of the proposal codes
# Bounds exp() of a code, which would overflow early in training; from TFM official/vision/ops/box_ops.py.
MAX_LOG_RATIO = math.log(1000 / 16)


class Proposals(NamedTuple):
    """The best regions of each image, best first: corners [b, n, 4] in pixels; `valid` [b, n] is False for padding."""

    boxes: tf.Tensor
    valid: tf.Tensor


def propose(
    logits: Sequence[tf.Tensor],
    codes: Sequence[tf.Tensor],
    anchors: Sequence[np.ndarray],
    image_info: tf.Tensor,
    candidates: int,
    proposals: int,
    overlap: float,
) -> Proposals:
    """Suppresses within each level, among its `candidates` best anchors, then takes the best of all levels.

    No gradient flows through proposals.

    Args:
      logits, codes: [b, A_l] and [b, A_l, 4] of each level.
      anchors: centres [A_l, 4] of each level, in pixels.
      image_info: [b, 3], starting with content height and width in pixels; boxes are clipped to these, empty boxes
        dropped.
      candidates: maximum boxes per level before suppression.
      proposals: maximum boxes over all levels after suppression.
      overlap: IoU at or above which suppression drops the worse of two boxes of a level.
    """
    width = max(min(candidates, x.shape[1]) for x in logits)
    best, corners, there = [], [], []
    for score, code, centre in zip(logits, codes, anchors):
        count = min(candidates, score.shape[1])
        top, index = tf.math.top_k(tf.stop_gradient(score), count)
        code = tf.gather(tf.stop_gradient(code), index, batch_dims=1)
        centre = tf.gather(tf.constant(centre, code.dtype), index)
        missing = [[0, 0], [0, width - count]]
        best.append(tf.pad(top, missing))
        corners.append(tf.pad(box_ops.decode(code, centre, WEIGHTS, MAX_LOG_RATIO), [*missing, [0, 0]]))
        there.append(tf.pad(tf.ones_like(top, tf.bool), missing))
    # All levels are suppressed at once, as [b, levels, width].
    ranked, inside, valid = tf.stack(best, 1), tf.stack(corners, 1), tf.stack(there, 1)
    size = tf.cast(image_info, inside.dtype)[:, None, None, :2]
    inside = box_ops.clip(inside, size[..., 0], size[..., 1])
    kept = nms.suppress(inside, valid & (box_ops.area(inside) > 0), overlap)
    ranked = tf.where(kept, ranked, tf.fill(tf.shape(ranked), ranked.dtype.min))
    total = len(logits) * width
    top, index = tf.math.top_k(tf.reshape(ranked, [-1, total]), min(proposals, total))
    chosen = tf.gather(tf.reshape(inside, [-1, total, 4]), index, batch_dims=1)
    return Proposals(chosen, top > ranked.dtype.min)


class Targets(NamedTuple):
    """Targets of the region proposal network; the losses ignore anchors that are neither positive nor negative.

    Attributes:
      codes: [b, A, 4], meaningful where `positive`.
      positive, negative: bool [b, A]: sampled anchors with an object, and without one.
    """

    codes: tf.Tensor
    positive: tf.Tensor
    negative: tf.Tensor


def targets(
    anchors: np.ndarray,
    boxes: tf.Tensor,
    classes: tf.Tensor,
    noise: tf.Tensor,
    image_info: tf.Tensor,
    config: Config,
) -> Targets:
    """Matches every anchor with the objects, draws a balanced sample and encodes it.

    Args:
      anchors: centre form [A, 4] of all levels.
      boxes: object boxes, corners [b, G, 4].
      classes: int32 [b, G], 0 for padding.
      noise: [b, A]; see `sampling.balanced`.
      image_info: [b, 3], starting with content height and width in pixels.
      config: the `rpn_*` fields are read.
    """
    centres = tf.constant(anchors, boxes.dtype)
    corners = box_ops.to_corners(centres)
    iou = matching.overlaps(boxes, classes > 0, corners[None])
    matches = matching.match(iou, config.rpn_positive, config.rpn_negative, force=True)
    counted = tf.ones_like(matches.state, tf.bool)
    if config.rpn_inside:
        end = tf.cast(image_info[:, None, :2], corners.dtype)
        counted = tf.reduce_all((corners[None, :, :2] >= 0) & (corners[None, :, 2:] < end), -1)
    sample = sampling.balanced(
        counted & tf.equal(matches.state, matching.POSITIVE),
        counted & tf.equal(matches.state, matching.NEGATIVE),
        noise,
        config.rpn_batch,
        int(config.rpn_batch * config.rpn_foreground),
    )
    codes = box_ops.encode(tf.gather(boxes, matches.index, batch_dims=1), centres[None], WEIGHTS)
    return Targets(codes, sample.positive, sample.negative)
