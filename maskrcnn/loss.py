"""Computes the five losses of Mask R-CNN.

`config.details.loss_divisors` selects the divisors: Google's (docs/sources.md, mlperf 2), or the reference's, which are
Detectron's. Every loss is a mean over a replica's micro-batch, then averaged over replicas. The optimizer adds weight
decay to the gradients.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from common.detection import sampling
from common.train.task import Batch, Reduction, WeightedSum
from maskrcnn import model as networks
from maskrcnn import roi, rpn
from maskrcnn.config import Config

RPN_DELTA = 1 / 9  # delta of the Huber loss on proposal codes; the box head uses 1
_RPN_USE, _ROI_USE = 1, 2  # distinguish a step's two independent samples


def losses(
    model: networks.MaskRCNN, batch: Batch, config: Config, step: tf.Tensor
) -> Mapping[str, WeightedSum]:
    """Computes the loss terms of a micro-batch on one replica: "rpn_score", "rpn_box", "class", "box", "mask".

    Args:
      model: the network from `maskrcnn.model.build`.
      batch: `image` [b, H, W, 3] of one of `config.shapes`, `image_info` [b, 3], `boxes` [b, G, 4], `classes` [b, G],
        `masks` [b, G, S, S], `image_id` [b], `weight` [b]; see maskrcnn/input.py. Weight 0 excludes an image.
      step: int64 scalar from `model.next_draw()`; with the seed and the image ids it determines which anchors and
        regions are sampled.
    """
    variable = model.precision.variable
    image, info, ids = batch["image"], batch["image_info"], batch["image_id"]
    boxes, classes = tf.cast(batch["boxes"], variable), batch["classes"]
    weight = tf.cast(batch["weight"], variable)
    features = model.features(image, training=True)

    anchors = networks.anchors(config, *image.shape[1:3])
    draw = sampling.noise(config.seed, step, ids, sum(map(len, anchors)), _RPN_USE)
    targets = rpn.targets(np.concatenate(anchors), boxes, classes, tf.cast(draw, variable), info, config)
    limits = config.sizes.rpn_pre_nms, config.sizes.rpn_post_nms, config.rpn_nms_iou
    proposals = rpn.propose(features.logits, features.codes, anchors, info, *limits, config.details.geometry)

    draw = sampling.noise(config.seed, step, ids, roi.candidates(config), _ROI_USE)
    regions = roi.sample(proposals, boxes, classes, tf.cast(draw, variable), config)
    # Regions with an object come first.
    count = min(roi.positives(config), regions.boxes.shape[1])
    labels = regions.classes[:, :count]
    predicted = model.heads(features.maps, regions.boxes, regions.boxes[:, :count], labels)
    masks = roi.mask_targets(regions, boxes, batch["masks"], count, config.mask_size)
    of_samples = config.details.loss_divisors == "sampled"
    return {
        "rpn_score": rpn_score_loss(
            features.logits, targets, weight, 0 if of_samples else config.sizes.rpn_batch
        ),
        "rpn_box": (rpn_box_loss_of_samples if of_samples else rpn_box_loss)(features.codes, targets, weight),
        "class": class_loss(predicted.logits, regions, weight),
        "box": box_loss(predicted.codes, regions, weight, of_samples),
        "mask": mask_loss(predicted.masks, masks, labels, weight),
    }


def huber(error: tf.Tensor, delta: float) -> tf.Tensor:
    """Computes the Huber loss: error^2 / 2 up to `delta`, then linear with the slope at `delta`."""
    size = tf.abs(error)
    return tf.where(size < delta, 0.5 * size * size, delta * (size - 0.5 * delta))


def rpn_score_loss(
    logits: Sequence[tf.Tensor], targets: rpn.Targets, weight: tf.Tensor, anchors: int
) -> WeightedSum:
    """Computes the cross-entropy of the sampled anchors.

    The divisor is `anchors` per image, even if fewer are found; 0 divides by the number found.
    """
    logits = tf.concat(logits, 1)
    entropy = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(targets.positive, logits.dtype), logits)
    counted = tf.where(targets.positive | targets.negative, entropy, tf.zeros_like(entropy))
    total = tf.reduce_sum(tf.reduce_sum(counted, -1) * weight)
    count = anchors * tf.reduce_sum(weight) if anchors else _sampled(targets, weight)
    return WeightedSum(total, count, Reduction.REPLICA)


def rpn_box_loss(codes: Sequence[tf.Tensor], targets: rpn.Targets, weight: tf.Tensor) -> WeightedSum:
    """Computes each level's mean Huber loss over the four numbers of its positive anchors, and sums the levels."""
    sizes = [x.shape[1] for x in codes]
    error = huber(tf.concat(codes, 1) - targets.codes, RPN_DELTA)
    counted = tf.where(targets.positive[..., None], error, tf.zeros_like(error))
    sums = tf.split(tf.reduce_mean(counted, -1) * weight[:, None], sizes, 1)
    counts = tf.split(tf.cast(targets.positive, error.dtype) * weight[:, None], sizes, 1)
    means = [tf.math.divide_no_nan(tf.reduce_sum(s), tf.reduce_sum(n)) for s, n in zip(sums, counts)]
    return WeightedSum(tf.add_n(means), tf.ones([], error.dtype), Reduction.REPLICA)


def rpn_box_loss_of_samples(
    codes: Sequence[tf.Tensor], targets: rpn.Targets, weight: tf.Tensor
) -> WeightedSum:
    """Sums smooth L1 over the four numbers of all positive anchors, and divides by the number of sampled anchors.

    The smooth L1 loss of REF maskrcnn_benchmark/layers/smooth_l1_loss.py, with a beta of 1/9, is nine times the Huber
    loss. modeling/rpn/loss.py has the divisor.
    """
    error = huber(tf.concat(codes, 1) - targets.codes, RPN_DELTA) / RPN_DELTA
    counted = tf.where(targets.positive[..., None], error, tf.zeros_like(error))
    total = tf.reduce_sum(tf.reduce_sum(counted, [1, 2]) * weight)
    return WeightedSum(total, _sampled(targets, weight), Reduction.REPLICA)


def _sampled(targets: rpn.Targets, weight: tf.Tensor) -> tf.Tensor:
    """Counts the sampled anchors in images with nonzero weight."""
    sampled = tf.cast(targets.positive | targets.negative, weight.dtype)
    return tf.reduce_sum(tf.reduce_sum(sampled, -1) * weight)


def class_loss(logits: tf.Tensor, regions: roi.Regions, weight: tf.Tensor) -> WeightedSum:
    """Computes the mean cross-entropy over all regions."""
    entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(regions.classes, logits)
    counted = tf.cast(regions.valid, entropy.dtype) * weight[:, None]
    return WeightedSum(tf.reduce_sum(entropy * counted), tf.reduce_sum(counted), Reduction.REPLICA)


def box_loss(
    codes: tf.Tensor, regions: roi.Regions, weight: tf.Tensor, of_samples: bool = False
) -> WeightedSum:
    """Computes the mean loss over the four numbers of the object's class, over regions with an object.

    With `of_samples`, divides the sum by the number of all regions (REF modeling/roi_heads/box_head/loss.py).
    """
    of_class = tf.gather(codes, regions.classes, batch_dims=2)
    positive = regions.classes > 0
    error = tf.where(positive[..., None], of_class - regions.codes, tf.zeros_like(of_class))
    counted = tf.cast(positive, error.dtype) * weight[:, None]
    loss = tf.reduce_sum(tf.reduce_mean(huber(error, 1.0), -1) * weight[:, None])
    if of_samples:
        regions_that_count = tf.cast(regions.valid, error.dtype) * weight[:, None]
        return WeightedSum(4 * loss, tf.reduce_sum(regions_that_count), Reduction.REPLICA)
    return WeightedSum(loss, tf.reduce_sum(counted), Reduction.REPLICA)


def mask_loss(logits: tf.Tensor, masks: tf.Tensor, classes: tf.Tensor, weight: tf.Tensor) -> WeightedSum:
    """Computes the mean cross-entropy over the mask pixels of regions with an object.

    `logits`, for the object's class, and `masks` of 0 and 1 are [b, m, 28, 28], `classes` int32 [b, m], `weight` [b].
    """
    entropy = tf.nn.sigmoid_cross_entropy_with_logits(masks, logits)
    counted = tf.cast(classes > 0, entropy.dtype) * weight[:, None]
    total = tf.reduce_sum(tf.reduce_mean(entropy, [2, 3]) * counted)
    return WeightedSum(total, tf.reduce_sum(counted), Reduction.REPLICA)
