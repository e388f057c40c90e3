"""Computes a layer's value and gradients, by which tests compare layers."""

import tensorflow as tf
import tf_keras


def value_and_gradients(layer: tf_keras.layers.Layer, x: tf.Tensor) -> list[tf.Tensor]:
    """[y = layer(x), gradients of the sum of y * y: of x and of the layer's trainable variables]."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
        loss = tf.reduce_sum(y * y)
    return [y, *tape.gradient(loss, [x, *layer.trainable_variables])]
