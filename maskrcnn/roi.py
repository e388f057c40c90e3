"""The regions that the second stage is trained on, and what it ought to say of them."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from common.detection import boxes as box_ops
from common.detection import matching, roi_align, sampling
from maskrcnn.config import Config
from maskrcnn.rpn import Proposals

WEIGHTS = (10.0, 10.0, 5.0, 5.0)  # scales of the codes of boxes (mlperf_facts 2)


class Regions(NamedTuple):
    """A sample of each image's proposals and objects, those with an object first.

    Attributes:
      boxes: corners [b, n, 4]; no gradient flows to them.
      valid: bool [b, n]: whether there is a region at all.
      classes: int32 [b, n]: of the object, 0 for background.
      codes: [b, n, 4]: from the region to the object's box; any finite number where the class is 0.
      index: int32 [b, n]: of the object.
    """

    boxes: tf.Tensor
    valid: tf.Tensor
    classes: tf.Tensor
    codes: tf.Tensor
    index: tf.Tensor


def positives(config: Config) -> int:
    """How many of an image's regions may hold an object; these are the first ones, and the ones with a mask."""
    return int(config.roi_batch * config.roi_foreground)


def candidates(config: Config) -> int:
    """How many regions the sample is drawn from: proposals and objects."""
    return config.rpn_post_nms + config.max_instances


def sample(
    proposals: Proposals, boxes: tf.Tensor, classes: tf.Tensor, noise: tf.Tensor, config: Config
) -> Regions:
    """Draws from proposals and objects: at most a quarter that overlap an object by half, the rest that do not.

    Args:
      proposals: [b, p].
      boxes: of the objects, corners [b, G, 4].
      classes: int32 [b, G], 0 for padding.
      noise: [b, p + G] at least, see `sampling.balanced`.
      config: `roi_*`.
    """
    regions = tf.concat([tf.cast(proposals.boxes, boxes.dtype), boxes], 1)
    there = tf.concat([proposals.valid, classes > 0], 1)
    total = regions.shape[1]
    iou = matching.overlaps(boxes, classes > 0, regions)
    found = matching.match(iou, config.roi_positive, config.roi_positive, force=False)
    positive = tf.equal(found.state, matching.POSITIVE) & there
    chosen = sampling.compact(
        sampling.balanced(positive, ~positive & there, noise[:, :total], config.roi_batch, positives(config)),
        min(config.roi_batch, total),
    )
    regions, index = (tf.gather(x, chosen.index, batch_dims=1) for x in (regions, found.index))
    label = tf.where(chosen.positive, tf.gather(classes, index, batch_dims=1), 0)
    objects = tf.gather(boxes, index, batch_dims=1)
    # Where there is no object the region may be empty: its code would be infinite.
    reference = tf.where(chosen.positive[..., None], regions, tf.ones_like(regions) * [0.0, 0.0, 1.0, 1.0])
    codes = box_ops.encode(objects, box_ops.to_centres(reference), WEIGHTS)
    return Regions(tf.stop_gradient(regions), chosen.valid, label, codes, index)


def mask_targets(regions: Regions, boxes: tf.Tensor, masks: tf.Tensor, count: int, size: int) -> tf.Tensor:
    """What the first `count` regions show of their object's mask: [b, count, size, size] of 0 and 1.

    Args:
      regions: `sample`.
      boxes: of the objects, corners [b, G, 4].
      masks: [b, G, S, S], each filling its object's box.
      count, size: 128 and 28 as published.
    """
    index = regions.index[:, :count]
    chosen = tf.gather(masks, index, batch_dims=1)
    inside = tf.gather(boxes, index, batch_dims=1)
    shown = roi_align.crop_masks(chosen, inside, regions.boxes[:, :count], size)
    return tf.cast(shown >= 0.5, boxes.dtype)
