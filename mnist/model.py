"""Builds LEGW's pure LSTM, MagmaDNN's multilayer perceptron and MagmaDNN's small convolutional network."""

import numpy as np
import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas
from common.layers import dense
from common.layers.convolution import Conv2D
from common.layers.dense import Dense
from common.layers.dropout import Dropout
from common.layers.lstm import LSTM, lstm_sequence
from common.layers.precision import Precision
from mnist.config import Config


def build(config: Config, replicas: Replicas, precision: Precision) -> tf_keras.Model:
    """Builds the network named by `config.model`: scaled images [b, S, S], any float dtype -> logits [b, classes]."""
    size = config.image_size
    images = replicas.model_input([size, size], config.micro_batch_size, precision.compute)
    body = {"lstm": _lstm, "mlp": _mlp, "cnn": _cnn}[config.model]
    features = body(config, replicas, precision, images)
    logits = tf_keras.layers.Dense(config.num_classes, dtype=precision.full, name="logits")
    return tf_keras.Model(images, logits(features), name=config.model)


class RowReader(tf_keras.layers.Layer):
    """Reads an image row by row: a linear transform of each row, then an LSTM; returns the LSTM's last output.

    LEGW 5.1.1: 28 steps of 28 pixels, transform 28 -> 128, LSTM of 128 (a cell kernel of 256 x 512).
    """

    def __init__(self, config: Config, precision: Precision, name: str | None = None):
        super().__init__(name=name, dtype=precision.full, autocast=False)
        self._config, self._precision = config, precision
        self.transform = dense.LastAxisDense(config.lstm_units, dtype=precision.layer, name="transform")
        self.lstm = LSTM(config.lstm_units, precision, name="lstm")

    def build(self, input_shape: tf.TensorShape) -> None:
        """Creates the variables for images [b, S, S]."""
        for layer, width in ((self.transform, input_shape[-1]), (self.lstm, self._config.lstm_units)):
            with tf.name_scope(layer.name):
                layer.build(tf.TensorShape([None, None, width]))
        super().build(input_shape)

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Reads [b, S, S] -> [b, units]; multiplies the two matrices first: (x A + a) W + b = x (A W) + (a W + b).

        An input row has 28 numbers, a transformed row 128. So a step takes 225,280 multiply-adds per example instead of
        400,384, forward and backward. The variables and their gradients stay the same.
        """
        rows = tf.transpose(images, [1, 0, 2])
        transform, lstm = self.transform, self.lstm
        kernel = tf.matmul(transform.kernel, lstm.kernel)
        bias = tf.linalg.matvec(lstm.kernel, transform.bias, transpose_a=True) + lstm.bias
        zeros = tf.zeros([tf.shape(rows)[1], lstm.units], self._precision.variable)
        recurrent = tf.convert_to_tensor(lstm.recurrent_kernel)
        _, (h, _) = lstm_sequence(rows, kernel, recurrent, bias, (zeros, zeros), None, self._precision)
        return h


def _lstm(config: Config, replicas: Replicas, precision: Precision, x: tf.Tensor) -> tf.Tensor:
    return RowReader(config, precision, name="rows")(x)


def _mlp(config: Config, replicas: Replicas, precision: Precision, x: tf.Tensor) -> tf.Tensor:
    x = tf_keras.layers.Flatten(dtype=precision.layer)(x)
    seeds = np.random.SeedSequence(config.seed).generate_state(config.hidden_layers)
    for seed in seeds:
        x = Dense(config.hidden_units, config.activation, dtype=precision.layer)(x)
        if config.dropout:
            x = Dropout(replicas, config.dropout, int(seed >> 1), dtype=precision.layer)(x)
    return x


def _cnn(config: Config, replicas: Replicas, precision: Precision, x: tf.Tensor) -> tf.Tensor:
    """Applies the network of MagmaDNN/magmadnn examples/cnn_2d.cpp: 5x5x32, ReLU, mean over 2x2, 128, ReLU."""
    size = config.image_size
    x = tf_keras.layers.Reshape([size, size, 1], dtype=precision.layer)(x)
    x = Conv2D(32, 5, activation="relu", dtype=precision.layer)(x)
    x = tf_keras.layers.AveragePooling2D(2, dtype=precision.layer)(x)
    x = tf_keras.layers.Flatten(dtype=precision.layer)(x)
    return Dense(128, "relu", dtype=precision.layer)(x)
