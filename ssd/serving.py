"""Detects objects in encoded images. Images are resized as in an evaluation; boxes are in pixels of the picture."""

from collections.abc import Sequence

import tensorflow as tf
import tf_keras

from common.detection import coco_records
from common.train import serving as contract
from common.train.serving import IMAGES, Serving
from common.train.task import Task
from ssd import input as pipeline


def serving(task: Task, model: tf_keras.Model, labels: Sequence[str]) -> Serving:
    """Maps JPEG or PNG files [b] to `boxes` [b, D, 4], `scores` [b, D], `classes` int32 [b, D] and `names` [b, D].

    Boxes are (top, left, bottom, right) in pixels of the picture, best first; class 0 means no detection.
    """
    config, size = task.config, task.config.image_size

    def prepared(encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = coco_records.decoded(encoded)
        return pipeline.whole(image, config), tf.shape(image)[:2]

    def network(image: tf.Tensor) -> dict[str, tf.Tensor]:
        detections = task.detect(model, image)
        return {"boxes": detections.boxes, "scores": detections.scores, "classes": detections.classes}

    def detect(images: tf.Tensor) -> dict[str, tf.Tensor]:
        specs = tf.TensorSpec([size, size, 3], tf.uint8), tf.TensorSpec([2], tf.int32)
        pixels, sizes = contract.each(prepared, images, specs)
        detections = network(pixels)
        scale = tf.cast(tf.tile(sizes, [1, 2]), tf.float32)[:, None]
        return {
            "boxes": tf.clip_by_value(tf.cast(detections["boxes"], tf.float32), 0.0, 1.0) * scale,
            "scores": tf.cast(detections["scores"], tf.float32),
            "classes": detections["classes"],
            "names": contract.class_names(detections["classes"], labels, config.num_classes),
        }

    core = {"image": tf.TensorSpec([1, size, size, 3], tf.uint8, "image")}
    return Serving("objects", detect, {"images": IMAGES}, network, core)
