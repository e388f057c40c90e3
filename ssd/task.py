"""Defines the task of SSD: the multibox loss, detections, COCO's mean average precision."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
import tf_keras

from common.detection import boxes as box_ops
from common.detection import coco_records, nms
from common.distributed.replicas.base import Replicas
from common.distributed.spatial import Spatial
from common.layers.precision import Precision
from common.train import task
from common.train.task import Batch, Outputs, Quality, WeightedSum
from ssd import backbone, model
from ssd import input as pipeline
from ssd import loss as multibox
from ssd.model import anchors as anchors_of

# Bounds exp() of a code, which would overflow early in training; from TFM official/vision/ops/box_ops.py.
MAX_LOG_RATIO = math.log(1000 / 16)


class Task(task.Task):
    """Object detection on COCO, or on any data with its TFRecord layout and annotation file."""

    input = pipeline
    evaluate_in_worker = True
    chooses = True  # A training step chooses hard negatives.

    def build(self, replicas: Replicas, precision: Precision) -> tf_keras.Model:
        self._precision = precision
        self._spatial = Spatial(replicas, self.config.partitions)
        network = model.build(self.config, replicas, precision)
        if self.config.backbone and self.data_dir:
            backbone.load(network, self.config.backbone, replicas)
        return network

    def loss(self, model: tf_keras.Model, batch: Batch) -> Mapping[str, WeightedSum]:
        codes, logits = self._outputs(model, batch, training=True)
        anchors = tf.constant(anchors_of(self.config), codes.dtype)
        local_images = self._spatial.local_images
        boxes, classes, weight = (local_images(batch[name]) for name in ("boxes", "classes", "weight"))
        targets = multibox.targets(tf.cast(boxes, codes.dtype), classes, anchors, self.config.match_overlap)
        losses = multibox.per_image(codes, logits, targets, self.config.negatives_per_positive)
        weight = tf.cast(weight, codes.dtype)
        return {"multibox": WeightedSum(tf.reduce_sum(losses * weight), tf.reduce_sum(weight))}

    def evaluate(self, model: tf_keras.Model, batch: Batch) -> Outputs:
        detections = self.detect(model, batch["image"])
        outputs = {
            "boxes": tf.cast(detections.boxes, tf.float32),
            "scores": tf.cast(detections.scores, tf.float32),
            "classes": detections.classes,
        }
        count = batch["image"].shape[0]
        arrays = {name: self._spatial.all_images(x, count) for name, x in outputs.items()}
        arrays |= {name: batch[name] for name in ("image_id", "weight")}
        return Outputs(arrays=arrays)

    def detect(self, model: tf_keras.Model, image: tf.Tensor) -> nms.Detections:
        """Detects objects in this replica's own images among uint8 [b, S, S, 3].

        Boxes are corners as fractions of the image. A replica that shares no images owns all b.
        """
        config = self.config
        codes, logits = self._outputs(model, {"image": image}, training=False)
        anchors = tf.constant(anchors_of(config), codes.dtype)
        return nms.per_class(
            box_ops.decode(codes, anchors[None], max_log_ratio=MAX_LOG_RATIO),
            tf.nn.softmax(logits)[..., 1:],
            config.score_threshold,
            config.suppression_overlap,
            config.sizes.candidates,
            config.sizes.detections,
        )

    def labels(self) -> Sequence[str]:
        return super().labels() or coco_records.labels(self.config, self.data_dir)

    def quality(self, sums: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]) -> Quality:
        from common.detection import coco_eval

        annotations = coco_records.annotation_file(self.config, self.data_dir)
        once = coco_eval.each_image_once(annotations, arrays)
        ids = sorted(coco_eval.ground_truth(annotations).cats)
        results = coco_eval.box_results(annotations, once, ids)
        scores = coco_eval.average_precision(annotations, results, "bbox")
        details = {name: scores[name] for name in ("AP50", "AP75", "AP_small", "AP_medium", "AP_large")}
        return Quality(
            scores["AP"], self.config.meets_target(scores["AP"]), details, coco_eval.by_class(scores)
        )

    def _outputs(self, model: tf_keras.Model, batch: Batch, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        codes, logits = model(pipeline.normalize(batch["image"], self._precision.compute), training=training)
        variable = self._precision.variable
        return tf.cast(codes, variable), tf.cast(logits, variable)
