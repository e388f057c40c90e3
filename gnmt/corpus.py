"""Loads all training pairs into memory as token numbers; 3.4 million pairs take half a gigabyte.

A bucket's batch has pairs from anywhere in the data. So every process holds all pairs, makes the same plan of batches
(common/data/bucketing.py) and takes its part of it.
"""

import dataclasses
import os
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from common.data import pipeline, tfrecords
from common.errors import UserError
from common.text.bpe import BOS, EOS
from gnmt.config import Config

FIX = "set DATA_DIR to a folder that gnmt/init_datasets.sh, gnmt.convert or `timetotrain data` filled"
SIDES = ("source", "target")
_SPEC = {side: tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64) for side in SIDES}
_BATCH = 4096  # Records parsed at once.


@dataclasses.dataclass(frozen=True)
class Side:
    """One language's sentences, end to end: sentence i is tokens[starts[i] : starts[i + 1]]."""

    tokens: np.ndarray
    starts: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    def sentence(self, number: int) -> np.ndarray:
        """Returns a sentence's tokens."""
        return self.tokens[self.starts[number] : self.starts[number + 1]]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The pairs within the configuration's length limit.

    Attributes:
      source, target: the sentences; sources have BOS and EOS, targets only EOS.
      number: number of each pair among all records.
      too_long: number of omitted pairs.
    """

    source: Side
    target: Side
    number: np.ndarray
    too_long: int

    def __len__(self) -> int:
        return len(self.number)

    @property
    def lengths(self) -> np.ndarray:
        """Returns the length of each pair's longer side."""
        return np.maximum(self.source.lengths, self.target.lengths)


def load(config: Config, data_dir: str | os.PathLike) -> Corpus:
    """Loads the training pairs in the order of the records.

    Raises UserError if there are no files, or a record is bad; the message names file and record.
    """
    files = tfrecords.list_files(data_dir, config.data.train_pattern, FIX)
    columns: dict[str, list[np.ndarray]] = {name: [] for side in SIDES for name in (side, f"{side}_sizes")}
    try:
        for batch in _parsed(files):
            for side in SIDES:
                columns[side].append(batch[side].values.numpy())
                columns[f"{side}_sizes"].append(batch[side].row_lengths().numpy())
    except tf.errors.OpError as error:
        raise _diagnose(config, files) from error
    if not columns["source"]:
        raise UserError(f"{files[0]}: no sentence pairs in {len(files)} such files; {FIX}")
    whole = {name: np.concatenate(arrays) for name, arrays in columns.items()}
    if not _sound(config, whole):
        raise _diagnose(config, files)
    return _fitting_pairs(config, whole)


def _parsed(files: list[str]) -> Iterator[dict[str, tf.RaggedTensor]]:
    data = tf.data.TFRecordDataset(files, buffer_size=1 << 20).batch(_BATCH)
    parse = data.map(
        lambda batch: tf.io.parse_example(batch, _SPEC), num_parallel_calls=pipeline.parallel_calls()
    )
    return iter(pipeline.untuned(parse.prefetch(tf.data.AUTOTUNE)))


def _sound(config: Config, arrays: dict[str, np.ndarray]) -> bool:
    """Tests whether every source has BOS and EOS, every target EOS, and every token is in the vocabulary."""
    for side in SIDES:
        sizes, tokens = arrays[f"{side}_sizes"], arrays[side]
        if sizes.min() < 1 + (side == "source") or tokens.min() < 0 or tokens.max() >= config.vocabulary_size:
            return False
        ends = np.cumsum(sizes)
        if (tokens[ends - 1] != EOS).any() or (side == "source" and (tokens[ends - sizes] != BOS).any()):
            return False
    return True


def _fitting_pairs(config: Config, arrays: dict[str, np.ndarray]) -> Corpus:
    sizes = {side: arrays[f"{side}_sizes"] for side in SIDES}
    # A target's length counts the BOS that the decoder starts with.
    fits = np.maximum(sizes["source"], sizes["target"] + 1) <= config.max_sequence_length
    small = np.uint16 if config.vocabulary_size <= 1 << 16 else np.int32

    def side(name: str) -> Side:
        tokens = arrays[name][np.repeat(fits, sizes[name])].astype(small)
        return Side(tokens, np.concatenate([[0], np.cumsum(sizes[name][fits])]))

    return Corpus(side("source"), side("target"), np.flatnonzero(fits), int((~fits).sum()))


def _diagnose(config: Config, files: list[str]) -> UserError:
    """Finds the bad record by parsing each on its own."""

    def complaint(serialized: bytes) -> str | None:
        try:
            parsed = tf.io.parse_example([serialized], _SPEC)
        except tf.errors.InvalidArgumentError:
            return "not a tf.train.Example with the features of a sentence pair"
        for side in SIDES:
            tokens = parsed[side].values.numpy()
            if not len(tokens) or tokens[-1] != EOS or (side == "source" and tokens[0] != BOS):
                return f"its {side} has not both ends" if side == "source" else f"its {side} has no end"
            if tokens.min() < 0 or tokens.max() >= config.vocabulary_size:
                return f"its {side} has a token beyond config.vocabulary_size={config.vocabulary_size}"
            if side == "source" and len(tokens) < 2:
                return "its source has not both ends"
        return None

    return tfrecords.explain(f"{files[0]} and the like", lambda: tfrecords.diagnose(files, complaint))
