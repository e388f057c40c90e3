"""Converts your own photographs, one folder per class, for `timetotrain data resnet FOLDER OUT`."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from common.config import data_description
from common.config.data_description import Description
from common.data import (
    baselines,
    folder_conversion,
    given_splits,
    near_copies,
    pictures,
    split_names,
    tables,
    text_files,
)
from common.data.folder_conversion import Card, Conversion, Options
from common.data.pictures import Picture
from common.data.report import Report
from common.distributed.replicas.base import Shard
from common.errors import UserError
from resnet import convert as converter
from resnet import images
from resnet import input as reader
from resnet.images import Item
from resnet.presets import PRESETS

PREVIEW = "cpu-photos"  # The page shows this preset's sizes.
# Names for a list of a folder's pictures: Hugging Face's, and Tiny ImageNet's.
_METADATA = ("metadata.csv", "metadata.jsonl", tables.TINY)  # tables refuses JSON lines.


def convert(sources: Sequence[Path], out: Path, options: Options) -> Conversion:
    """Writes the records and their description into `out`.

    Args:
      sources: one folder, of class folders or with Hugging Face's metadata.csv, or of train/ and val/ with these; or
        one CSV file of path,label and perhaps split.
      options: split, limits.

    Raises UserError if no picture can be read, or `out` holds something else.
    """
    (source,) = sources
    folder = source if source.is_dir() else source.parent
    report = options.report
    looked: dict[str, Picture] = {}
    train, held = _parts(source, options, looked)
    folder_conversion.check_broken(report.lines, min(len(train), len(held)))
    folder_conversion.report_pictures(report, looked)
    marks = (
        [(item.path, item.looked.digest, item.looked.thumbnail, item.synset) for item in part]
        for part in (train, held)
    )
    near_copies.report(report, *marks)
    synsets = sorted({item.synset for item in train})
    if len(synsets) < 2:
        raise UserError(
            f"{source}: pictures of one class, {synsets[0]}; a classifier needs two classes or more"
            f"{'' if _table(source) else given_splits.inner(source)}"
        )
    label = dict(zip(synsets, given_splits.class_names(folder, synsets, report)))
    sided = baselines.sided([item.looked.thumbnail for item in train], [item.synset for item in train])
    if sided:
        report.choose("flip", "off", "the converter: mirrored pictures look like other classes")
    folder_conversion.start(out, "resnet")
    splits = {
        split: (part, folder_conversion.shard_count(len(part), sum(item.size for item in part)))
        for split, part in (("train", train), ("validation", held))
    }
    named = {name: shown for name, shown in label.items() if name != shown}
    converter.convert(out, splits, named, options.workers)
    labels = list(label.values())
    fields = {
        "num_classes": len(labels),
        "num_train_examples": len(train),
        "num_eval_examples": len(held),
    }
    shown = [[label[item.synset] for item in part] for part in (train, held)]
    description = folder_conversion.finish(
        out,
        "resnet",
        ["train-*-of-*", "validation-*-of-*"],
        fields,
        (len(train), len(held)),
        report.lines,
        labels,
        {"data.flip": False} if sided else {},
        baseline=baselines.classifier(
            *(part for side, names in zip((train, held), shown) for part in (_features(side), names))
        ),
        held_out=given_splits.relative([item.path for item in held], folder),
    )
    return Conversion(
        description,
        folder_conversion.balance(labels, *shown),
        "pictures",
        folder_conversion.picture_facts(looked.values()),
    )


def _features(part: Sequence[Item]) -> list[bytes]:
    return [item.looked.colors + item.looked.thumbnail for item in part]


def _parts(source: Path, options: Options, looked: dict[str, Picture]) -> tuple[list[Item], list[Item]]:
    """Returns the sound pictures to train and to evaluate on; adds what is known of each to `looked`, {path: ...}."""
    report = options.report

    def in_list(path: Path) -> list[tuple[Item, str]]:
        rows = images.listed(path, report)
        _report_unlisted(path, rows, report)
        return rows

    source = _table(source) or source
    items, held = given_splits.classified(source, options, lambda folder: _in_folder(folder, report), in_list)
    items = _sound(items, report, looked)
    if held is not None:
        return items, _sound(held, report, looked)
    folder_conversion.check_broken(report.lines, len(items))
    names = [item.group or near_copies.original(item.path) for item in items]
    groups = near_copies.groups([item.looked.thumbnail for item in items], names)
    return given_splits.own_split(items, [item.synset for item in items], groups, options)


def _table(folder: Path) -> Path | None:
    """Returns the list of a folder's pictures, one of _METADATA; None without one."""
    return next((folder / name for name in _METADATA if (folder / name).is_file()), None)


def _report_unlisted(table: Path, rows: Sequence[tuple[Item, str]], report: Report) -> None:
    """Notes the pictures next to a list that it does not name."""
    listed = (Path(os.path.abspath(item.path)) for item, _ in rows)
    # Not every folder below: a list may lie in a home folder.
    inside = (path for path in listed if path.is_relative_to(table.parent.absolute()))
    folder_conversion.report_unnamed(inside, "a picture that the list does not name", report)
    others = (path for path in sorted(table.parent.iterdir()) if path.suffix.lower() == table.suffix.lower())
    for other in others if split_names.word_of(table.stem) else ():
        if other != table and split_names.word_of(other.stem):
            report.suspect(
                "a list of another split beside the one that is read; write both into one, with a column split",
                str(other),
            )


def _in_folder(folder: Path, report: Report) -> list[Item]:
    table = _table(folder)
    if table:
        return [item for item, _ in images.listed(table, report)]
    given_splits.report_layout(folder, pictures.SUFFIXES, report)
    found = images.train_items(folder, report)
    seen = {item.synset for item in found}
    for path in folder_conversion.folders(folder):
        if text_files.normal(path.name) not in seen:
            report.leave_out("no pictures in it", str(path))
    return found


def _sound(found: Sequence[Item], report: Report, looked: dict[str, Picture]) -> list[Item]:
    results = folder_conversion.examined([item.path for item in found], png=False)
    sound = []
    for item, result in zip(found, results):
        if isinstance(result, str):
            report.leave_out("no whole picture", item.path, result)
        else:
            sound.append(dataclasses.replace(item, looked=result))
            looked[item.path] = result
    return sound


def preview(data_dir: Path, description: Description, count: int) -> list[Card]:
    """Returns `count` augmented training pictures and `count` evaluation pictures."""
    config = data_description.apply(PRESETS[PREVIEW], description)
    config = dataclasses.replace(config, global_batch_size=count, eval_batch_size=count)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, cache="none"))
    shard = Shard(0, 1)
    cards = []
    for split, batches in (
        ("train", reader.train_input(config, data_dir, shard, count)),
        ("eval", reader.eval_input(config, data_dir, shard, count)),
    ):
        batch = next(iter(batches))
        for image, label in zip(batch["image"].numpy(), batch["label"].numpy()):
            if label >= 0:
                cards.append(Card(f"{split}: {description.labels[label]}", pictures.png(image)))
    return cards
