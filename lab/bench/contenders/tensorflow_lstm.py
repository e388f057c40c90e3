"""The TensorFlow contenders of steps.py's GNMT.

Arguments: contender, "train", manifest ({"config": a GNMT configuration of one bucket}). All train on one batch of full
sentences in memory (dropout before every LSTM, label smoothing, clipping, Adam). Ours handles sentences of different
lengths: it reverses within each sentence and masks attention and loss. The others have no such work.
"""

import dataclasses
from functools import partial

import tensorflow as tf
import tf_keras

from gnmt.config import Config
from gnmt.task import Task
from lab.bench.contenders.tensorflow_loops import Made, fit, fused_loop, maker

L = tf_keras.layers


def plain(config: Config) -> Made:
    """Ours with the textbook form of the LSTM."""
    return fused_loop(Task, dataclasses.replace(config, hoisted=False))


def keras_fit(config: Config, adam: type = tf_keras.optimizers.Adam, unroll: bool = False) -> Made:
    """Stock layers under `fit`."""
    model, length = stack(config, unroll), config.max_sequence_length
    o, classes, part = config.optimizer, config.vocabulary_size, config.label_smoothing
    # Ours sums the loss over a sentence's tokens, Keras takes the mean.
    clip = o.clip_replica_norm / length
    optimizer = adam(
        o.base_learning_rate, beta_1=o.beta_1, beta_2=o.beta_2, epsilon=o.epsilon, global_clipnorm=clip
    )

    def losses(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        targets = tf.one_hot(tf.cast(labels, tf.int32), classes, 1 - part + part / classes, part / classes)
        return tf.nn.softmax_cross_entropy_with_logits(targets, logits)

    model.compile(optimizer, losses)
    shape = [2, config.global_batch_size, length]
    source, target = tf.unstack(tf.random.stateless_uniform(shape, [0, 0], 3, classes, tf.int32))
    data = tf.data.Dataset.from_tensors(((source, target), target)).repeat()
    return fit(model, data), model


def keras_tuned(config: Config) -> Made:
    """`keras_fit` with its fast options: unrolled loops, and an optimizer with one kernel per variable."""
    return keras_fit(config, tf_keras.optimizers.legacy.Adam, unroll=True)


def stack(config: Config, unroll: bool) -> tf_keras.Model:
    """The reference network from stock layers: (source, target), int32 [b, n] -> logits [b, n, vocabulary]."""
    length, width = config.max_sequence_length, config.width
    table = L.Embedding(config.vocabulary_size, width)

    def recurrent() -> L.Layer:
        return L.LSTM(width, return_sequences=True, unroll=unroll)

    def drop(x: tf.Tensor) -> tf.Tensor:
        return L.Dropout(config.dropout)(x)

    source, target = (tf_keras.Input([length], dtype=tf.int32) for _ in range(2))
    x = L.Bidirectional(recurrent())(drop(table(source)))
    for i in range(config.layers - 1):
        y = recurrent()(drop(x))
        x = y + x if i else y
    memory = x
    x = recurrent()(drop(table(tf.pad(target, [[0, 0], [1, 0]], constant_values=1)[:, :-1])))
    context = _Attention(width)(x, memory)
    for i in range(config.layers - 1):
        y = recurrent()(drop(L.Concatenate()([x, context])))
        x = y + x if i else y
    return tf_keras.Model((source, target), L.Dense(config.vocabulary_size)(x))


class _Attention(L.Layer):
    """Normed Bahdanau attention, which neither Keras nor tf-models-official has."""

    def __init__(self, width: int):
        super().__init__()
        self.query, self.memory = L.Dense(width), L.Dense(width, use_bias=False)
        self.direction = self.add_weight("direction", [width])
        self.scale = self.add_weight("scale", [], initializer=tf_keras.initializers.Constant(width**-0.5))

    def call(self, queries: tf.Tensor, memory: tf.Tensor) -> tf.Tensor:
        direction = self.scale * tf.math.l2_normalize(self.direction)
        sums = self.query(queries)[:, :, None] + self.memory(memory)[:, None]
        weights = tf.nn.softmax(tf.reduce_sum(tf.tanh(sums) * direction, -1))
        return tf.matmul(weights, memory)


make = maker(
    Config, ours=partial(fused_loop, Task), plain=plain, keras_fit=keras_fit, keras_tuned=keras_tuned
)
