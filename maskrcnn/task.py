"""Defines the task of Mask R-CNN: five losses, detections with masks, COCO's mAP of boxes and of masks."""

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf
import tf_keras

from common.config.run_length import RunLength
from common.detection import coco_records
from common.distributed.replicas.base import Replicas, Shard
from common.layers.precision import Precision
from common.train import task
from common.train.task import Batch, Outputs, Quality, WeightedSum
from maskrcnn import backbone, model
from maskrcnn import input as pipeline
from maskrcnn.config import Config
from maskrcnn.detect import detect
from maskrcnn.loss import losses

MOST_WORKERS = 20  # G7 mask_rcnn_params.py EVAL_WORKER_COUNT
_KINDS = {"BBOX": "bbox", "SEGM": "segm"}


class Task(task.Task):
    """Object detection and segmentation on COCO, or on any data with its TFRecord layout and annotation file."""

    input = pipeline
    evaluate_in_worker = True
    chooses = True  # A training step chooses regions.

    def __init__(self, config: Config, data_dir: str | None):
        super().__init__(config, data_dir)
        # Wide and tall images each have a program with static shapes.
        shapes = [{"image": (*shape, 3)} for shape in config.shapes]
        self.batch_shapes = self.eval_batch_shapes = shapes if len(shapes) > 1 else ()
        self.evaluation_workers = config.eval_workers or min(os.cpu_count() or 1, MOST_WORKERS)

    def build(self, replicas: Replicas, precision: Precision) -> tf_keras.Model:
        self._precision = precision
        network = model.build(self.config, replicas, precision)
        if self.config.backbone and self.data_dir:
            backbone.load(network, self.config.backbone, replicas)
        return network

    def eval_input(self, shard: Shard, batch_size: int) -> tf.data.Dataset:
        steps = RunLength.of(self.config).eval_steps
        return pipeline.eval_input(self.config, self.data_dir, shard, batch_size, steps)

    def loss(self, model: tf_keras.Model, batch: Batch) -> Mapping[str, WeightedSum]:
        return losses(model, self.normalized(batch), self.config, model.next_draw())

    def evaluate(self, model: tf_keras.Model, batch: Batch) -> Outputs:
        detections = detect(model, self.normalized(batch), self.config)
        # Boxes as fractions of the content, which equal fractions of the original image for any frame.
        size = tf.maximum(tf.tile(batch["image_info"][:, None, :2], [1, 1, 2]), 1.0)
        boxes = detections["boxes"] / tf.cast(size, detections["boxes"].dtype)
        arrays = {
            "image_id": batch["image_id"],
            "weight": batch["weight"],
            "boxes": tf.cast(boxes, tf.float32),
            "scores": tf.where(detections["classes"] > 0, detections["scores"], 0.0),
            "classes": detections["classes"],
            # float16 has half the bytes; its eleven bits are enough for a threshold of 0.5.
            "masks": tf.cast(detections["masks"], tf.float16),
        }
        return Outputs(arrays=arrays)

    def labels(self) -> Sequence[str]:
        return super().labels() or coco_records.labels(self.config, self.data_dir, by_id=True)

    def quality(
        self,
        sums: Mapping[str, np.ndarray],
        arrays: Mapping[str, np.ndarray],
        spread: Callable[[Callable, Iterable], Iterable] = map,
    ) -> Quality:
        """Computes box and mask mAP. All workers paste and encode masks; then one scores boxes and another masks."""
        from common.detection import coco_eval

        annotations = coco_records.annotation_file(self.config, self.data_dir)
        ids = {name: arrays[name] for name in ("image_id", "weight")}
        list(spread(functools.partial(coco_eval.each_image_once, annotations), [ids]))
        classes = range(1, self.config.num_classes)  # Classes are the category ids.
        encode = functools.partial(coco_eval.encoded_results, annotations, classes)
        encoded = list(spread(encode, coco_eval.parts(arrays)))
        work = [(kind, [part[kind] for part in encoded]) for kind in _KINDS.values()]
        scores = spread(functools.partial(coco_eval.score, annotations), work)
        statistics = dict(zip(_KINDS, scores, strict=True))
        value = {name: statistics[name]["AP"] for name in _KINDS}
        details = {f"{name}_{s}": statistics[name][s] for name in _KINDS for s in ("AP50", "AP75")}
        return Quality(
            value, self.config.meets_target(value), details, coco_eval.by_class(statistics["BBOX"])
        )

    def normalized(self, batch: Batch) -> Batch:
        """Returns the batch with the network's input instead of the pixels."""
        return pipeline.normalized(batch, self._precision.variable)
