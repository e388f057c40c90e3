"""Makes batches of windows of tokens as a function of seed and step.

A batch has `tokens`, int32 [b, N + 1]: the first N are inputs, the last N labels. A batch of the evaluation has
`weight`, too, float32 [b]: 0 for padding. Before the clock a run reads the indices alone, which say how many tokens
each document has, and orders the windows; the rules allow this ("Other Uses of Data", training_policies
training_rules.adoc). Tokens are read on the clock.
"""

import dataclasses
import functools
import os
from pathlib import Path

import numpy as np
import tensorflow as tf

from common.config.run_length import RunLength
from common.data import padding, pipeline
from common.distributed.replicas.base import Shard
from common.errors import UserError
from llama31_8b import indexed, order
from llama31_8b.config import EVAL_TOKENS, TRAIN_TOKENS, Config

_ENDLESS = 2**40  # Number of steps in an endless stream; this number times the batches per step fits 64 bits.


@dataclasses.dataclass(frozen=True)
class Text:
    """The windows of a data set in the order of a run, and what reads their tokens."""

    order: order.Stream | order.Epochs
    reader: indexed.Reader

    def window(self, number: int) -> np.ndarray:
        """Returns the tokens of window `number` of the run, int32 [N + 1].

        Raises BadTokensError: see `indexed.Reader.read`.
        """
        return self.reader.read(self.order.pieces(int(number)))


def check_files(config: Config, data_dir: str | os.PathLike) -> None:
    """Reads both indices and orders the windows; does not open the tokens.

    Raises UserError if a file is missing or damaged, a text is shorter than the configuration says, or than one window.
    """
    for training in (True, False):
        load(config, data_dir, training)


def check(config: Config, data_dir: str | os.PathLike) -> None:
    """Reads the first window of each split.

    Raises UserError if that fails, or a token is not in the vocabulary.
    """
    for training in (True, False):
        try:
            load(config, data_dir, training).window(0)
        except indexed.BadTokensError as error:
            raise UserError(str(error)) from error


def diagnose(config: Config, data_dir: str | os.PathLike) -> UserError | None:
    """Returns why the tokens of an earlier batch could not be read, if that is so."""
    faults = [load(config, data_dir, training).reader.fault for training in (True, False)]
    return next((UserError(str(fault)) for fault in faults if fault), None)


def load(config: Config, data_dir: str | os.PathLike, training: bool) -> Text:
    """Returns a split's windows; reads its index once for equal files and settings.

    Raises UserError: see `check_files`.
    """
    data, run_length = config.data, RunLength.of(config)
    prefix = Path(data_dir, data.train_prefix if training else data.eval_prefix)
    stamps = tuple(
        (path.stat().st_size, path.stat().st_mtime_ns) for path in indexed.paths(prefix) if path.is_file()
    )
    if training:
        samples = run_length.train_steps * config.global_batch_size
    else:
        # NEMO nemo/collections/llm/gpt/data/pre_training.py build: windows of all evaluations of a run.
        evaluations = run_length.train_steps // run_length.steps_per_block + 1
        samples = evaluations * run_length.eval_steps * config.eval_batch_size
    return _loaded(prefix, stamps, config, training, samples)


@functools.lru_cache(maxsize=4)
def _loaded(prefix: Path, _: tuple, config: Config, training: bool, samples: int) -> Text:
    index, length = indexed.read_index(prefix), config.sequence_length
    windows = order.window_count(index.tokens, length)
    if not windows:
        raise UserError(
            f"{index.prefix}.idx: {index.tokens} tokens, but config.sequence_length={length} needs {length + 1}; "
            "use a longer text or a shorter sequence"
        )
    tokens = TRAIN_TOKENS if training else EVAL_TOKENS
    if config.division == "closed" and index.tokens != tokens:
        raise UserError(
            f"{index.prefix}.idx: {index.tokens:,} tokens, the published text has {tokens:,}; fill the folder with "
            "llama31_8b/init_datasets.sh, or log the run as --config.division=open"
        )
    if training and windows != config.num_train_examples:
        raise UserError(
            f"{index.prefix}.idx: {windows} windows of {length} tokens, {config.num_train_examples} expected; set "
            f"--config.num_train_examples={windows}"
        )
    if not training and windows < config.num_eval_examples:
        raise UserError(
            f"{index.prefix}.idx: {windows} windows of {length} tokens, fewer than config.num_eval_examples="
            f"{config.num_eval_examples}; set --config.num_eval_examples={windows}"
        )
    make = order.train_order if training else order.eval_order
    ordered = make(index.lengths, length, config.order, samples, config.seed)
    return Text(ordered, indexed.Reader(index, config.vocab_size))


def train_input(
    config: Config, data_dir: str | os.PathLike, shard: Shard, batch_size: int, start_step: int
) -> tf.data.Dataset:
    """Yields one shard's batches forever. `Task.train_input` describes the arguments."""
    text = load(config, data_dir, True)
    per_step = shard.batches_per_step(config.global_batch_size, batch_size)

    def batch(number: np.ndarray) -> np.ndarray:
        step, part = divmod(int(number), per_step)
        first = step * config.global_batch_size + (shard.index * per_step + part) * batch_size
        return np.stack([text.window(first + row) for row in range(batch_size)])

    def read(number: tf.Tensor) -> dict[str, tf.Tensor]:
        tokens = tf.numpy_function(batch, [number], tf.int32, stateful=False)
        return {"tokens": tf.ensure_shape(tokens, [batch_size, config.sequence_length + 1])}

    numbers = tf.data.Dataset.range(start_step * per_step, _ENDLESS * per_step)
    return pipeline.ahead(pipeline.prepared(numbers, read))


def eval_input(config: Config, data_dir: str | os.PathLike, shard: Shard, batch_size: int) -> tf.data.Dataset:
    """Makes one pass over this shard's windows of the evaluation in padded batches; padding has weight 0.

    A text with enough windows fills whole batches, as in the reference.
    """
    text = load(config, data_dir, False)
    count = min(config.examples_per_evaluation, len(text.order))
    per_step = shard.batches_per_step(config.eval_batch_size, batch_size)
    batches = padding.num_batches([-(-count // shard.count)], batch_size, per_step)

    def read(number: tf.Tensor) -> dict[str, tf.Tensor]:
        tokens = tf.numpy_function(text.window, [number], tf.int32, stateful=False)
        return {"tokens": tf.ensure_shape(tokens, [config.sequence_length + 1])}

    windows = pipeline.prepared(tf.data.Dataset.range(shard.index, count, shard.count), read)
    nothing = {"tokens": np.zeros(config.sequence_length + 1, np.int32)}
    return pipeline.ahead(padding.pad(windows, nothing, batch_size, batches))


def synthetic(config: Config, batch_size: int, training: bool = True) -> tf.data.Dataset:
    """Repeats one batch of seeded tokens with the element_spec of the training or evaluation input."""
    rng = np.random.default_rng(config.seed)
    shape = [batch_size, config.sequence_length + 1]
    batch = {"tokens": rng.integers(0, config.vocab_size, shape, np.int32)}
    if not training:
        batch["weight"] = np.ones([batch_size], np.float32)
    return tf.data.Dataset.from_tensors(batch).repeat()
