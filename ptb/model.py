"""Builds the language model: embedding, LSTMs that carry their state from step to step, vocabulary logits."""

import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas
from common.layers.dense import rows
from common.layers.dropout import TimeDropout, drop
from common.layers.lstm import LSTM
from common.layers.precision import Precision
from ptb.config import Config


def build(config: Config, replicas: Replicas, precision: Precision) -> tf_keras.Model:
    """Builds the network: [words int32 [b, T], state [b, n]] -> (logits [b, T, vocabulary], next state [b, n]).

    The model's attribute `carried`, a `CarriedState`, keeps the states between steps.
    """
    batch = config.micro_batch_size
    words = replicas.model_input([config.num_steps], batch, tf.int32)
    state = replicas.model_input([state_size(config)], batch, precision.variable)
    features, after = Reader(config, replicas, precision, name="reader")([words, state])
    logits = Logits(
        config.vocabulary_size,
        precision,
        kernel_initializer=_uniform(config),
        bias_initializer=_uniform(config),
        name="logits",
    )(features)
    model = tf_keras.Model([words, state], [logits, after], name="ptb")
    model.carried = CarriedState(config, replicas, precision)
    return model


def state_size(config: Config) -> int:
    """Returns how many numbers a stream's state has: h and c of each layer."""
    return 2 * config.layers * config.units


class Logits(tf_keras.layers.Dense):
    """A dense layer on [b, T, n] in `precision.variable`; only its product, most of the work, runs in `compute`."""

    def __init__(self, units: int, precision: Precision, **kwargs):
        super().__init__(units, dtype=precision.full, **kwargs)
        self._precision = precision

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        compute, variable = self._precision.compute, self._precision.variable
        # Reshapes to two matrices, because TensorFlow fuses a bias only into a product of matrices.
        product = tf.matmul(tf.cast(rows(inputs), compute), tf.cast(self.kernel, compute))
        product = tf.nn.bias_add(tf.cast(product, variable), self.bias)
        return tf.reshape(product, [-1, *inputs.shape[1:-1], self.units])


class Reader(tf_keras.layers.Layer):
    """Embeds words and runs the LSTMs: [words [b, T], state [b, n]] -> (outputs [b, T, units], state [b, n])."""

    def __init__(self, config: Config, replicas: Replicas, precision: Precision, name: str):
        super().__init__(name=name, dtype=precision.full, autocast=False)
        self._config = config
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
                kernel_initializer=_uniform(config),
                recurrent_initializer=_uniform(config),
                forget_bias=config.forget_bias,
                name=f"lstm_{i}",
            )
            for i in range(config.layers)
        ]
        self.dropouts = [
            TimeDropout(
                replicas,
                config.dropout,
                config.seed * (config.layers + 1) + i,
                dtype=precision.full,
                name=f"dropout_{i}",
            )
            for i in range(config.layers + 1 if config.dropout else 0)
        ]

    def call(self, inputs: list[tf.Tensor], training: bool = False) -> tuple[tf.Tensor, tf.Tensor]:
        words, state = inputs
        first, *after_lstms = self.dropouts or [None] * (len(self.lstms) + 1)
        states = tf.split(state, 2 * len(self.lstms), 1)
        x = drop(first, self.embedding(tf.transpose(words)), training)
        after = []
        for lstm, dropout, h, c in zip(self.lstms, after_lstms, states[::2], states[1::2]):
            x, last = lstm(x, (h, c))
            x = drop(dropout, x, training)
            after += last
        return tf.transpose(x, [1, 0, 2]), tf.concat(after, 1)


class CarriedState(tf_keras.layers.Layer):
    """Keeps the state of every stream between steps, separately for training and evaluation.

    Attributes:
      train_state, eval_state: one variable per replica, [streams of the replica, n].
      carried: names of the attributes with one row per stream, for `common.train.checkpoint`. A checkpoint joins the
        replicas' rows, so that a run can resume on any number of replicas that divides the streams.
    """

    carried = ("train_state", "eval_state")

    def __init__(self, config: Config, replicas: Replicas, precision: Precision):
        super().__init__(name="carried", dtype=precision.full)
        for name, streams in zip(self.carried, (config.global_batch_size, config.eval_batch_size)):
            zeros = tf.zeros([streams // replicas.num_replicas, state_size(config)], precision.variable)
            setattr(self, name, replicas.per_replica_variable(zeros, name))

    def read(self, stream: tf.Tensor, keep: tf.Tensor, training: bool) -> tf.Tensor:
        """Reads the states of streams [b], zeros where `keep` is 0: [b, n]. Call it inside `replicas.run`."""
        rows = tf.gather(self._variable(training).read_value(), stream)
        # Selects zeros, because a product with 0 would turn an infinite state into NaN.
        return tf.where(keep[:, None] > 0, rows, tf.zeros_like(rows))

    def write(self, stream: tf.Tensor, rows: tf.Tensor, training: bool) -> None:
        """Stores the states of streams [b]; gradients do not cross steps. Call it inside `replicas.run`."""
        variable = self._variable(training)
        variable.assign(tf.tensor_scatter_nd_update(variable.read_value(), stream[:, None], rows))

    def _variable(self, training: bool) -> tf.Variable:
        return self.train_state if training else self.eval_state


def _uniform(config: Config) -> tf_keras.initializers.Initializer:
    return tf_keras.initializers.RandomUniform(-config.init_scale, config.init_scale)
