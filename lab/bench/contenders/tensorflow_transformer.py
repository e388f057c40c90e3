"""The TensorFlow contenders of steps.py's Transformer.

Arguments: contender, "train", manifest ({"config": a Transformer's configuration, "batch": {"train":
sequences}}). All train the same network (dropout after sublayers, on attention and after ReLU; label smoothing; Adam;
fp32) on one batch of full sequences in memory. Ours masks by segment and embeds explicit positions, as packed sequences
need; the others mask padding and add one fixed position signal.
"""

from functools import partial

import tensorflow as tf
import tf_keras

from lab.bench.contenders.tensorflow_loops import Made, fit, fused_loop, maker
from transformer.config import Config
from transformer.layers import EPSILON, position_signal
from transformer.task import Task

L = tf_keras.layers


def keras_fit(config: Config, adam: type = tf_keras.optimizers.Adam) -> Made:
    """Stock layers under `fit`."""
    model = stack(config)
    model.compile(_adam(config, adam), lambda labels, logits: _losses(config, labels, logits))
    inputs, targets = _tokens(config)
    data = tf.data.Dataset.from_tensors(((inputs, targets), targets)).repeat()
    return fit(model, data), model


def keras_fused_adam(config: Config) -> Made:
    """`keras_fit` with the optimizer that updates each variable with one kernel."""
    return keras_fit(config, tf_keras.optimizers.legacy.Adam)


def tf_models(config: Config) -> Made:
    """tf-models-official's Seq2SeqTransformer in a fused loop, with its translation task's step and its Adam."""
    from official.nlp.modeling.models import seq2seq_transformer as official

    sizes = {
        "num_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.hidden,
        "dropout_rate": config.residual_dropout,
        "attention_dropout_rate": config.attention_dropout,
        "intermediate_dropout": config.relu_dropout,
        "norm_first": True,
        "use_bias": False,
    }
    model = official.Seq2SeqTransformer(
        config.vocabulary_size,
        config.width,
        config.residual_dropout,
        encoder_layer=official.TransformerEncoder(**sizes),
        decoder_layer=official.TransformerDecoder(**sizes),
    )
    optimizer = _adam(config, tf_keras.optimizers.legacy.Adam)
    inputs, targets = _tokens(config)
    model({"inputs": inputs, "targets": targets}, training=True)  # Creates the variables.

    @tf.function
    def train(steps: tf.Tensor) -> tf.Tensor:
        loss = tf.zeros([])
        for _ in tf.range(steps):
            with tf.GradientTape() as tape:
                logits = model({"inputs": inputs, "targets": targets}, training=True)
                losses, real = _losses(config, targets, logits), tf.cast(targets != 0, tf.float32)
                loss = tf.reduce_sum(losses * real) / tf.reduce_sum(real)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return lambda steps: float(train(tf.constant(steps))), model


def stack(config: Config) -> tf_keras.Model:
    """The network from stock layers: (inputs, targets), int32 [b, n] each -> logits [b, n, vocabulary]."""
    length, width = config.packed_length, config.width
    table = L.Embedding(
        config.vocabulary_size,
        width,
        embeddings_initializer=tf_keras.initializers.RandomNormal(stddev=width**-0.5),
    )
    signal = tf.constant(position_signal(length, width), tf.float32)

    def drop(x: tf.Tensor) -> tf.Tensor:
        return L.Dropout(config.residual_dropout)(x)

    def norm(x: tf.Tensor) -> tf.Tensor:
        return L.LayerNormalization(epsilon=EPSILON)(x)

    def attend(x: tf.Tensor, memory: tf.Tensor | None = None, **masks: object) -> tf.Tensor:
        rate, y = config.attention_dropout, norm(x)
        layer = L.MultiHeadAttention(config.heads, width // config.heads, dropout=rate, use_bias=False)
        return x + drop(layer(y, y if memory is None else memory, **masks))

    def feed(x: tf.Tensor) -> tf.Tensor:
        y = L.Dropout(config.relu_dropout)(L.Dense(config.hidden, "relu")(norm(x)))
        return x + drop(L.Dense(width)(y))

    inputs, targets = (tf_keras.Input([length], dtype=tf.int32) for _ in range(2))
    real = (inputs != 0)[:, None, :]
    x = drop(table(inputs) * width**0.5 + signal)
    for _ in range(config.layers):
        x = feed(attend(x, attention_mask=real))
    source = norm(x)
    x = drop(table(tf.pad(targets, [[0, 0], [1, 0]])[:, :-1]) * width**0.5 + signal)
    for _ in range(config.layers):
        x = feed(attend(attend(x, use_causal_mask=True), source, attention_mask=real))
    return tf_keras.Model((inputs, targets), _Logits(table)(norm(x)))


class _Logits(L.Layer):
    """Multiplies by the embeddings."""

    def __init__(self, table: L.Embedding):
        super().__init__()
        self.table = table

    def call(self, x: tf.Tensor) -> tf.Tensor:
        flat = tf.matmul(tf.reshape(x, [-1, x.shape[-1]]), self.table.embeddings, transpose_b=True)
        return tf.reshape(flat, [-1, x.shape[1], flat.shape[-1]])


def _losses(config: Config, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Losses [b, n] with smoothed targets, as in tf-models-official's translation task."""
    classes, part = config.vocabulary_size, config.label_smoothing
    targets = tf.one_hot(tf.cast(labels, tf.int32), classes, 1 - part, part / (classes - 1))
    return tf.nn.softmax_cross_entropy_with_logits(targets, logits)


def _adam(config: Config, kind: type) -> tf_keras.optimizers.Optimizer:
    o = config.optimizer
    return kind(o.base_learning_rate, beta_1=o.beta_1, beta_2=o.beta_2, epsilon=o.epsilon)


def _tokens(config: Config) -> tuple[tf.Tensor, tf.Tensor]:
    """Full sequences of noise."""
    shape = [2, config.global_batch_size, config.packed_length]
    return tuple(tf.random.stateless_uniform(shape, [0, 0], 2, config.vocabulary_size, tf.int32))


make = maker(
    Config,
    ours=partial(fused_loop, Task),
    keras_fit=keras_fit,
    keras_fused_adam=keras_fused_adam,
    tf_models=tf_models,
)
