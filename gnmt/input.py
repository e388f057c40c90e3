"""Makes bucketed training batches from sentence pairs, and evaluation batches from text.

Both kinds of batch hold "source" int32 [b, m], "source_length" int32 [b], "target" int32 [b, n], "target_length" int32
[b], "index" int32 [b] and "weight" float32 [b]. In training, m and n equal the limit of the step's bucket. In an
evaluation, m is `decode.source_length` and n is 1.
"""

import functools
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from common.config.run_length import RunLength
from common.data import padding, pipeline, record_counts, tfrecords
from common.data.bucketing import Buckets
from common.distributed.replicas.base import Shard
from common.errors import UserError
from common.files import check_there
from common.text import bpe, subwords, translation
from gnmt.config import Config
from gnmt.corpus import FIX, SIDES, Corpus, Side, load

Batch = dict[str, np.ndarray]


def train_input(
    config: Config, data_dir: str | os.PathLike, shard: Shard, batch_size: int, start_step: int = 0
) -> tf.data.Dataset:
    """Yields one process's training batches from `start_step` to the end of the run, one replica after another.

    In each step, all processes use the same bucket. The plan covers the run, with one number per example and epoch.
    Raises UserError if there are no files, or a record is bad.
    """
    corpus = _corpus(config, Path(data_dir))
    buckets = Buckets(corpus.lengths, config.bucket_limits)
    end_step = max(RunLength.of(config).train_steps, start_step + 1)
    plan = buckets.ahead(config.seed, config.global_batch_size, shard, start_step, end_step)
    return planned(corpus, *plan, batch_size)


def planned(corpus: Corpus, lengths: np.ndarray, examples: np.ndarray, batch_size: int) -> tf.data.Dataset:
    """Makes a plan's batches. TensorFlow's own operations gather them, so that TPU hosts can run the pipeline.

    Args:
      lengths: int [steps], the padded sentence length in each step.
      examples: int32 [steps, n * batch_size], numbers of pairs; -1 is padding.
      batch_size: rows of a batch; a step yields n batches.
    """
    sides = {name: _Rows(getattr(corpus, name)) for name in SIDES}
    number = tf.constant(corpus.number.astype(np.int32))

    def batch(length: tf.Tensor, rows: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = tf.ensure_shape(rows, [batch_size])
        real = rows >= 0
        padded = {
            "index": tf.where(real, tf.gather(number, tf.maximum(rows, 0)), -1),
            "weight": tf.cast(real, tf.float32),
        }
        for name, side in sides.items():
            padded[name], padded[f"{name}_length"] = side(rows, length)
        return padded

    per_step = examples.shape[1] // batch_size
    each = np.repeat(lengths, per_step), examples.reshape(-1, batch_size)
    batches = tf.data.Dataset.from_tensor_slices(each).map(
        batch, num_parallel_calls=pipeline.parallel_calls()
    )
    return pipeline.untuned(batches).prefetch(tf.data.AUTOTUNE)


class _Rows:
    """Gathers one language's sentences, in TensorFlow; index -1 gives an empty sentence."""

    def __init__(self, side: Side):
        self._tokens, self._starts = tf.constant(side.tokens), tf.constant(side.starts)

    def __call__(self, index: tf.Tensor, length: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns sentences `index`, int32 [rows, length], padded with 0, and their lengths, int32 [rows]."""
        real = tf.maximum(index, 0)
        first = tf.gather(self._starts, real)
        sizes = tf.where(index < 0, tf.zeros_like(first), tf.gather(self._starts, real + 1) - first)
        places = tf.range(length)
        inside = places < sizes[:, None]
        tokens = tf.cast(tf.gather(self._tokens, tf.where(inside, first[:, None] + places, 0)), tf.int32)
        return tf.where(inside, tokens, 0), tf.cast(sizes, tf.int32)


def eval_input(config: Config, data_dir: str | os.PathLike, shard: Shard, batch_size: int) -> tf.data.Dataset:
    """Makes one pass over this shard's source sentences, padded so that all shards yield equally many batches.

    The longest sentences come first. So all replicas have sentences of similar length in a step, and a search ends
    early. Padding repeats the shortest sentence, with weight 0 and index -1, because the search may not end for an
    empty sentence. Raises UserError if a file is bad, or a sentence is longer than `decode.source_length`; evaluation
    drops nothing.
    """
    arrays = _sentences(config, Path(data_dir))
    order = np.argsort(-arrays["source_length"], kind="stable")
    arrays = {name: array[order] for name, array in arrays.items()}
    filler = {name: array[-1] for name, array in arrays.items()} | {"index": -1}
    return padding.shard_of(arrays, filler, shard, config.eval_batch_size, batch_size).prefetch(1)


def synthetic(config: Config, batch_size: int, lengths: Sequence[int]) -> tf.data.Dataset:
    """Repeats batches of seeded noise, cycling through `lengths`, with the element_spec of `train_input`."""
    limits, last = tf.constant(list(lengths)), max(lengths)
    longest = {name: tf.constant(value) for name, value in _noise(config, batch_size, last, last).items()}

    def cut(step: tf.Tensor) -> dict[str, tf.Tensor]:
        length = limits[step % len(lengths)]
        sides = {name: tf.ensure_shape(longest[name][:, :length], [batch_size, None]) for name in SIDES}
        sizes = {f"{name}_length": tf.fill([batch_size], length) for name in SIDES}
        return {**longest, **sides, **sizes}

    return tf.data.Dataset.counter().map(cut)


def synthetic_eval(config: Config, batch_size: int) -> tf.data.Dataset:
    """Repeats one batch of seeded noise with the element_spec of `eval_input`."""
    batch = _noise(config, batch_size, config.decode.source_length, 1)
    return tf.data.Dataset.from_tensors(batch).repeat()


def _noise(config: Config, batch_size: int, source: int, target: int) -> Batch:
    rng = np.random.default_rng(config.seed)

    def rows(length: int) -> np.ndarray:
        return rng.integers(3, config.vocabulary_size, [batch_size, length]).astype(np.int32)

    return {
        "source": rows(source),
        "source_length": np.full(batch_size, source, np.int32),
        "target": rows(target),
        "target_length": np.full(batch_size, target, np.int32),
        "index": np.arange(batch_size, dtype=np.int32),
        "weight": np.ones(batch_size, np.float32),
    }


def check_files(config: Config, data_dir: str | os.PathLike) -> None:
    """Checks file names, and a note's record counts, without opening a data file.

    Raises UserError if files or a library are missing, or there are fewer pairs than configured.
    """
    bpe.check_installed()
    data, folder = config.data, Path(data_dir)
    for name in (data.codes, data.vocabulary):
        check_there(folder / name, "init_datasets.sh makes it")
    for name in (data.eval_source, data.eval_reference):
        check_there(folder / name, "correct the path")
    counts = record_counts.noted(tfrecords.list_files(data_dir, data.train_pattern, FIX))
    # The count is an upper bound, because loading omits pairs that are too long for the configuration.
    if counts is not None and sum(counts) < config.num_train_examples:
        raise UserError(
            f"{data_dir} holds {sum(counts)} pairs, but config.num_train_examples is {config.num_train_examples}; give "
            "other data, or set it to the number of pairs with at most config.max_sequence_length tokens"
        )


def check(config: Config, data_dir: str | os.PathLike) -> None:
    """Raises UserError if files are missing or bad, or their example counts differ from the configuration's."""
    translation.check_count(config, Path(data_dir), len(_sentences(config, Path(data_dir))["index"]))
    corpus = _corpus(config, Path(data_dir))
    if len(corpus) != config.num_train_examples:
        raise UserError(
            f"{data_dir} holds {len(corpus)} pairs of up to {config.max_sequence_length} tokens (and {corpus.too_long} "
            f"longer ones, left out), config.num_train_examples is {config.num_train_examples}; "
            f"give --config.num_train_examples={len(corpus)}, or other data"
        )


def encoding(config: Config, data_dir: str | os.PathLike) -> bpe.Bpe:
    """Reads the data's merges and vocabulary; raises UserError if the vocabulary size differs from the network's."""
    return _encoding(config.data.codes, config.data.vocabulary, config.vocabulary_size, Path(data_dir))


@functools.lru_cache(maxsize=1)
def _encoding(codes: str, vocabulary: str, size: int, folder: Path) -> bpe.Bpe:
    words = bpe.Bpe(folder / codes, folder / vocabulary)
    subwords.check_size(words, size)
    return words


# The check and the stream share one reading.
_corpus = functools.lru_cache(maxsize=1)(load)


@functools.lru_cache(maxsize=1)  # The check and the batches share one reading.
def _sentences(config: Config, folder: Path) -> Batch:
    """Encodes all source sentences into the arrays of a batch; targets are empty."""
    words, language = encoding(config, folder), config.data.source_language
    sentences = translation.sentences(
        config, folder, lambda text: [bpe.BOS, *words.encode(text, language), bpe.EOS]
    )
    source = np.zeros([len(sentences), config.decode.source_length], np.int32)
    for row, tokens in zip(source, sentences):
        row[: len(tokens)] = tokens
    return {
        "source": source,
        "source_length": np.array([len(tokens) for tokens in sentences], np.int32),
        "target": np.zeros([len(sentences), 1], np.int32),
        "target_length": np.zeros(len(sentences), np.int32),
        "index": np.arange(len(sentences), dtype=np.int32),
    }
