"""Samples the second stage's training regions, and computes their targets: classes, boxes and masks."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from common.detection import boxes as box_ops
from common.detection import matching, roi_align, sampling
from maskrcnn.config import Config
from maskrcnn.rpn import Proposals, extra

WEIGHTS = (10.0, 10.0, 5.0, 5.0)  # scales of the box codes (docs/sources.md, mlperf 2)


class Regions(NamedTuple):
    """A sample of each image's proposals and objects; regions with an object come first.

    Attributes:
      boxes: corners [b, n, 4]; no gradient flows to them.
      valid: bool [b, n]: False where the sample has fewer than n regions.
      classes: int32 [b, n]: class of the object, 0 for background.
      codes: [b, n, 4]: the object's box, encoded from the region; any finite number where the class is 0.
      index: int32 [b, n]: number of the object.
    """

    boxes: tf.Tensor
    valid: tf.Tensor
    classes: tf.Tensor
    codes: tf.Tensor
    index: tf.Tensor


def positives(config: Config) -> int:
    """Returns the maximum number of regions with an object per image; they come first, and only they have a mask."""
    return int(config.sizes.roi_batch * config.sizes.roi_foreground)


def candidates(config: Config) -> int:
    """Returns the number of proposals and objects to draw the sample from."""
    return config.sizes.rpn_post_nms + config.max_instances


def sample(
    proposals: Proposals, boxes: tf.Tensor, classes: tf.Tensor, noise: tf.Tensor, config: Config
) -> Regions:
    """Samples proposals [b, p] and objects; at most `positives(config)` of them overlap an object enough.

    As published, at most a quarter overlap an object by 0.5 or more. `boxes` are corners [b, G, 4], `classes` int32
    [b, G], 0 for padding. `sampling.balanced` has the `noise`, at least [b, p + G].
    """
    regions = tf.concat([tf.cast(proposals.boxes, boxes.dtype), boxes], 1)
    there = tf.concat([proposals.valid, classes > 0], 1)
    total = regions.shape[1]
    iou = matching.overlaps(boxes, classes > 0, regions)
    matches = matching.match(iou, config.roi_positive, config.roi_positive, force=False)
    positive = tf.equal(matches.state, matching.POSITIVE) & there
    slots = sampling.compact(
        sampling.balanced(
            positive, ~positive & there, noise[:, :total], config.sizes.roi_batch, positives(config)
        ),
        min(config.sizes.roi_batch, total),
    )
    regions, index = (tf.gather(x, slots.index, batch_dims=1) for x in (regions, matches.index))
    label = tf.where(slots.positive, tf.gather(classes, index, batch_dims=1), 0)
    objects = tf.gather(boxes, index, batch_dims=1)
    # A region without an object may be empty, which would make its code infinite, so a box of one pixel replaces it.
    reference = tf.where(slots.positive[..., None], regions, tf.ones_like(regions) * [0.0, 0.0, 1.0, 1.0])
    more = extra(config.details.geometry)
    codes = box_ops.encode(objects, box_ops.to_centers(reference, more), WEIGHTS, more)
    return Regions(tf.stop_gradient(regions), slots.valid, label, codes, index)


def mask_targets(regions: Regions, boxes: tf.Tensor, masks: tf.Tensor, count: int, size: int) -> tf.Tensor:
    """Crops object masks to the first `count` regions of `sample`: [b, count, size, size] of 0 and 1.

    The masks [b, G, S, S] fill the objects' boxes [b, G, 4]. As published, `count` is 128 and `size` 28.
    """
    index = regions.index[:, :count]
    object_masks = tf.gather(masks, index, batch_dims=1)
    inside = tf.gather(boxes, index, batch_dims=1)
    crops = roi_align.crop_masks(object_masks, inside, regions.boxes[:, :count], size)
    return tf.cast(crops >= 0.5, boxes.dtype)
