"""Classifies encoded images with a trained network, after the same central crop as in an evaluation."""

from collections.abc import Sequence

import tensorflow as tf
import tf_keras

from common.train import serving as contract
from common.train.serving import IMAGES, Reading, Serving
from common.train.task import Task
from resnet import input as pipeline


def serving(task: Task, model: tf_keras.Model, labels: Sequence[str]) -> Serving:
    """Maps JPEG or PNG files [b] to softmax `scores` [b, classes] and the best classes with their names."""
    config, size = task.config, task.config.image_size

    def pixels(encoded: tf.Tensor) -> tf.Tensor:
        return pipeline.central_crop(encoded, config)

    def network(image: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(task.logits(model, {"image": image}, training=False))

    def classify(images: tf.Tensor) -> dict[str, tf.Tensor]:
        crops = contract.each(pixels, images, tf.TensorSpec([size, size, 3], tf.uint8))
        return contract.top(network(crops), labels)

    core = {"image": tf.TensorSpec([1, size, size, 3], tf.uint8, "image")}
    return Serving("classes", classify, {"images": IMAGES}, network, core, reading=Reading(png=False))
