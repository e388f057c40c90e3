"""Scores the token after a text; the host makes tokens of the text and chooses the next one."""

import os
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from common.train.serving import Codec, Serving
from common.train.task import Task
from llama31_8b import model as networks
from llama31_8b import tokens
from llama31_8b.config import Config


def serving(task: Task, model: networks.Llama, labels: Sequence[str]) -> Serving:
    """Maps tokens int32 [b, n], n up to the sequence length, with -1 after each text, to `scores` [b, vocabulary].

    The scores are the logarithms of the next token's probabilities.
    """
    length = task.config.sequence_length

    def network(ids: tf.Tensor) -> tf.Tensor:
        features = model.features(tf.maximum(ids, 0))
        last = tf.maximum(tf.reduce_sum(tf.cast(ids >= 0, tf.int32), 1) - 1, 0)
        logits = model.head(tf.gather(features, last[:, None], axis=1, batch_dims=1))
        return tf.nn.log_softmax(logits[:, 0])

    def predict(ids: tf.Tensor) -> dict[str, tf.Tensor]:
        padded = tf.pad(ids, [[0, 0], [0, length - tf.shape(ids)[1]]], constant_values=-1)
        return {"scores": network(tf.ensure_shape(padded, [None, length]))}

    inputs = {"tokens": tf.TensorSpec([None, None], tf.int32, "tokens")}
    core = {"tokens": tf.TensorSpec([1, length], tf.int32, "tokens")}
    return Serving("continuation", predict, inputs, network, core)


def codec(config: Config, folder: str | os.PathLike) -> Codec:
    """Returns the codec of bytes, or of the tokenizer in `folder`."""
    name = config.data.tokenizer
    read = tokens.Tokenizer(Path(folder, name)) if name else tokens.Bytes()
    return Codec(read.encode, read.decode, config.sequence_length)
