"""Converts your own videos, one folder per class or a CSV file, for `timetotrain data tsm_kinetics FOLDER OUT`."""

import dataclasses
import hashlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common.config import data_description
from common.config.data_description import Description
from common.data import baselines, folder_conversion, given_splits, pictures, text_files, videos
from common.data.folder_conversion import Card, Conversion, Options
from common.data.report import Report
from common.distributed.replicas.base import Shard
from common.errors import UserError
from tsm_kinetics import convert as converter
from tsm_kinetics import input as reader
from tsm_kinetics import shards
from tsm_kinetics.convert import Item
from tsm_kinetics.presets import PRESETS

PREVIEW = "cpu-ucf101"  # The page shows this preset's sizes.
_NAMES = "classes.txt"
_MOST_FRAMES = 8  # Maximum frames in a strip on the page.
# The part of a UCF101 file name that identifies its film: v_Archery_g01_c02.avi.
_GROUP = re.compile(r"_(g\d+)_c\d+$")


def convert(sources: Sequence[Path], out: Path, options: Options) -> Conversion:
    """Writes the records and their description into `out`.

    Raises UserError if there are no videos, too many are broken, or `out` holds something else.

    Args:
      sources: one folder that contains class folders, or train/ and val/ with class folders; or one CSV file with
        path,label and optionally split.
      options: split, limits, frame size.
    """
    report = options.report
    train, held = _split(sources[0], options)
    classes = sorted({item.label for item in train})
    if len(classes) < 2:
        raise UserError(
            f"{sources[0]}: videos of one class, {classes[0]}; a classifier needs two or more"
            f"{given_splits.inner(sources[0])}"
        )
    labels = list(
        folder_conversion.named(classes, _names(sources[0], classes, options.names, report)).values()
    )
    folder_conversion.start(out, "tsm_kinetics")
    splits = {
        split: (
            part,
            folder_conversion.shard_count(
                len(part), folder_conversion.size([item.path for item in part if os.path.isfile(item.path)])
            ),
        )
        for split, part in (("train", train), ("validation", held))
    }
    settings = converter.Settings(short_side=options.short_side)
    converter.convert(out, splits, settings, options.workers)
    indices = [shards.Index(out, split) for split in splits]
    notes = [converter.notes(out, split) for split in splits]
    _report(report, notes, [*train, *held])
    folder_conversion.check_broken(report.lines, min(map(len, indices)), options)
    fields = {
        "num_classes": len(labels),
        "num_train_examples": len(indices[0]),
        "num_eval_examples": len(indices[1]),
        "data.stored_short_side": int(max(index.size.min(1).max() for index in indices)),
    }
    patterns = ["train-*-of-*", "validation-*-of-*", "index-*-of-*.npz"]
    written = {path for path, kind, _ in notes[1] if kind == "digest"}
    shown = [[labels[number] for number in index.label] for index in indices]
    description = folder_conversion.finish(
        out,
        "tsm_kinetics",
        patterns,
        fields,
        (len(indices[0]), len(indices[1])),
        report.lines,
        labels,
        baseline=baselines.majority(*shown),
        held_out=given_splits.relative([item.path for item in held if item.path in written], sources[0]),
    )
    return Conversion(description, folder_conversion.balance(labels, *shown), "videos", _facts(indices))


def _report(report: Report, notes: Sequence[Sequence[tuple[str, str, str]]], items: Sequence[Item]) -> None:
    """Notes what converting both splits left out, changed and suspects; see `converter.notes`."""
    for part in notes:
        for path, kind, value in part:
            if kind == "left out":
                report.leave_out(value, path)
            elif kind == "changed":
                report.change(value, path)
            elif kind == "suspicious":
                report.suspect(value, path)
            elif kind == "damaged":
                report.suspect("a damaged video, of which what can be decoded is kept", path)
    digests = [{path: value for path, kind, value in part if kind == "digest"} for part in notes]
    folder_conversion.report_copies(report, *digests, "video")
    twins = [
        (item.path, part[item.path], item.label) for item in items for part in digests if item.path in part
    ]
    folder_conversion.report_twins(report, twins, "video")


def _names(source: Path, classes: Sequence[str], given: Path | None, report: Report) -> dict[str, str]:
    """Reads lines with a class and a name, or for a CSV file the names of classes 0, 1, ..., one per line.

    Ignores a classes.txt next to the videos that has neither form.
    """
    path = given or (source if source.is_dir() else source.parent) / _NAMES
    if given is None and not path.is_file():
        return {}
    lines = [text_files.normal(line) for line in text_files.read(path, "give --names another file")]
    pairs = dict(line.split(None, 1) for line in lines if len(line.split(None, 1)) == 2)
    if set(classes) <= pairs.keys():
        return pairs
    numbered = {str(number): name for number, name in enumerate(lines) if name}
    if set(classes) <= numbered.keys():
        return numbered
    if given is None:
        report.skip(given_splits.NO_NAMES, str(path))
        return {}
    missing = next(name for name in classes if name not in pairs)
    raise UserError(f"{path}: no line for class {missing}; write lines of class and name")


def _split(source: Path, options: Options) -> tuple[list[Item], list[Item]]:
    if source.is_dir():
        first, second = given_splits.given_split(source, report=options.report)
        train = converter.items(first, report=options.report)
        if second:
            given_splits.report_unused(source, (first, second), options.report)
            given_splits.report_layout((first, second), videos.SUFFIXES, options.report)
            return train, converter.items(second, report=options.report)
        given_splits.report_layout((first,), videos.SUFFIXES, options.report)
        return _divided(train, options)
    rows = converter.listed(source, report=options.report)
    if not any(part for _, part in rows):
        return _divided([item for item, _ in rows], options)
    return given_splits.listed_split(source, rows, options.report)


def _divided(items: list[Item], options: Options) -> tuple[list[Item], list[Item]]:
    """Holds out part of each class; keeps together copies of a file, and clips of one group or of UCF101's films."""
    sizes = Counter(_size(item.path) for item in items)
    names = []
    for item in items:
        film = _GROUP.search(Path(item.path).stem)
        if item.group:
            names.append(f"group {item.group}")
        elif film:
            names.append(f"film {item.label}/{film.group(1)}")
        else:  # A file of a size of its own has no copy; reading it would cost time.
            names.append(_digest(item.path) if sizes[_size(item.path)] > 1 else item.path)
    labels = [item.label for item in items]
    out_of = folder_conversion.divide(labels, options.eval_part, options.seed, names)
    parts: tuple[list[Item], list[Item]] = ([], [])
    for item, is_held in zip(items, out_of):
        parts[int(is_held)].append(item)
    return parts


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return -1


def _digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return path


def _facts(indices: Sequence[shards.Index]) -> list[tuple[str, str]]:
    frames = np.concatenate([index.count for index in indices])
    sizes = np.concatenate([index.size for index in indices])
    height, width = sizes[sizes.prod(1).argmax()]
    return [
        ("frames of a video", f"{frames.min()} to {frames.max()}, median {int(np.median(frames))}"),
        ("largest frame as stored", f"{width} x {height}"),
    ]


def preview(data_dir: Path, description: Description, count: int) -> list[Card]:
    """Returns strips of augmented training clips and of the first evaluation clips."""
    config = data_description.apply(PRESETS[PREVIEW], description)
    config = dataclasses.replace(config, global_batch_size=count, eval_batch_size=count // 2)
    cards = []
    for split, training in (("train", True), ("eval", False)):
        index = reader.load(config, data_dir, training)
        batches = (
            reader.train_input(config, index, Shard(0, 1), count, 0)
            if training
            else reader.eval_input(config, index, Shard(0, 1), count // 2)
        )
        batch = next(iter(batches))
        for frames, label in zip(batch["frames"].numpy(), batch["label"].numpy()):
            if label >= 0:
                strip = np.concatenate(list(frames[: config.frames][:_MOST_FRAMES]), axis=1)
                cards.append(Card(f"{split}: {description.labels[label]}", pictures.png(strip)))
    return cards
