"""Translates tokenized sentences with a trained network; the host converts text with merges and vocabulary."""

import os
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from common.text import bpe
from common.text.serving import TOKENS, in_groups
from common.train.serving import Codec, Serving
from common.train.task import Task
from gnmt import model as networks
from gnmt.config import Config


def serving(task: Task, model: networks.Gnmt, labels: Sequence[str]) -> Serving:
    """Maps tokens int32 [b, m], from BOS to EOS, then padding, to `tokens` int32 [b, n], up to EOS."""
    length = task.config.serving_length
    steps = max(length, task.config.decode.target_length)

    def network(tokens: tf.Tensor) -> tf.Tensor:
        lengths = tf.argmax(tokens == bpe.EOS, 1, tf.int32) + 1
        return model.translate(tokens, lengths, steps).tokens[:, 0]

    core = {"tokens": tf.TensorSpec([1, length], tf.int32, "tokens")}
    return Serving("translation", in_groups(network, length), {"tokens": TOKENS}, network, core)


def codec(config: Config, folder: str | os.PathLike) -> Codec:
    """Returns the codec of the merges and the vocabulary in `folder`."""
    data = config.data
    words = bpe.Bpe(Path(folder, data.codes), Path(folder, data.vocabulary))

    def encode(text: str) -> list[int]:
        return [bpe.BOS, *words.encode(text, data.source_language), bpe.EOS]

    def decode(tokens: Sequence[int]) -> str:
        return words.decode(tokens, data.target_language)

    return Codec(encode, decode, config.serving_length)
