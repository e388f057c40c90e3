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
PIXEL_CENTER = 0.5  # Place of a pixel's center in the coordinates of boxes.


def extra(geometry: str) -> float:
    """Returns what a side counts beyond right - left when boxes are decoded, or encoded from regions."""
    return 1.0 if geometry == "google" else 0.0


def _of_edges(anchors: np.ndarray, geometry: str) -> np.ndarray:
    """Returns anchors [A, 4], center form, in the coordinates of boxes, where the first pixel's edge is at 0."""
    return anchors + [PIXEL_CENTER, PIXEL_CENTER, 0, 0] if geometry == "nvidia" else anchors


def clipped(boxes: tf.Tensor, image_info: tf.Tensor, geometry: str) -> tf.Tensor:
    """Clips corners [b, n, m, 4] to the images' contents; `image_info` [b, 3] starts with their heights and widths."""
    size = tf.cast(image_info, boxes.dtype)[:, None, None, :2] - extra(geometry)
    return box_ops.clip(boxes, size[..., 0], size[..., 1])


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
    geometry: str = "plain",
) -> Proposals:
    """Suppresses within each level, among its `candidates` best anchors, then takes the best of all levels.

    No gradient flows through proposals.

    Args:
      logits, codes: [b, A_l] and [b, A_l, 4] of each level.
      anchors: centers [A_l, 4] of each level, in pixels.
      image_info: [b, 3], content height and width in pixels, and scale; boxes are clipped to the content, empty boxes
        dropped.
      candidates: maximum boxes per level before suppression.
      proposals: maximum boxes over all levels after suppression.
      overlap: IoU at or above which suppression drops the worse of two boxes of a level.
      geometry: see `Details`.
    """
    width = max(min(candidates, x.shape[1]) for x in logits)
    best, corners, there = [], [], []
    for score, code, center in zip(logits, codes, anchors):
        count = min(candidates, score.shape[1])
        top, index = tf.math.top_k(tf.stop_gradient(score), count)
        code = tf.gather(tf.stop_gradient(code), index, batch_dims=1)
        more = extra(geometry)
        # The corners of an anchor, and with them its sides, count as those of a box.
        center = _of_edges(center, geometry) + [more / 2, more / 2, more, more]
        center = tf.gather(tf.constant(center, code.dtype), index)
        missing = [[0, 0], [0, width - count]]
        best.append(tf.pad(top, missing))
        decoded = box_ops.decode(code, center, WEIGHTS, MAX_LOG_RATIO, more)
        corners.append(tf.pad(decoded, [*missing, [0, 0]]))
        there.append(tf.pad(tf.ones_like(top, tf.bool), missing))
    # All levels are suppressed at once, as [b, levels, width].
    ranked, inside, valid = tf.stack(best, 1), tf.stack(corners, 1), tf.stack(there, 1)
    inside = clipped(inside, image_info, geometry)
    large = box_ops.area(inside) > 0
    if geometry == "google":
        # Google also drops boxes whose center is outside; after the clipping there is none.
        least = 1 / tf.cast(image_info, inside.dtype)[:, None, None, 2:]
        large &= tf.reduce_all(inside[..., 2:] - inside[..., :2] >= least, -1)
    survivors = nms.suppress(inside, valid & large, overlap)
    ranked = tf.where(survivors, ranked, tf.fill(tf.shape(ranked), ranked.dtype.min))
    total = len(logits) * width
    top, index = tf.math.top_k(tf.reshape(ranked, [-1, total]), min(proposals, total))
    best_boxes = tf.gather(tf.reshape(inside, [-1, total, 4]), index, batch_dims=1)
    return Proposals(best_boxes, top > ranked.dtype.min)


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

    `anchors` of all levels are [A, 4] in center form, `boxes` corners [b, G, 4], `classes` int32 [b, G], 0 for padding.
    `image_info` [b, 3] starts with content height and width in pixels. `sampling.balanced` has the `noise` [b, A].
    """
    centers = tf.constant(_of_edges(anchors, config.details.geometry), boxes.dtype)
    corners = box_ops.to_corners(centers)
    iou = matching.overlaps(boxes, classes > 0, corners[None])
    thresholds = config.rpn_positive, config.rpn_negative
    matches = matching.match(iou, *thresholds, force=True, ties=config.details.geometry == "nvidia")
    counted = tf.ones_like(matches.state, tf.bool)
    if config.details.rpn_inside:
        # There a box's last pixel must be below the size, so that the box may end at the content's edge.
        end = tf.cast(image_info[:, None, :2], corners.dtype)
        counted = tf.reduce_all((corners[None, :, :2] >= 0) & (corners[None, :, 2:] <= end), -1)
    sample = sampling.balanced(
        counted & tf.equal(matches.state, matching.POSITIVE),
        counted & tf.equal(matches.state, matching.NEGATIVE),
        noise,
        config.sizes.rpn_batch,
        int(config.sizes.rpn_batch * config.rpn_foreground),
    )
    codes = box_ops.encode(tf.gather(boxes, matches.index, batch_dims=1), centers[None], WEIGHTS)
    return Targets(codes, sample.positive, sample.negative)
