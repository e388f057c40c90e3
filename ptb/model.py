"""The language model: embedding, two LSTMs whose state is carried from step to step, output over the vocabulary."""

from __future__ import annotations

import tensorflow as tf
import tf_keras

from common.lstm import LSTM
from common.precision import Precision
from common.replicas.base import Replicas
from ptb.config import Config


def build(config: Config, replicas: Replicas, precision: Precision) -> tf_keras.Model:
    """[words int32 [b, T], stream int32 [b], keep [b]] -> logits [b, T, vocabulary]; see ptb/input.py."""
    batch = config.micro_batch_size
    words = replicas.model_input([config.num_steps], batch, tf.int32)
    stream = replicas.model_input([], batch, tf.int32)
    keep = replicas.model_input([], batch, precision.variable)
    features = CarriedLSTM(config, replicas, precision, name="carried")([words, stream, keep])
    logits = tf_keras.layers.Dense(
        config.vocabulary_size,
        kernel_initializer=_uniform(config),
        bias_initializer=_uniform(config),
        dtype=precision.layer,
        name="logits",
    )(features)
    # The product over the vocabulary is nearly all of the work; the loss is computed in full precision.
    logits = tf_keras.layers.Activation("linear", dtype=precision.full)(logits)
    return tf_keras.Model([words, stream, keep], logits, name="ptb")


class CarriedLSTM(tf_keras.layers.Layer):
    """Embedding and LSTMs over streams of text: each call goes on where the last one left a stream.

    Attributes:
      train_state, eval_state: one per replica, [streams of the replica, 2 * layers * units]: h and c of each
        layer. Training and evaluation do not disturb one another.
      carried: names of the attributes that hold a row per stream, for `common.checkpoint`: a checkpoint joins
        the replicas' rows, so that any number of replicas that holds all streams can take them up.
    """

    carried = ("train_state", "eval_state")

    def __init__(self, config: Config, replicas: Replicas, precision: Precision, name: str):
        super().__init__(name=name, dtype=precision.full, autocast=False)
        self._config, self._replicas, self._precision = config, replicas, precision
        self.embedding = tf_keras.layers.Embedding(
            config.vocabulary_size,
            config.units,
            embeddings_initializer=_uniform(config),
            dtype=precision.full,
            name="embedding",
        )
        self.lstms = [
            LSTM(
                config.units,
                precision,
                config.hoisted,
                kernel_initializer=_uniform(config),
                recurrent_initializer=_uniform(config),
                forget_bias=0.0,  # ptb_word_lm.py
                name=f"lstm_{i}",
            )
            for i in range(config.layers)
        ]

    def build(self, input_shape: list) -> None:
        config, replicas = self._config, self._replicas.num_replicas
        width = 2 * config.layers * config.units
        for split, streams in (("train", config.global_batch_size), ("eval", config.eval_batch_size)):
            zeros = tf.zeros([streams // replicas, width], self._precision.variable)
            setattr(self, f"{split}_state", self._replicas.per_replica_variable(zeros, f"{split}_state"))
        super().build(input_shape)

    def call(self, inputs: list[tf.Tensor], training: bool = False) -> tf.Tensor:
        """[words [b, T], stream [b], keep [b]] -> [b, T, units]."""
        words, stream, keep = inputs
        variable = self.train_state if training else self.eval_state
        carried = variable.read_value()
        # Rows of zero, then the products: a state that went to infinity must not survive as infinity times 0.
        rows = tf.where(keep[:, None] > 0, tf.gather(carried, stream), tf.zeros([], carried.dtype))
        if not self._config.carry:
            rows = tf.zeros_like(rows)
        states = tf.split(rows, 2 * len(self.lstms), 1)
        x = self.embedding(tf.transpose(words))
        after = []
        for lstm, h, c in zip(self.lstms, states[::2], states[1::2]):
            x, state = lstm(x, (h, c))
            after += state
        variable.assign(tf.tensor_scatter_nd_update(carried, stream[:, None], tf.concat(after, 1)))
        return tf.transpose(x, [1, 0, 2])

    def multiply_adds(self, inputs: tuple, outputs: tuple) -> int:
        """Of one sequence, for `common.describe`."""
        return self._config.num_steps * sum(lstm.multiply_adds_per_step() for lstm in self.lstms)


def _uniform(config: Config) -> tf_keras.initializers.Initializer:
    return tf_keras.initializers.RandomUniform(-config.init_scale, config.init_scale)
