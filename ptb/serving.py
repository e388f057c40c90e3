"""Predicts the next word of a text; the graph looks up the words."""

from collections.abc import Sequence

import tensorflow as tf
import tf_keras

from common.train import serving as contract
from common.train.serving import Serving
from common.train.task import Task
from ptb.model import state_size
from ptb.text import EOS


def serving(task: Task, model: tf_keras.Model, labels: Sequence[str]) -> Serving:
    """Maps texts [b] to `scores` [b, vocabulary] of the next word, and the best words with their names.

    Blanks separate words. An unknown word becomes <unk>. A text starts as if a sentence had just ended. `labels` are
    the vocabulary.
    """
    config = task.config
    numbers = {word: i for i, word in enumerate(labels)}
    unknown = numbers.get("<unk>", 0)
    keys, values = list(numbers) or [EOS], list(numbers.values()) or [0]
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant(keys), tf.constant(values, tf.int32)), unknown
    )

    def network(words: tf.Tensor) -> tf.Tensor:
        state = tf.zeros([tf.shape(words)[0], state_size(config)], model.inputs[1].dtype)
        logits, _ = model([words, state], training=False)
        return tf.nn.softmax(logits)

    def one(text: tf.Tensor) -> tf.Tensor:
        words = tf.concat([[EOS], tf.strings.split(text)], 0)
        numbers = tf.ensure_shape(table.lookup(words), [None])
        count = tf.size(numbers)
        # The network reads num_steps words at a time; padding after the text does not affect the last word's score.
        steps = config.num_steps
        padded = tf.reshape(tf.pad(numbers, [[0, -count % steps]]), [-1, 1, steps])
        state = tf.zeros([1, state_size(config)], model.inputs[1].dtype)

        def step(carried: tuple[tf.Tensor, tf.Tensor], words: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            logits, after = model([words, carried[1]], training=False)
            return logits, after

        first = tf.zeros([1, steps, config.vocabulary_size], state.dtype)
        logits, _ = tf.scan(step, padded, (first, state))
        return tf.nn.softmax(logits[-1, 0, (count - 1) % steps])

    def predict(text: tf.Tensor) -> dict[str, tf.Tensor]:
        spec = tf.TensorSpec([config.vocabulary_size], model.inputs[1].dtype)
        return contract.top(contract.each(one, text, spec), labels)

    inputs = {"text": tf.TensorSpec([None], tf.string, "text")}
    core = {"words": tf.TensorSpec([1, config.num_steps], tf.int32, "words")}
    return Serving("words", predict, inputs, network, core, (table,))
