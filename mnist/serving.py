"""Classifies encoded pictures of digits: gray values, scaled to the network's size."""

from collections.abc import Sequence

import tensorflow as tf
import tf_keras

from common.train import serving as contract
from common.train.serving import IMAGES, Serving
from common.train.task import Task


def serving(task: Task, model: tf_keras.Model, labels: Sequence[str]) -> Serving:
    """Maps PNG or JPEG files [b], light on dark, to softmax `scores` [b, classes] and the best classes with names."""
    size = task.config.image_size

    def pixels(encoded: tf.Tensor) -> tf.Tensor:
        image = tf.io.decode_image(encoded, channels=1, expand_animations=False)
        same = tf.reduce_all(tf.shape(image)[:2] == size)
        image = tf.cast(tf.ensure_shape(image, [None, None, 1]), tf.float32)
        # An image that already has the network's size stays as it is.
        image = tf.cond(same, lambda: image, lambda: tf.image.resize(image, [size, size], antialias=True))
        return tf.cast(tf.ensure_shape(tf.round(image), [size, size, 1])[..., 0], tf.uint8)

    def network(image: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(task.logits(model, {"image": image}, training=False))

    def classify(images: tf.Tensor) -> dict[str, tf.Tensor]:
        digits = contract.each(pixels, images, tf.TensorSpec([size, size], tf.uint8))
        return contract.top(network(digits), labels)

    core = {"image": tf.TensorSpec([1, size, size], tf.uint8, "image")}
    return Serving("classes", classify, {"images": IMAGES}, network, core)
