"""Converts your own videos, one folder per class or a CSV file, for `timetotrain data tsm_kinetics FOLDER OUT`."""

import collections
import dataclasses
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common.config import data_description
from common.config.data_description import Description
from common.data import baselines, folder_conversion, given_splits, near_copies, pictures, videos
from common.data.folder_conversion import Card, Conversion, Options
from common.data.listed_splits import classified
from common.data.report import Report
from common.distributed.replicas.base import Shard
from common.errors import UserError
from common.files import sha256
from tsm_kinetics import convert as converter
from tsm_kinetics import input as reader
from tsm_kinetics import shards
from tsm_kinetics.convert import Item
from tsm_kinetics.presets import PRESETS

PREVIEW = "cpu-ucf101"  # The page shows this preset's sizes.
_MOST_FRAMES = 8  # Maximum frames in a strip on the page.


def convert(sources: Sequence[Path], out: Path, options: Options) -> Conversion:
    """Writes the records and their description into `out`.

    The source is one folder of class folders, or of train/ and val/ with these; or one CSV file of path,label and
    perhaps split. Raises UserError if there is no video that can be decoded, or `out` holds something else.
    """
    report = options.report
    train, held_out = _split(sources[0], options)
    classes = sorted({item.label for item in train})
    if len(classes) < 2:
        raise UserError(
            f"{sources[0]}: videos of one class, {classes[0]}; a classifier needs a folder for each of two or more"
            f"{given_splits.inner(sources[0], [item.path for item in (*train, *held_out)])}"
        )
    labels = given_splits.class_names(sources[0], classes, report)
    folder_conversion.start(out, "tsm_kinetics")
    splits = folder_conversion.shards_by_split(train, held_out)
    converter.convert(out, splits, options.short_side, options.workers)
    indices = [shards.Index(out, split) for split in splits]
    notes = [converter.notes(out, split) for split in splits]
    _report(report, notes, (train, held_out))
    films = _films([*train, *held_out])
    of_train = {film: item.path for film, item in zip(films, train) if film}
    both = ((of_train[f], item.path) for f, item in zip(films[len(train) :], held_out) if f in of_train)
    near_copies.suspect_pairs(report, "clips of one film, by their names, to train and to evaluate on", both)
    folder_conversion.check_broken(report.lines, min(map(len, indices)))
    fields = {
        "num_classes": len(labels),
        "num_train_examples": len(indices[0]),
        "num_eval_examples": len(indices[1]),
        "data.stored_short_side": int(max(index.size.min(1).max() for index in indices)),
    }
    patterns = ["train-*-of-*", "validation-*-of-*", "index-*-of-*.npz"]
    paths = {path for path, kind, _ in notes[1] if kind == "digest"}
    class_names = [[labels[number] for number in index.label] for index in indices]
    description = folder_conversion.finish(
        out,
        "tsm_kinetics",
        patterns,
        fields,
        (len(indices[0]), len(indices[1])),
        report.lines,
        labels,
        baseline=baselines.majority(*class_names),
        held_out=given_splits.relative([item.path for item in held_out if item.path in paths], sources[0]),
    )
    return Conversion(description, folder_conversion.balance(labels, *class_names), "videos", _facts(indices))


def _report(
    report: Report, notes: Sequence[Sequence[tuple[str, str, str]]], splits: Sequence[Sequence[Item]]
) -> None:
    """Notes what converting both splits left out, changed and suspects; see `converter.notes`."""
    actions = {"left out": report.leave_out, "changed": report.change, "suspicious": report.suspect}
    for path, kind, value in itertools.chain(*notes):
        if kind in actions:
            actions[kind](value, path)
        elif kind == "damaged":
            report.suspect("a damaged video, of which what can be decoded is kept", path)
    # A resumed conversion has notes of an interrupted one: of paths as that one named them, and maybe no thumbnail.
    labels = {item.path: item.label for part in splits for item in part}
    marks = []
    for noted in notes:
        thumbnails = {path: bytes.fromhex(value) for path, kind, value in noted if kind == "thumbnail"}
        marks.append(
            [
                (path, value, thumbnails.get(path, near_copies.NO_THUMBNAIL), labels.get(path, ""))
                for path, kind, value in noted
                if kind == "digest"
            ]
        )
    near_copies.report(report, *marks, "video")


def _split(source: Path, options: Options) -> tuple[list[Item], list[Item]]:
    def in_folder(folder: Path) -> list[Item]:
        given_splits.report_layout(folder, videos.SUFFIXES, options.report)
        return converter.items(folder, report=options.report)

    def in_list(path: Path) -> list[tuple[Item, str]]:
        return converter.listed(path, report=options.report)

    train, held_out = classified(source, options, in_folder, in_list)
    return (train, held_out) if held_out is not None else _divided(train, options)


def _divided(items: list[Item], options: Options) -> tuple[list[Item], list[Item]]:
    """Holds out part of each class; keeps together copies of a file, and clips of one group or film."""
    sizes = collections.Counter(_size(item.path) for item in items)
    names = []
    for item, film in zip(items, _films(items)):
        if film and not item.group:
            options.report.change("clips of one film by their names, on one side", item.path)
        # A file of a size of its own has no copy; reading it would cost time.
        content = item.path if film or sizes[_size(item.path)] == 1 else _digest(item.path)
        names.append(f"group {item.group}" if item.group else film or content)
    return given_splits.own_split(items, [item.label for item in items], names, options)


def _films(items: Sequence[Item]) -> list[str]:
    """Returns the film of each clip by the names of its class's clips; "" if they tell none."""
    films, by_class = [""] * len(items), {}
    for number, item in enumerate(items):
        by_class.setdefault(item.label, []).append(number)
    for label, numbers in by_class.items():
        names = near_copies.films([Path(items[number].path).stem for number in numbers])
        for number, film in zip(numbers, names):
            films[number] = film and f"film {label}/{film}"
    return films


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.isfile(path) else -1


def _digest(path: str) -> str:
    """Returns the SHA-256 of a file's bytes; its path if it cannot be read."""
    try:
        return sha256(path)
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
