"""Detects objects and their masks in encoded images, one by one, each in the frame of its orientation."""

from collections.abc import Sequence

import tensorflow as tf
import tf_keras

from common.detection import coco_records
from common.train import serving as contract
from common.train.serving import IMAGES, Serving
from common.train.task import Task
from maskrcnn import augment
from maskrcnn.detect import detect


def serving(task: Task, model: tf_keras.Model, labels: Sequence[str]) -> Serving:
    """Maps JPEG or PNG files [b] to `boxes` [b, D, 4], `scores`, `classes` int32, `names` [b, D], `masks` [b, D, S, S].

    Boxes are (top, left, bottom, right) in pixels of the picture, best first; class 0 means no detection. A mask holds
    object probabilities in the box, resampled to S x S; after pasting, values of at least one half are the object.
    """
    config = task.config
    wide, tall = config.shapes[0], config.shapes[-1]

    def network(image: tf.Tensor, image_info: tf.Tensor) -> dict[str, tf.Tensor]:
        return detect(model, task.normalized({"image": image, "image_info": image_info}), config)

    def one(encoded: tf.Tensor) -> dict[str, tf.Tensor]:
        image = coco_records.decoded(encoded)
        size = tf.shape(image)
        lying = size[1] > size[0]
        pixels, info = augment.framed(image, lying, config)

        def within(shape: tuple[int, int]) -> dict[str, tf.Tensor]:
            return network(tf.ensure_shape(pixels, [*shape, 3])[None], info[None])

        detections = (
            within(wide) if wide == tall else tf.cond(lying, lambda: within(wide), lambda: within(tall))
        )
        # As fractions of the content, which equal fractions of the picture.
        parts = tf.cast(detections["boxes"][0], tf.float32) / tf.maximum(tf.tile(info[:2], [2]), 1.0)
        return {
            "boxes": parts * tf.cast(tf.tile(size[:2], [2]), tf.float32),
            "scores": tf.where(detections["classes"][0] > 0, detections["scores"][0], 0.0),
            "classes": detections["classes"][0],
            "masks": detections["masks"][0],
        }

    count, side = config.sizes.detections, config.mask_size
    specs = {
        "boxes": tf.TensorSpec([count, 4]),
        "scores": tf.TensorSpec([count]),
        "classes": tf.TensorSpec([count], tf.int32),
        "masks": tf.TensorSpec([count, side, side]),
    }

    def detected(images: tf.Tensor) -> dict[str, tf.Tensor]:
        detections = contract.each(one, images, specs)
        return {
            **detections,
            "names": contract.class_names(detections["classes"], labels, config.num_classes),
        }

    core = {
        "image": tf.TensorSpec([1, *wide, 3], tf.uint8, "image"),
        "image_info": tf.TensorSpec([1, 3], tf.float32, "image_info"),
    }
    return Serving("objects", detected, {"images": IMAGES}, network, core)
