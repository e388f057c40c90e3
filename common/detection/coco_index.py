"""Indexes COCO records, and groups them into batches whose images all have the same orientation.

A batch with static shapes cannot mix orientations, and all replicas must run the same program in a step. As in
common/data/bucketing.py, every host makes the same plan and takes its part, so hosts send nothing. The plan needs each
image's height and width before decoding. The converter writes them to an index file next to the records, so that no
run reads them on the clock.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from common.data import npz, tfrecords
from common.distributed.replicas.base import Shard
from common.errors import UserError
from common.files import whole
from common.untrusted import NPZ_DAMAGE

VERSION = 2  # Version of the index file.
_HEADER, _FOOTER = 12, 4  # Bytes around a record's payload, see common/data/tfrecords.py.
_THREADS = 8
_SIDES = ("ymin", "xmin", "ymax", "xmax")


@dataclasses.dataclass(frozen=True)
class Index:
    """One row per record, in the order of the files.

    Attributes:
      files: paths.
      file: number of the file.
      record: number of the record in its file.
      offset, length: position and size of the payload in the file, in bytes.
      image_id: COCO's image id.
      height, width: image size in pixels, from the record.
      objects: number of annotations, crowds included, whose box has an area above 0.
      no_area: number of annotations whose box has no area.
      masks: number of annotations with a mask.
    """

    files: tuple[str, ...]
    file: np.ndarray
    record: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    image_id: np.ndarray
    height: np.ndarray
    width: np.ndarray
    objects: np.ndarray
    no_area: np.ndarray
    masks: np.ndarray

    def __len__(self) -> int:
        return len(self.image_id)

    @property
    def wide(self) -> np.ndarray:
        """bool [n]: whether the image is wider than high; False for square ones (G7 mask_rcnn dataloader.py)."""
        return self.width > self.height


_COLUMNS = tuple(field.name for field in dataclasses.fields(Index))[1:]


def read(files: Sequence[str]) -> Index:
    """Returns the index of the files: the one next to them, or a new one, for which it reads all files.

    Raises UserError if a record is damaged or not a COCO image; the message names file and record.
    """
    return _read(tuple(map(os.fspath, files)), _state(files))


@functools.lru_cache(maxsize=4)
def _read(files: tuple[str, ...], state: tuple) -> Index:
    note = _index_file(files)
    # A damaged index file is written again.
    with contextlib.suppress(*NPZ_DAMAGE):
        if note and note.is_file():
            with npz.opened(note) as stored:
                if str(stored["state_of_files"]) == repr(state):
                    index = Index(files, *(stored[f"{name}_of"] for name in _COLUMNS))
                    _check_places(index, [size for _, size in state[1:]])
                    return index
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        parts = list(pool.map(_scan, range(len(files)), files))
    rows = np.array([row for part in parts for row in part], np.int64).reshape(-1, len(_COLUMNS))
    index = Index(files, *rows.T.copy())
    if note:
        _keep(note, index, state)
    return index


def _check_places(index: Index, sizes: Sequence[int]) -> None:
    """Raises ValueError if an index from disk has a record outside its file."""
    if not (
        np.isin(index.file, range(len(sizes))).all()
        and (index.offset >= 0).all()
        and (index.length >= 0).all()
    ):
        raise ValueError("a record of no file")
    if (index.length > np.array(sizes, np.int64)[index.file]).any():
        raise ValueError("a record is longer than its file")


def _state(files: Sequence[str]) -> tuple:
    """Returns the files' names and sizes, to detect a stale index; not their times, which copies do not keep."""
    return VERSION, *((os.path.basename(file), tf.io.gfile.stat(os.fspath(file)).length) for file in files)


def keep(files: Sequence[str]) -> None:
    """Writes the index next to the files if it is missing; reads all files, and raises the same errors as `read`."""
    index = read(files)
    if not is_kept(files) and (path := _index_file(files)):
        _keep(path, index, _state(files))


def is_kept(files: Sequence[str]) -> bool:
    """Whether an index file is next to the files; does not open it, so it may belong to other files."""
    path = _index_file(files)
    return path is not None and path.is_file()


def _index_file(files: Sequence[str]) -> Path | None:
    """Returns the index path, such as "train.index.npz" for train-00000-of-00256.tfrecord; None in an object store."""
    if "://" in files[0]:
        return None
    first = Path(files[0])
    return first.with_name(f"{first.name.partition('-')[0]}.index.npz")


def _keep(path: Path, index: Index, state: tuple) -> None:
    """Writes the index file; if the folder cannot be written, each run makes the index again."""
    with contextlib.suppress(OSError), whole(path) as file:
        np.savez(file, state_of_files=repr(state), **{f"{n}_of": getattr(index, n) for n in _COLUMNS})


def _scan(number: int, path: str) -> list[tuple[int, ...]]:
    rows, position = [], 0
    for record, serialized in enumerate(tfrecords.read(path)):
        position += _HEADER
        rows.append((number, record, position, len(serialized), *_look(serialized, path, record)))
        position += len(serialized) + _FOOTER
    return rows


def _look(serialized: bytes, path: str, record: int) -> tuple[int, ...]:
    """Returns (image_id, height, width, objects, no_area, masks) of a record."""
    try:
        features = tf.train.Example.FromString(serialized).features.feature
        size = [features[f"image/{side}"].int64_list.value[0] for side in ("height", "width")]
        image = int(features["image/source_id"].bytes_list.value[0])
    except Exception as error:  # Protobuf's implementations have different DecodeError classes.
        raise UserError(
            f"{path}: record {record} is not a tf.train.Example with image/height, image/width and image/source_id; "
            "replace the file"
        ) from error
    sides = [np.array(features[f"image/object/bbox/{side}"].float_list.value) for side in _SIDES]
    if len({len(side) for side in sides}) > 1:
        fix = "replace the file"
        raise UserError(f"{path}: record {record}, image {image}: sides of a box are missing; {fix}")
    real = int(((sides[2] > sides[0]) & (sides[3] > sides[1])).sum())
    masks = len(features["image/object/mask"].bytes_list.value)
    return image, *size, real, len(sides[0]) - real, masks


class Reader:
    """Reads single records of an index with TensorFlow operations."""

    def __init__(self, index: Index, cache: bool):
        """With `cache`, records stay in memory after they are read."""
        self._files, self._file = tf.constant(index.files), tf.constant(index.file)
        self._offset, self._length = tf.constant(index.offset), tf.constant(index.length)
        self._cache = tf.lookup.experimental.MutableHashTable(tf.int64, tf.string, b"") if cache else None

    def __call__(self, number: tf.Tensor) -> tf.Tensor:
        """Returns the serialized record, a scalar string; `number` is an int64 scalar.

        Raises tf.errors.InvalidArgumentError if the record is damaged, or the file changed after it was indexed.
        """
        if self._cache is None:
            return self._read(number)
        cached = self._cache.lookup(number)
        return tf.cond(tf.equal(cached, b""), lambda: self._read_and_cache(number), lambda: cached)

    def _read_and_cache(self, number: tf.Tensor) -> tf.Tensor:
        record = self._read(number)
        with tf.control_dependencies([self._cache.insert(number, record)]):
            return tf.identity(record)

    def _read(self, number: tf.Tensor) -> tf.Tensor:
        path, length = self._files[self._file[number]], self._length[number]
        records = tf.raw_ops.TFRecordDatasetV2(
            filenames=path[None],
            compression_type="",
            buffer_size=_HEADER + length + _FOOTER,
            byte_offsets=self._offset[number][None] - _HEADER,
        )
        dataset = tf.data.experimental.from_variant(records, tf.TensorSpec([], tf.string)).ignore_errors()
        record = dataset.concatenate(tf.data.Dataset.from_tensors("")).take(1).get_single_element()
        same = tf.equal(tf.strings.length(record), tf.cast(length, tf.int32))
        message = [path, "is damaged, or has changed since it was indexed"]
        with tf.control_dependencies([tf.debugging.Assert(same, message)]):
            return tf.identity(record)


@dataclasses.dataclass(frozen=True)
class Batch:
    """A shard's part of a step: each example's epoch [n] and number [n], and the group that they share."""

    epochs: np.ndarray
    examples: np.ndarray
    group: int


class Grouping:
    """Makes global batches, each from a single group, epoch after epoch.

    Each epoch reshuffles all examples. A group emits a batch as soon as it is full, and carries its leftover examples
    to the next epoch. The sequence is a pure function of (groups, seed), so it can start at any step.
    """

    def __init__(self, groups: np.ndarray, global_batch: int, seed: int):
        """Takes the group of each example, int [examples], and the examples per step over all replicas."""
        self._groups, self._batch, self._seed = np.asarray(groups), global_batch, seed
        self._kinds = [int(kind) for kind in np.unique(self._groups)]
        self._sizes = {kind: int((self._groups == kind).sum()) for kind in self._kinds}

    def first_step(self, epoch: int) -> int:
        """Returns the number of batches that are complete before `epoch`."""
        return sum(epoch * size // self._batch for size in self._sizes.values())

    def batches(self, shard: Shard, start_step: int = 0) -> Iterator[Batch]:
        """Yields this shard's part of step `start_step` and all later steps."""
        part = self._batch // shard.count
        rows = slice(shard.index * part, (shard.index + 1) * part)
        epoch = self._epoch_of(start_step)
        skip = start_step - self.first_step(epoch)
        waiting = {kind: self._left_before(epoch, kind) for kind in self._kinds}
        while True:
            full, waiting = self._collect(epoch, waiting)
            for kind, members in full[skip:]:
                epochs, examples = members[rows].T
                yield Batch(epochs, examples, kind)
            epoch, skip = epoch + 1, 0

    def ahead(self, shard: Shard, start_step: int, end_step: int) -> list[Batch]:
        """Returns this shard's part of the steps [start_step, end_step)."""
        return list(itertools.islice(self.batches(shard, start_step), end_step - start_step))

    def _order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self._seed % 2**63, epoch]).permutation(len(self._groups))

    def _members(self, epoch: int, kind: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns a group's (places in the epoch's order [n], (epoch, example) pairs [n, 2])."""
        order = self._order(epoch)
        places = np.flatnonzero(self._groups[order] == kind)
        return places, np.stack([np.full(len(places), epoch), order[places]], -1)

    def _epoch_of(self, step: int) -> int:
        """Returns the last epoch before which at most `step` batches are complete."""
        low, high = 0, (step + len(self._kinds) + 1) * self._batch // len(self._groups) + 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.first_step(middle) <= step:
                low = middle
            else:
                high = middle - 1
        return low

    def _left_before(self, epoch: int, kind: int) -> np.ndarray:
        """Returns a group's leftover (epoch, example) pairs [n, 2] at the start of `epoch`."""
        count, pairs = epoch * self._sizes[kind] % self._batch, []
        while sum(map(len, pairs)) < count:
            epoch -= 1
            pairs.insert(0, self._members(epoch, kind)[1])
        return np.concatenate([np.zeros([0, 2], np.int64), *pairs])[-count if count else len(self._groups) :]

    def _collect(self, epoch: int, waiting: dict[int, np.ndarray]) -> tuple[list, dict[int, np.ndarray]]:
        """Returns the batches that an epoch completes, in order, and each group's leftover examples."""
        full, leftovers = [], {}
        for kind in self._kinds:
            places, members = self._members(epoch, kind)
            places = np.concatenate([np.full(len(waiting[kind]), -1), places])
            members = np.concatenate([waiting[kind], members])
            whole = len(members) // self._batch * self._batch
            for first in range(0, whole, self._batch):
                full.append((places[first + self._batch - 1], kind, members[first : first + self._batch]))
            leftovers[kind] = members[whole:]
        return [(kind, members) for _, kind, members in sorted(full, key=lambda batch: batch[0])], leftovers


def passes(groups: np.ndarray, global_batch: int, shard: Shard, steps: int) -> Iterator[Batch]:
    """Yields a shard's part of one pass over all examples, group after group; example number -1 is padding.

    `groups`, int [examples], has the group of each example. Of `steps` batches, `global_batch` examples each over all
    replicas, surplus ones are all padding and belong to the first group.
    """
    part, kinds = global_batch // shard.count, np.unique(groups)
    rows = slice(shard.index * part, (shard.index + 1) * part)
    count = 0
    for kind in kinds:
        members = np.flatnonzero(groups == kind)
        members = np.concatenate([members, np.full(-len(members) % global_batch, -1)])
        for batch in members.reshape(-1, global_batch):
            yield Batch(np.zeros(part, np.int64), batch[rows], int(kind))
            count += 1
    padding = np.full(part, -1)
    for _ in range(steps - count):
        yield Batch(np.zeros(part, np.int64), padding, int(kinds[0]))
