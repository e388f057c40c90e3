"""Reads and writes TFRecord shards of videos with an index of frames, so that a sample reads only the frames it needs.

A record is a tf.train.Example: video/frames (JPEG files), video/label, video/name, video/height, video/width. The index
`index-train-00003-of-00128.npz`, next to `train-00003-of-00128`, has the position of each frame in the file. TensorFlow
can read the records without the index; the index gives access to frames without parsing the record.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from common.data import npz, tfrecords
from common.data.videos import Clip
from common.errors import UserError
from common.files import whole, write_fix
from common.untrusted import NPZ_DAMAGE

FIX = "set DATA_DIR to a folder that tsm_kinetics/init_datasets.sh or `timetotrain data` filled"
_HEADER, _FOOTER = 12, 4  # Bytes before and after a record: tensorflow/core/lib/io/record_writer.h.
_OPEN_FILES = 256
_AGAIN = "remove both and run tsm_kinetics.convert again"


def index_path(shard: str | os.PathLike) -> Path:
    """Returns the path of a shard's index."""
    return Path(shard).with_name(f"index-{Path(shard).name}.npz")


def write(path: Path, clips: Iterable[tuple[str, int, Clip]], notes: Sequence[tuple[str, str, str]]) -> int:
    """Writes a shard and its index; returns the number of videos.

    Raises UserError if the folder cannot be written or the disk is full.

    Args:
      path: path of the shard.
      clips: (name, label, clip) of each video; consumed while writing.
      notes: (path, kind, value) of each remark on a video, which the index stores; read after `clips` ends.
    """
    labels, sizes, counts, offsets, lengths = [], [], [], [], []
    position = 0

    def serialized() -> Iterator[bytes]:
        nonlocal position
        for name, label, clip in clips:
            record = tfrecords.example(
                {
                    "video/frames": clip.frames,
                    "video/name": name,
                    "video/label": label,
                    "video/height": clip.height,
                    "video/width": clip.width,
                }
            )
            at = 0
            for frame in clip.frames:
                at = record.index(frame, at)
                offsets.append(position + _HEADER + at)
                lengths.append(len(frame))
                at += len(frame)
            labels.append(label)
            sizes.append((clip.height, clip.width))
            counts.append(len(clip.frames))
            position += _HEADER + len(record) + _FOOTER
            yield record

    count = tfrecords.write(path, serialized())
    arrays = {
        "label": np.array(labels, np.int32),
        "size": np.array(sizes, np.int32).reshape(-1, 2),
        "count": np.array(counts, np.int64),
        "offset": np.array(offsets, np.int64),
        "length": np.array(lengths, np.int32),
        "bytes": np.array(position),
        "notes": np.array(notes, dtype=str).reshape(-1, 3),
    }
    target = index_path(path)
    try:
        with whole(target) as file:
            np.savez(file, **arrays)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}; {write_fix(error)}") from error
    return count


class Index:
    """The position of every frame in a split.

    Attributes:
      files: paths of the shards.
      file: int [videos], index of the video's shard in `files`.
      label: int [videos].
      size: int [videos, 2], height and width in pixels.
      offset, length: int [frames], a frame's first byte in its shard and its number of bytes.
      first, count: int [videos]: a video's frames are first .. first + count - 1 of `offset` and `length`.
    """

    def __init__(self, data_dir: str | os.PathLike, split: str):
        """Reads the indices of all shards of `split`; takes 12 bytes per frame, 0.9 GB for Kinetics-400.

        Raises UserError if there are no shards, a shard has no valid index, or its length differs from its index.
        """
        self.files = tfrecords.list_files(data_dir, f"{split}-*", FIX)
        loaded = [_load(path) for path in self.files]
        self.file = np.repeat(np.arange(len(loaded)), [len(one["label"]) for one in loaded])
        for name in ("label", "size", "count", "offset", "length"):
            setattr(self, name, np.concatenate([one[name] for one in loaded]))
        self.first = np.cumsum(self.count) - self.count

    def __len__(self) -> int:
        return len(self.label)

    def read(self, video: int, frames: np.ndarray) -> list[bytes]:
        """Reads only the JPEG files of the given frames of a video, and no other bytes."""
        path = self.files[self.file[video]]
        places = self.first[video] + np.asarray(frames)
        return [_read(path, int(self.length[i]), int(self.offset[i])) for i in places]


def check_files(data_dir: str | os.PathLike, split: str) -> list[str]:
    """Returns the shards of `split` after checking that each has an index; opens none of them.

    Raises UserError if there are no shards, or an index is missing.
    """
    files = tfrecords.list_files(data_dir, f"{split}-*", FIX)
    for path in files:
        if not index_path(path).is_file():
            raise _no_index(path)
    return files


def _no_index(path: str) -> UserError:
    return UserError(f"{path}: its index {index_path(path).name} is missing; {_AGAIN}")


def _load(path: str) -> dict[str, np.ndarray]:
    index = index_path(path)
    try:
        arrays = npz.read(index)
        actual = os.path.getsize(path)
        begin, size = arrays["offset"], arrays["length"]
        if begin.dtype.kind not in "iu" or size.dtype.kind not in "iu" or arrays["count"].sum() != len(begin):
            raise ValueError("its frames do not add up")
        if (begin < 0).any() or (size < 0).any() or (size > actual).any():
            raise ValueError("a frame lies outside its shard")
        if actual != int(arrays["bytes"]):
            raise UserError(f"{path}: {actual} bytes, {int(arrays['bytes'])} expected; {_AGAIN}")
    except FileNotFoundError as error:
        raise _no_index(path) from error
    except NPZ_DAMAGE as error:
        raise UserError(f"{index}: damaged ({error}); {_AGAIN}") from error
    return arrays


@functools.lru_cache(_OPEN_FILES)
def _descriptor(path: str) -> _Open:
    return _Open(path)


class _Open:
    """A file descriptor that closes when neither the cache nor a reader holds it."""

    def __init__(self, path: str):
        self.number = os.open(path, os.O_RDONLY)

    def __del__(self):
        os.close(self.number)


def _read(path: str, length: int, offset: int) -> bytes:
    file = _descriptor(path)
    data = os.pread(file.number, length, offset)
    if len(data) != length:
        raise OSError(f"{path}: ends at byte {offset + len(data)}")
    return data


def complaint(record: bytes, num_classes: int) -> str | None:
    """Describes what is wrong with a record that has a correct checksum; None if the record is valid."""
    try:
        feature = tf.train.Example.FromString(record).features.feature
        label = feature["video/label"].int64_list.value[0]
        frames = feature["video/frames"].bytes_list.value
        if not 0 <= label < num_classes:
            return f"video/label is {label}, must be 0..{num_classes - 1} (config.num_classes={num_classes})"
        for number, frame in enumerate(frames):
            try:
                tf.io.decode_jpeg(frame, channels=3)
            except tf.errors.InvalidArgumentError:
                return f"frame {number} is not a JPEG image"
    except (DecodeError, ValueError, IndexError, TypeError):
        return "not a tf.train.Example with video/frames and video/label"
    return None if frames else "video/frames is empty"
