"""Cuts a text into streams of words, and makes batches that depend only on the step.

The text is cut into one equal stream per batch row; row i of every batch continues stream i. A batch:

    words, targets  int32 [b, T]    the target of a word is the next word
    weight          float32 [b, T]  0 for padding
    stream          int32 [b]       number of the row among this replica's streams; it selects the row's state
    keep            float32 [b]     0 in the first step of a pass over the text, where the state resets

Replica r of R holds consecutive streams, starting at r/R of the batch.
"""

import os

import numpy as np
import tensorflow as tf

from common.distributed.replicas.base import Shard
from common.errors import UserError
from ptb import text
from ptb.config import Config

_ENDLESS = 2**40  # Number of steps in an endless stream; this number times the batches per step fits 64 bits.


def check_files(config: Config, data_dir: str | os.PathLike) -> None:
    """Raises UserError if a file that the run reads is missing; opens no file."""
    for path in text.files(config, data_dir):
        text.check_there(path)


def load(config: Config, data_dir: str | os.PathLike) -> tuple[np.ndarray, np.ndarray]:
    """Loads a run's training words and evaluation words as numbers, int32 [N] each.

    Raises:
      UserError: a file is missing, a word is not in the vocabulary, or a word count differs from the configuration's.
    """
    paths = text.files(config, data_dir)
    train = text.read(paths[0])
    vocabulary = text.vocabulary(train)
    if len(vocabulary) != config.vocabulary_size:
        raise UserError(
            f"{paths[0]}: {len(vocabulary)} different words, {config.vocabulary_size} expected; "
            f"set --config.vocabulary_size={len(vocabulary)}"
        )
    arrays = []
    for path, field in zip(paths, ("num_train_examples", "num_eval_examples")):
        words, expected = text.read(path) if arrays else train, getattr(config, field)
        if len(words) != expected:
            raise UserError(
                f"{path}: {len(words)} words, {expected} expected; set --config.{field}={len(words)}"
            )
        arrays.append(text.numbers(words, vocabulary, path))
    return arrays[0], arrays[1]


def train_input(
    config: Config, words: np.ndarray, shard: Shard, batch_size: int, start_step: int
) -> tf.data.Dataset:
    """Yields one shard's training batches without end, starting at step `start_step`; `words` are from `load`."""
    streams = config.global_batch_size
    length = len(words) // streams
    texts = words[: streams * length].reshape(streams, length)
    steps = config.train_steps_per_epoch
    return _steps(config, texts, np.ones_like(texts), shard, batch_size, start_step, steps, _ENDLESS)


def eval_input(config: Config, words: np.ndarray, shard: Shard, batch_size: int) -> tf.data.Dataset:
    """Makes one pass over the text; every word but the first is a target once, and padding has weight 0."""
    streams, length = config.eval_batch_size, config.eval_words_per_stream
    steps = config.examples_per_evaluation // streams
    # Stream i predicts words i * length + 1 .. (i + 1) * length; its first input adds one column.
    places = np.arange(streams)[:, None] * length + np.arange(steps * config.num_steps + 1)
    real = (np.arange(places.shape[1]) <= length) & (places < len(words))
    texts = np.where(real, words[np.minimum(places, len(words) - 1)], 0).astype(np.int32)
    return _steps(config, texts, real, shard, batch_size, 0, steps, steps).cache()


def _steps(
    config: Config,
    texts: np.ndarray,
    real: np.ndarray,
    shard: Shard,
    batch_size: int,
    first: int,
    steps_per_pass: int,
    last: int,
) -> tf.data.Dataset:
    """Makes batches for steps first .. last - 1 from the streams `texts`, [S, N]; `real` marks words to predict."""
    width, per_step = config.num_steps, shard.batches_per_step(len(texts), batch_size)
    words, weights = tf.constant(texts), tf.constant(real.astype(np.float32))

    def batch(number: tf.Tensor) -> dict[str, tf.Tensor]:
        place, part = number // per_step % steps_per_pass, number % per_step
        row = (shard.index * per_step + part) * batch_size
        window = tf.slice(words, [row, place * width], [batch_size, width + 1])
        return {
            "words": window[:, :-1],
            "targets": window[:, 1:],
            "weight": tf.slice(weights, [row, place * width + 1], [batch_size, width]),
            "stream": tf.range(batch_size),
            "keep": tf.fill([batch_size], tf.cast(place > 0, tf.float32)),
        }

    return tf.data.Dataset.range(first * per_step, last * per_step).map(batch).prefetch(4)


def synthetic(config: Config, batch_size: int) -> tf.data.Dataset:
    """Repeats one batch of seeded words with both inputs' element_spec."""
    rng = np.random.default_rng(config.seed)
    window = rng.integers(0, config.vocabulary_size, [batch_size, config.num_steps + 1], np.int32)
    batch = {
        "words": window[:, :-1],
        "targets": window[:, 1:],
        "weight": np.ones([batch_size, config.num_steps], np.float32),
        "stream": np.arange(batch_size, dtype=np.int32),
        "keep": np.zeros([batch_size], np.float32),
    }
    return tf.data.Dataset.from_tensors(batch).repeat()
