"""Reads packed TFRecords into training batches, and text into evaluation batches.

`transformer/convert.py` writes training records with tensor2tensor's packed features (`inputs`, `inputs_segmentation`,
`inputs_position`, and the same three for `targets`). Training and evaluation batches hold int32 [b, packed_length]
under the names in `model.INPUTS`, "index" int32 [b] and "weight" float32 [b]. An evaluation row is one source sentence.
"""

import functools
import json
import os
from pathlib import Path

import numpy as np
import tensorflow as tf

from common.data import padding, record_counts, record_stream, tfrecords
from common.distributed.replicas.base import Shard
from common.errors import UserError
from common.files import check_there
from common.text import subwords, translation
from common.text.subwords import Subwords, check_size
from transformer.config import NOTE, Config
from transformer.model import INPUTS

FIX = "set DATA_DIR to a folder that transformer/init_datasets.sh, transformer.convert or `timetotrain data` filled"
# Feature names in the records, in the order of INPUTS.
FEATURES = [f"{side}{of}" for side in ("inputs", "targets") for of in ("", "_segmentation", "_position")]
_SPEC = {name: tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True) for name in FEATURES}


def train_input(
    config: Config, data_dir: str | os.PathLike, shard: Shard, batch_size: int, start_step: int = 0
) -> tf.data.Dataset:
    """Yields one process's training batches without end, in an order that depends only on seed and epoch.

    Raises UserError if there are no files.
    """
    per_step = shard.batches_per_step(config.global_batch_size, batch_size)
    data = config.data
    files = tfrecords.list_files(data_dir, data.train_pattern, FIX)
    names = tf.constant(files)

    def parse(file: tf.Tensor, record: tf.Tensor, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        return _parse(config, serialized, [names[file], "record", record])

    def example(epoch: tf.Tensor, file: tf.Tensor, record: tf.Tensor, parsed: dict) -> dict[str, tf.Tensor]:
        return {**parsed, "index": tf.cast(record, tf.int32), "weight": tf.constant(1.0)}

    stream = record_stream.endless(
        files,
        shard,
        config.seed,
        data.shuffle_buffer,
        start=start_step * per_step * batch_size,
        transform=parse,
        cache=True,
    )
    return stream.map(example).batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def eval_input(config: Config, data_dir: str | os.PathLike, shard: Shard, batch_size: int) -> tf.data.Dataset:
    """Makes one pass over this shard's source sentences, padded so that all shards yield equally many batches.

    Raises UserError if a file is bad, or a sentence is longer than `decode.source_length`; evaluation drops nothing.
    """
    arrays = _sentences(config, Path(data_dir))
    filler = {name: np.zeros(array.shape[1:], array.dtype) for name, array in arrays.items()} | {"index": -1}
    return padding.shard_of(arrays, filler, shard, config.eval_batch_size, batch_size).prefetch(1)


def synthetic(config: Config, batch_size: int) -> tf.data.Dataset:
    """Repeats one batch of seeded noise with both inputs' element_spec; used to compile and time a step."""
    length = config.packed_length
    shape = [2, batch_size, length]
    key = tf.constant([config.seed, 0], tf.int64)
    tokens = tf.random.stateless_uniform(shape, key, 2, config.vocabulary_size, tf.int32, alg="philox")
    ones, places = tf.ones(shape[1:], tf.int32), tf.tile(tf.range(length)[None], [batch_size, 1])
    arrays = (tokens[0], ones, places, tokens[1], ones, places)
    batch = dict(zip(INPUTS, arrays)) | {"index": tf.range(batch_size), "weight": tf.ones([batch_size])}
    return tf.data.Dataset.from_tensors(batch).repeat()


def check_files(config: Config, data_dir: str | os.PathLike) -> None:
    """Checks file names and our own notes, without opening a data file.

    Raises UserError if files or a library are missing, or a note contradicts the configuration.
    """
    subwords.check_installed()
    data, folder = config.data, Path(data_dir)
    files = tfrecords.list_files(data_dir, data.train_pattern, FIX)
    check_there(folder / data.vocabulary, "init_datasets.sh makes it")
    for name in (data.eval_source, data.eval_reference):
        check_there(folder / name, "correct the path")
    _check_note(config, os.path.join(os.fspath(data_dir), NOTE))
    record_counts.check_totals(files, config.num_train_examples, "num_train_examples", read=False)


def check(config: Config, data_dir: str | os.PathLike) -> None:
    """Raises UserError if the data are bad, or their numbers of examples differ from the configuration's."""
    files = tfrecords.list_files(data_dir, config.data.train_pattern, FIX)
    record_counts.check_totals(files, config.num_train_examples, "num_train_examples")
    translation.check_count(config, Path(data_dir), len(_sentences(config, Path(data_dir))["index"]))


def _check_note(config: Config, path: str) -> None:
    """Raises UserError if the converter's note has other lengths; other converters leave no note."""
    if not tf.io.gfile.exists(path):
        return
    try:
        with tf.io.gfile.GFile(path) as file:
            note = dict(json.load(file))
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: no note of a conversion ({error}); convert the text again") from error
    for field, name in (("max_sequence_length", "max_length"), ("packed_length", "packed_length")):
        noted_length, configured_length = note.get(name), getattr(config, field)
        if noted_length not in (None, configured_length):
            raise UserError(
                f"{path}: the text was cut to {noted_length} tokens, config.{field} is {configured_length}; give "
                f"--config.{field}={noted_length}, or convert it again"
            )


def diagnose(config: Config, data_dir: str | os.PathLike) -> UserError:
    """Names the bad training file and record after the input has failed."""

    def check_record(serialized: bytes) -> str | None:
        try:
            _parse(config, tf.constant(serialized), ["packed sequence"])
        except tf.errors.InvalidArgumentError as error:
            return _complaint(error)
        return None

    def find() -> UserError | None:
        files = tfrecords.list_files(data_dir, config.data.train_pattern, FIX)
        return tfrecords.diagnose(files, check_record)

    return tfrecords.explain(data_dir, find)


def _complaint(error: tf.errors.InvalidArgumentError) -> str:
    for part in (
        "longer than config.packed_length",
        "token outside 0 .. config.vocabulary_size - 1",
        "sentence longer than config.max_sequence_length",
        "segment number outside 1 .. config.packed_length",
        "features differ",
    ):
        if part in str(error):
            return {"features differ": "its features are not of one length"}.get(
                part, f"a side is or has a {part}"
            )
    return "not a tf.train.Example with the features of a packed sequence"


def _parse(config: Config, serialized: tf.Tensor, where: list) -> dict[str, tf.Tensor]:
    """Parses a record's INPUTS, int32 [packed_length]; a bad record ends the stream with an error that names it."""
    parsed = tf.io.parse_single_example(serialized, _SPEC)
    length = config.packed_length
    sizes = {name: tf.size(parsed[name]) for name in FEATURES}
    short = tf.reduce_all([size <= length for size in sizes.values()])
    equal = tf.reduce_all([sizes[name] == sizes[name.split("_")[0]] for name in FEATURES])
    tokens = _within(parsed, "", 0, config.vocabulary_size)
    places = _within(parsed, "_position", 0, config.max_sequence_length)
    numbers = _within(parsed, "_segmentation", 1, length + 1)
    checks = [
        tf.debugging.Assert(short, ["longer than config.packed_length", *where]),
        tf.debugging.Assert(equal, ["features differ", *where]),
        tf.debugging.Assert(tokens, ["token outside 0 .. config.vocabulary_size - 1", *where]),
        tf.debugging.Assert(places, ["sentence longer than config.max_sequence_length", *where]),
        tf.debugging.Assert(numbers, ["segment number outside 1 .. config.packed_length", *where]),
    ]
    with tf.control_dependencies([c for c in checks if c is not None]):
        return {
            ours: tf.ensure_shape(
                tf.pad(tf.cast(parsed[name], tf.int32), [[0, length - sizes[name]]]), [length]
            )
            for ours, name in zip(INPUTS, FEATURES)
        }


def _within(parsed: dict[str, tf.Tensor], suffix: str, low: int, high: int) -> tf.Tensor:
    """Tests whether both sides' features hold only numbers in [low, high)."""
    both = tf.concat([parsed[side + suffix] for side in ("inputs", "targets")], 0)
    return tf.reduce_all((both >= low) & (both < high))


@functools.lru_cache(maxsize=1)  # The check and the batches share one reading.
def _sentences(config: Config, folder: Path) -> dict[str, np.ndarray]:
    """Encodes all source sentences into the arrays of a batch; targets are empty."""
    words = Subwords(folder / config.data.vocabulary)
    check_size(words, config.vocabulary_size)
    sentences = translation.sentences(config, folder, words.encode)
    arrays = {name: np.zeros([len(sentences), config.packed_length], np.int32) for name in INPUTS}
    for i, tokens in enumerate(sentences):
        arrays["inputs"][i, : len(tokens)] = tokens
        arrays["inputs_segment"][i, : len(tokens)] = 1
        arrays["inputs_position"][i, : len(tokens)] = np.arange(len(tokens))
    return {**arrays, "index": np.arange(len(sentences), dtype=np.int32)}
