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
import functools
import hashlib
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

import numpy as np
from PIL import Image

from common.data import (
    conversion,
    folder_conversion,
    given_splits,
    near_copies,
    record_counts,
    split_names,
    table_examples,
    tables,
    text_files,
    tfrecords,
    videos,
)
from common.data.partners import Partners, plain
from common.data.report import Report
from common.errors import Parser, UserError, answering, counted, near
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
        expected = "folders CLASS/*.mp4, or of frames, CLASS/CLIP/*.jpg"
        if not listed_videos:
            raise given_splits.nothing(source, "videos", videos.is_video, expected)
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
        empty, files = True, folder_conversion.files(folder, report)
        clips = [place for place in videos.frame_folders(files) if place != folder]
        for place in clips:
            empty = False
            report.change("a folder of frames, read as a clip of 25 frames a second", str(place))
            yield Item(str(place), text_files.normal(folder.name))
        for path in files:
            if path.parent in clips:
                continue
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

    `base` is the folder of its paths; by default, the file's folder or the parent of it. `report`, for a user's own
    list, receives what is not read of it. Raises UserError if the file cannot be read, or a row is bad; the message
    names file and line.
    """
    table = tables.read(source)
    if not set(table.columns) >= _KINETICS:
        return [
            (Item(str(e.path), e.label, e.group), e.split)
            for e in table_examples.examples(table, base, report)
        ]
    examples = []
    folder = base or source.parent
    partners = Partners(folder, videos.SUFFIXES)
    labels = {_spelled(row["label"]) for row in table.rows} - {""}
    for row, number in zip(table.rows, table.numbers):
        try:
            start, end = (int(float(row[name])) for name in ("time_start", "time_end"))
        except (ValueError, OverflowError):
            raise UserError(f"{source}: line {number}: time_start and time_end must be numbers") from None
        name = f"{row['youtube_id']}_{start:06d}_{end:06d}"
        label, split = (text_files.normal(row.get(column, "")) for column in ("label", "split"))
        usual = [place / f"{name}.mp4" for place in (folder / row["label"], folder)]
        path = next(filter(os.path.isfile, usual), None) or (
            folder / (_elsewhere(partners, name, source, labels, label, split) or usual[1])
        )
        examples.append((Item(str(path), label), split.lower()))
    return examples


def _elsewhere(
    partners: Partners, name: str, source: Path, labels: Set[str], label: str, split: str
) -> str | None:
    """Returns the video `name` of a row in a folder of its label, or else of none, and not of another split.

    Raises UserError if two videos fit.
    """

    def fits(folders: Set[str], file: str, _: str) -> bool:
        parents = {*_spelled(os.path.dirname(file)).split("/")}
        parts = {*map(split_names.part_of, (split, split_names.of_path(file)))} - {None}
        return parents & labels == folders and len(parts) < 2

    ways = (functools.partial(fits, folders) for folders in ({_spelled(label)}, set()))
    return next(filter(None, (partners.of_stem(name, source, way) for way in ways)), None)


def _spelled(label: str) -> str:
    return plain(text_files.normal(label)).replace(" ", "_")


def convert(
    data_dir: str | os.PathLike,
    splits: dict[str, tuple[list[Item], int]],
    short_side: int = videos.SHORT_SIDE,
    workers: int = 1,
) -> list[str]:
    """Writes the shards of `splits`, {prefix: (videos, number of shards)}; keeps shards that exist.

    "train" comes first and defines the classes, numbered from 0 in alphabetical order. `short_side` is that of the
    stored frames at most, in pixels. Returns a line about every omitted video, and about every video cut off at a
    damaged place. Raises UserError if the first split lacks a class of a later one, the folder holds another
    conversion, the disk is full, or a split has no usable video.
    """
    folder = Path(data_dir)
    classes = sorted({item.label for item in next(iter(splits.values()))[0]})
    labels = {name: number for number, name in enumerate(classes)}
    for split, (listed, count) in splits.items():
        if not 1 <= count <= len(listed):
            raise UserError(f"--{split}_shards {count}: must be 1..{len(listed)}, the number of videos")
        unknown = sorted({item.label for item in listed} - labels.keys())
        if unknown:
            fix = f"give it some, or another name{near(unknown[0], classes)}"
            raise UserError(f"{split}: class {unknown[0]!r} has no training videos; {fix}")
    _note(folder, splits, short_side, classes)
    tasks = [
        (path, part, labels, short_side)
        for path, part in tfrecords.deal(folder, splits, _ORDER_SEED)
        if not (path.is_file() and shards.index_path(path).is_file())
    ]
    conversion.write_shards(_write_shard, tasks, workers)
    record_counts.write(folder, tfrecords.shard_names((s, count) for s, (_, count) in splits.items()))
    failed = _summary(folder, [note for split in splits for note in notes(folder, split)])
    for split in splits:
        if not len(shards.Index(folder, split)):
            raise UserError(f"{folder}: no readable video of split {split}; the first: {failed[0]}")
    return failed


def _summary(folder: Path, noted: Sequence[tuple[str, str, str]]) -> list[str]:
    """Writes and returns a line about each video that was left out or is damaged."""
    prefixes = {"left out": "left out: ", "damaged": ""}
    failed = sorted(f"{path}: {prefixes[kind]}{value}" for path, kind, value in noted if kind in prefixes)
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
    yield from ((path, "changed", change) for change in clip.changes)
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
    rows = []
    for path in tfrecords.list_files(folder, f"{split}-*", shards.FIX):
        with np.load(shards.index_path(path)) as index:
            rows += [tuple(row) for row in index["notes"].tolist()]
    return sorted(rows)


def _note(
    folder: Path, splits: dict[str, tuple[list[Item], int]], short_side: int, classes: list[str]
) -> None:
    """Rejects a folder that holds shards of another conversion; writes classes.txt."""
    settings = {"short_side": short_side}
    head = json.dumps(settings)
    digest = conversion.digest_of(splits, lambda item: f"{item.label} {Path(item.path).name}", head)
    text = json.dumps({"conversion": digest, **settings})
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
