"""Translates tokenized sentences with a trained network; the host converts text to tokens with the vocabulary."""

import os
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from common.text.serving import TOKENS, in_groups
from common.text.subwords import Subwords
from common.train.serving import Codec, Serving
from common.train.task import Task
from transformer import model as networks
from transformer.config import Config


def serving(task: Task, model: networks.Transformer, labels: Sequence[str]) -> Serving:
    """Maps tokens int32 [b, m] to `tokens` int32 [b, n]; both have 0 after the end of the sentence."""
    length = task.config.serving_length

    def network(tokens: tf.Tensor) -> tf.Tensor:
        places = tf.tile(tf.range(length)[None], [tokens.shape[0], 1])
        return model.translate(tokens, tf.where(tokens != 0, places, 0)).tokens[:, 0]

    core = {"tokens": tf.TensorSpec([1, length], tf.int32, "tokens")}
    return Serving("translation", in_groups(network, length), {"tokens": TOKENS}, network, core)


def codec(config: Config, folder: str | os.PathLike) -> Codec:
    """Returns the codec of the vocabulary in `folder`."""
    subwords = Subwords(Path(folder, config.data.vocabulary))
    return Codec(subwords.encode, subwords.decode, config.serving_length)
