"""Detects objects: proposals, box head, per-class suppression, then masks for the detections."""

import tensorflow as tf

from common.detection import boxes as box_ops
from common.detection import nms
from common.train.task import Batch
from maskrcnn import model as networks
from maskrcnn import roi, rpn
from maskrcnn.config import Config


def detect(model: networks.MaskRCNN, batch: Batch, config: Config) -> dict[str, tf.Tensor]:
    """Finds the detections of each `image` [b, H, W, 3] with `image_info` [b, 3] of a batch, best first.

    Returns `boxes` [b, D, 4], corners in pixels of the frame; `scores` [b, D]; `classes` int32 [b, D], 0 for no
    detection; and `masks` [b, D, 28, 28], the probability of the detection's class in its box. Floats are float32,
    boxes of a float64 network float64: an evaluation rounds them after it has divided them.
    """
    image, info = batch["image"], batch["image_info"]
    features = model.features(image, training=False)
    anchors = networks.anchors(config, *image.shape[1:3])
    limits = config.sizes.rpn_eval_pre_nms, config.sizes.rpn_post_nms, config.rpn_nms_iou
    proposals = rpn.propose(features.logits, features.codes, anchors, info, *limits, config.details.geometry)
    outputs = model.heads(features.maps, proposals.boxes)
    detections = nms.per_class(
        boxes_of(outputs.codes, proposals.boxes, info, config.details.geometry),
        scores_of(outputs.logits, proposals.valid),
        config.score_threshold,
        config.nms_iou,
        proposals.boxes.shape[1],
        config.sizes.detections,
        config.sizes.rpn_post_nms if config.details.geometry == "google" else 0,
    )
    masks = model.masks(features.maps, detections.boxes, detections.classes)
    return {
        "boxes": detections.boxes
        if detections.boxes.dtype == tf.float64
        else tf.cast(detections.boxes, tf.float32),
        "scores": tf.cast(detections.scores, tf.float32),
        "classes": detections.classes,
        "masks": tf.cast(tf.sigmoid(masks), tf.float32),
    }


def scores_of(logits: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
    """Computes class probabilities [b, n, classes - 1], without the background; 0 where `valid` is False."""
    scores = tf.nn.softmax(logits)[..., 1:]
    return tf.where(valid[..., None], scores, tf.zeros_like(scores))


def boxes_of(
    codes: tf.Tensor, regions: tf.Tensor, image_info: tf.Tensor, geometry: str = "plain"
) -> tf.Tensor:
    """Decodes each region's box for each class: corners [b, n, classes - 1, 4], clipped to the image's content."""
    more = rpn.extra(geometry)
    centers = box_ops.to_centers(regions, more)[:, :, None]
    boxes = box_ops.decode(codes[:, :, 1:], centers, roi.WEIGHTS, rpn.MAX_LOG_RATIO, more)
    return rpn.clipped(boxes, image_info, geometry)
