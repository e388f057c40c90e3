"""Names, counts, reads, writes and diagnoses TFRecord files; record_stream.py shuffles records."""

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from common.data import pipeline
from common.errors import UserError
from common.files import whole

# A frame: length u64, masked CRC of it u32, payload, masked CRC u32 (tensorflow/core/lib/io/record_writer.h)
_HEADER, _FOOTER = 12, 4
# Bytes to read ahead per file; the TPU reference uses 8 MiB (G6 resnet/imagenet_input.py).
READ_AHEAD = 1 << 20


def list_files(data_dir: str | os.PathLike, pattern: str, fix: str) -> list[str]:
    """Returns the sorted paths of the files in `data_dir` that match `pattern`.

    Raises UserError if the folder or its files are missing; the message ends with `fix`.
    """
    data_dir = os.fspath(data_dir)
    if not data_dir or not tf.io.gfile.isdir(data_dir):
        raise UserError(f"data folder {data_dir!r} does not exist; {fix}")
    files = sorted(tf.io.gfile.glob(os.path.join(data_dir, pattern)))
    if not files:
        raise UserError(f"data folder {data_dir}: no file matches {pattern!r}; {fix}")
    return files


def count(path: str | os.PathLike) -> int:
    """Counts the records of a file by jumping from header to header; does not read or verify contents.

    Raises UserError if the file ends inside a record; the message names file and record.
    """
    path = os.fspath(path)
    if "://" in path:  # An object store: jumping would cost a request per record.
        return int(tf.data.TFRecordDataset(path, buffer_size=READ_AHEAD).reduce(0, lambda n, _: n + 1))
    records, position, size = 0, 0, os.path.getsize(path)
    with open(path, "rb", buffering=0) as file:
        # Without this advice, the system's read-ahead would read the whole file.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        while position < size:
            header = os.pread(file.fileno(), _HEADER, position)
            if len(header) == _HEADER:
                position += _HEADER + struct.unpack_from("<Q", header)[0] + _FOOTER
            if len(header) < _HEADER or position > size:
                raise _damaged(path, records, "the file ends inside it or its length is corrupt")
            records += 1
    return records


def example(features: Mapping[str, bytes | str | int | Sequence[bytes | int | float]]) -> bytes:
    """Serializes a tf.train.Example; the first value of a feature decides its kind of list."""
    feature = {}
    for name, value in features.items():
        # A file's name that is not UTF-8 keeps its bytes.
        value = value.encode(errors="surrogateescape") if isinstance(value, str) else value
        values = [value] if isinstance(value, bytes | int) else value
        first = next(iter(values), 0.0)
        if isinstance(first, bytes):
            feature[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        elif isinstance(first, int):
            feature[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        else:
            feature[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString(deterministic=True)


Splits = Mapping[str, tuple[Sequence[Any], int]]  # {prefix: (items, number of shards)}.


def shard_name(prefix: str, index: int, total: int) -> str:
    """Returns a name such as "train-00003-of-01024", as the TPU reference's and tf-models' converters write it."""
    return f"{prefix}-{index:05d}-of-{total:05d}"


def shard_names(splits: Iterable[tuple[str, int]]) -> list[str]:
    """Returns the names of all files of the splits (prefix, number of files)."""
    return [shard_name(prefix, i, total) for prefix, total in splits for i in range(total)]


def deal(folder: Path, splits: Splits, seed: int) -> Iterator[tuple[Path, list[Any]]]:
    """Yields (path, items) of each shard; `seed` determines the order of the items."""
    for split, (items, shards) in splits.items():
        order = np.random.default_rng(seed).permutation(len(items))
        for shard, name in enumerate(shard_names([(split, shards)])):
            yield folder / name, [items[i] for i in order[shard::shards]]


def write(path: str | os.PathLike, records: Iterable[bytes]) -> int:
    """Writes a file atomically; returns the number of records.

    Raises UserError if the folder cannot be written or the disk is full.
    """
    path = Path(path)
    size = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as partial, tf.io.TFRecordWriter(os.fspath(partial)) as writer:
            for record in records:
                writer.write(record)
                size += 1
    except (OSError, tf.errors.OpError) as error:
        fix = "free some space or name another folder"
        raise UserError(f"cannot write {path}: {_first_line(error)}; {fix}") from error
    return size


def read(path: str | os.PathLike) -> Iterator[bytes]:
    """Yields the records of one file and verifies their checksums.

    Raises UserError for a damaged record; the message names file and record.
    """
    path = os.fspath(path)
    records = iter(pipeline.untuned(tf.data.TFRecordDataset(path, buffer_size=READ_AHEAD)))
    number, position = 0, 0
    while True:
        try:
            record = next(records, None)
        except tf.errors.OpError as error:
            raise _damaged(path, number, _first_line(error)) from error
        if record is None:
            break
        yield record.numpy()
        number += 1
        position += _HEADER + len(record.numpy()) + _FOOTER
    if "://" not in path and position < os.path.getsize(path):  # TensorFlow treats half a header as the end.
        raise _damaged(path, number, "the file ends inside its header")


def diagnose(
    files: Iterable[str], check: Callable[[bytes], str | None] = lambda record: None
) -> UserError | None:
    """Finds the record that made a stream fail: reads the files again, one record at a time.

    Args:
      files: in any order; reading stops at the first fault.
      check: returns the fault of a record with a correct checksum, or None.

    Returns:
      The error that names file and record, counted from 0, or None if every record is sound.
    """
    for path in files:
        try:
            for number, record in enumerate(read(path)):
                complaint = check(record)
                if complaint:
                    return UserError(f"{path}: record {number}: {complaint}; replace the file")
        except UserError as error:
            return error
    return None


def explain(where: str | os.PathLike, find: Callable[[], UserError | None]) -> UserError:
    """Returns the error that explains a failure of the input.

    Args:
      where: the data folder, for the message if the fault is no longer there.
      find: searches for the damage, like `diagnose`, and may raise UserError.
    """
    try:
        fault = find()
    except UserError as error:
        return error
    return fault or UserError(
        f"reading {where} failed, but every record is sound now; was a file replaced? Try again"
    )


def _damaged(path: str, record: int, why: str) -> UserError:
    return UserError(f"{path}: record {record} is damaged ({why}); replace the file with a good copy")


def _first_line(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    message = getattr(error, "message", "") or str(error)
    return message.splitlines()[0].split("}} ")[-1].split(" [Op:")[0]
