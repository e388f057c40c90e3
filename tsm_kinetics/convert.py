"""Converts videos to the TFRecord shards that tsm_kinetics trains on.

    python -m tsm_kinetics.convert DATA_DIR --train videos/train --validation videos/val
    python -m tsm_kinetics.convert DATA_DIR --train train.csv --validation val.csv --videos /data/kinetics

A source is a folder CLASS/*.mp4 or a CSV file. A CSV file has the columns `path,label` and optionally `split`, or the
columns of Kinetics' own lists (label, youtube_id, time_start, time_end), whose files are named ID_000010_000020.mp4.
The converter skips videos that it cannot decode, counts them, and lists them in DATA_DIR/left_out.txt. A shard gets its
final name only when it is complete, so a restart after an interruption keeps the finished shards.
"""

import argparse
import dataclasses
import hashlib
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from common.data import (
    conversion,
    folder_conversion,
    near_copies,
    pictures,
    record_counts,
    tables,
    text_files,
    tfrecords,
    videos,
)
from common.data.report import Report
from common.errors import Parser, UserError, answering, counted
from common.files import write_atomically
from tsm_kinetics import shards

_ORDER_SEED = 400  # Seeds the order that deals videos to shards.
LEFT_OUT = "left_out.txt"
UNFINISHED = {".part", ".crdownload", ".partial", ".tmp", ".download", ".ytdl", ".aria2"}
_KINETICS = {"label", "youtube_id", "time_start", "time_end"}  # Columns of Kinetics' own lists.


@dataclasses.dataclass(frozen=True)
class Item:
    """A video file, the name of its class, and of its group if a list gives one."""

    path: str
    label: str
    group: str = ""


def items(
    source: str | os.PathLike,
    base: str | os.PathLike | None = None,
    split: str = "",
    report: Report | None = None,
) -> list[Item]:
    """Lists the videos in a folder or CSV file.

    Raises UserError if the source cannot be read, lists no videos, or has no known columns.

    Args:
      source: a folder or a CSV file; see the module docstring.
      base: base folder of paths in the CSV file; by default, the CSV file's folder.
      split: selects rows with this value in the column `split`; "" selects all.
      report: receives the files of a folder that are not videos.
    """
    source = Path(source)
    if source.is_dir():
        listed_videos = list(_in_folders(source, report or Report()))
        expected = "folders CLASS/*.mp4"
    else:
        rows = listed(source, Path(base) if base else None, report)
        split_name = text_files.normal(split).lower()
        if split and not any(part for _, part in rows):
            fix = "leave out --train_split and the like"
            raise UserError(f"{source}: no column split to select {split!r} by; {fix}")
        listed_videos = [item for item, part in rows if not split or part == split_name]
        expected = f"rows{' of split ' + split if split else ''} below a line of column names"
    if not listed_videos:
        raise UserError(f"{source}: no videos; expected {expected}")
    return listed_videos


def _in_folders(source: Path, report: Report) -> Iterator[Item]:
    for folder in folder_conversion.folders(source):
        empty, found = True, folder_conversion.files(folder, report)
        frames = Counter(
            p.parent for p in found if p.parent != folder and p.suffix.lower() in pictures.SUFFIXES
        )
        for place, count in frames.items():
            if count > 1 and not any(path.suffix.lower() in videos.SUFFIXES for path in found):
                empty = False
                report.change("a folder of frames, read as a clip of 25 frames a second", str(place))
                yield Item(str(place), text_files.normal(folder.name))
        for path in found if empty else ():
            if path.suffix.lower() in UNFINISHED:
                report.leave_out("an unfinished download", str(path))
            elif path.suffix.lower() in videos.SUFFIXES or videos.is_video(path):
                empty = False
                yield Item(str(path), text_files.normal(folder.name))
            else:
                report.skip(f"no video ({path.suffix or 'no suffix'})", str(path))
        if empty:
            report.leave_out("no videos in it", str(folder))


def listed(source: Path, base: Path | None = None, report: Report | None = None) -> list[tuple[Item, str]]:
    """Returns the videos of a CSV file, each with its split in lower case, "" without one.

    Raises UserError if the file cannot be read, or a row is bad; the message names file and line.

    Args:
      source: the file; see the module docstring.
      base: folder of its paths; by default, the file's folder or the parent of it.
      report: for a user's own list: receives what is not read of it.
    """
    table = tables.read(source)
    if not set(table.columns) >= _KINETICS:
        return [(Item(str(e.path), e.label, e.group), e.split) for e in tables.examples(table, base, report)]
    examples = []
    for row, number in zip(table.rows, table.numbers):
        try:
            start, end = (int(float(row[name])) for name in ("time_start", "time_end"))
        except (ValueError, OverflowError):
            raise UserError(f"{source}: line {number}: time_start and time_end must be numbers") from None
        folder = base or source.parent
        name = f"{row['youtube_id']}_{start:06d}_{end:06d}.mp4"
        path = folder / row["label"] / name
        examples.append(
            (
                Item(str(path if os.path.isfile(path) else folder / name), row["label"]),
                row.get("split", "").lower(),
            )
        )
    return examples


def convert(
    data_dir: str | os.PathLike,
    splits: dict[str, tuple[list[Item], int]],
    short_side: int = videos.SHORT_SIDE,
    workers: int = 1,
) -> list[str]:
    """Writes the shards of `splits`, {prefix: (videos, number of shards)}; keeps shards that exist.

    Raises UserError if the first split lacks a class of a later one, the folder holds another conversion, the disk is
    full, or a split has no usable video.

    Args:
      splits: "train" comes first and defines the classes, numbered from 0 in alphabetical order.
      short_side: of the stored frames at most, in pixels; see `videos.read`.
      workers: number of processes.

    Returns:
      A line about every omitted video, and about every video cut off at a damaged place.
    """
    folder = Path(data_dir)
    classes = sorted({item.label for item in next(iter(splits.values()))[0]})
    labels = {name: number for number, name in enumerate(classes)}
    for split, (listed, count) in splits.items():
        if not 1 <= count <= len(listed):
            raise UserError(f"--{split}_shards {count}: must be 1..{len(listed)}, the number of videos")
        unknown = sorted({item.label for item in listed} - labels.keys())
        if unknown:
            raise UserError(f"{split}: class {unknown[0]!r} has no training videos; check the sources")
    _note(folder, splits, short_side, classes)
    tasks, paths = [], []
    for split, (listed, count) in splits.items():
        order = np.random.default_rng(_ORDER_SEED).permutation(len(listed))
        for shard in range(count):
            path = folder / tfrecords.shard_name(split, shard, count)
            paths.append(path)
            if not (path.is_file() and shards.index_path(path).is_file()):
                tasks.append((path, [listed[i] for i in order[shard::count]], labels, short_side))
    conversion.write_shards(_write_shard, tasks, workers)
    record_counts.write(folder, [path.name for path in paths])
    failed = _summary(folder, [note for split in splits for note in notes(folder, split)])
    for split in splits:
        if not len(shards.Index(folder, split)):
            raise UserError(f"{folder}: no readable video of split {split}; the first: {failed[0]}")
    return failed


def _summary(folder: Path, noted: Sequence[tuple[str, str, str]]) -> list[str]:
    """Writes and returns a line about each video that was left out or is damaged."""
    shown = {"left out": "left out: ", "damaged": ""}
    failed = sorted(f"{path}: {shown[kind]}{value}" for path, kind, value in noted if kind in shown)
    _write(folder / LEFT_OUT, failed)
    return failed


def _write(path: Path, lines: Sequence[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    write_atomically(path, text.encode(errors="backslashreplace"), "free some space or name another DATA_DIR")


def _write_shard(path: Path, listed: list[Item], labels: dict[str, int], short_side: int) -> None:
    noted: list[tuple[str, str, str]] = []

    def clips() -> Iterator[tuple[str, int, videos.Clip]]:
        for item in listed:
            try:
                clip = videos.read(item.path, short_side)
            except videos.BadVideoError as error:
                noted.append((item.path, "left out", str(error)))
                continue
            noted.extend(_notes(item.path, clip))
            yield Path(item.path).name, labels[item.label], clip

    shards.write(path, clips(), noted)


def _notes(path: str, clip: videos.Clip) -> Iterator[tuple[str, str, str]]:
    """Yields (path, kind, value) of a video that was kept: what reading changed, the damage, a digest of the frames."""
    if clip.turned:
        yield path, "changed", videos.TURNED
    if clip.shrunk:
        yield path, "changed", "video scaled down"
    if clip.stretched:
        yield path, "changed", "video of pixels that are not square, scaled to the shape that players show"
    if clip.remark:
        yield path, "damaged", clip.remark
    if len(clip.frames) < 2:
        yield path, "suspicious", "a video of one frame"
    digest = hashlib.sha256()
    for frame in clip.frames:
        digest.update(frame)
    yield path, "digest", digest.hexdigest()
    with Image.open(io.BytesIO(clip.frames[len(clip.frames) // 2])) as middle:
        yield path, "thumbnail", near_copies.thumbnail(np.asarray(middle.convert("RGB"))).hex()


def notes(folder: Path, split: str) -> list[tuple[str, str, str]]:
    """Returns what the conversion noted of the videos of a split, sorted.

    Each note is (path, kind, value). A video that was left out has one note of kind "left out", whose value is the
    reason. Every other video has a note of kind "digest" and one of "thumbnail"; `_notes` has the other kinds.
    """
    shown = []
    for path in tfrecords.list_files(folder, f"{split}-*", shards.FIX):
        with np.load(shards.index_path(path)) as index:
            shown += [tuple(row) for row in index["notes"].tolist()]
    return sorted(shown)


def _note(
    folder: Path, splits: dict[str, tuple[list[Item], int]], short_side: int, classes: list[str]
) -> None:
    """Rejects a folder that holds shards of another conversion; writes classes.txt."""
    settings = {"short_side": short_side}
    digest = hashlib.sha256(json.dumps(settings).encode())
    for split, (listed, count) in splits.items():
        digest.update(f"{split} {count}\n".encode())
        for item in listed:
            digest.update(os.fsencode(f"{item.label} {Path(item.path).name}\n"))
        digest.update(conversion.fingerprint(item.path for item in listed).encode())
    text = json.dumps({"conversion": digest.hexdigest(), **settings})
    conversion.keep_apart(folder, splits, "convert.json", text)
    _write(folder / "classes.txt", classes)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m tsm_kinetics.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data_dir", help="folder for the TFRecords")
    parser.add_argument("--train", required=True, help="a folder CLASS/*.mp4 or a CSV file")
    parser.add_argument("--validation", required=True, help="as --train")
    parser.add_argument("--videos", help="the folder that the CSV files' paths count from (default: theirs)")
    parser.add_argument("--train_split", default="", help="take only these rows of --train, by column split")
    parser.add_argument("--validation_split", default="", help="the same for --validation")
    parser.add_argument("--train_shards", type=int, default=1024)
    parser.add_argument("--validation_shards", type=int, default=128)
    side = "pixels of the stored frames; 256 as the paper"
    parser.add_argument("--short_side", type=int, default=videos.SHORT_SIDE, help=side)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="number of processes")
    return parser


@answering(interrupted="interrupted; the same command goes on with the shards that are missing")
def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m tsm_kinetics.convert`, see --help; returns the exit code."""
    arguments = _parser().parse_args(argv)
    splits = {
        "train": (items(arguments.train, arguments.videos, arguments.train_split), arguments.train_shards),
        "validation": (
            items(arguments.validation, arguments.videos, arguments.validation_split),
            arguments.validation_shards,
        ),
    }
    failed = convert(arguments.data_dir, splits, arguments.short_side, arguments.workers)
    for split in splits:
        index = shards.Index(arguments.data_dir, split)
        classes = Counter(index.label.tolist())
        print(f"{split}: {len(index)} videos of {len(classes)} classes, {int(index.count.sum())} frames")
    if failed:
        print(
            f"{counted(len(failed), 'video')} left out or damaged, see {Path(arguments.data_dir) / LEFT_OUT}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
