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
    listed_splits,
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
# Names for a list of a folder's pictures: Hugging Face's, Roboflow's, and Tiny ImageNet's.
_METADATA = ("metadata.csv", "metadata.jsonl", "_classes.csv", tables.TINY)  # tables refuses JSON lines.


def convert(sources: Sequence[Path], out: Path, options: Options) -> Conversion:
    """Writes the records and their description into `out`.

    The source is one folder, of class folders or with Hugging Face's metadata.csv, or of train/ and val/ with these; or
    one CSV file of path,label and perhaps split. Raises UserError if no picture can be read, or `out` holds something
    else.
    """
    (source,) = sources
    folder = source if source.is_dir() else source.parent
    report = options.report
    looked: dict[str, Picture] = {}
    train, held_out = _parts(source, options, looked)
    folder_conversion.check_broken(report.lines, min(len(train), len(held_out)))
    folder_conversion.report_pictures(report, looked)
    marks = (
        [(item.path, item.looked.digest, item.looked.thumbnail, item.synset) for item in part]
        for part in (train, held_out)
    )
    near_copies.report(report, *marks)
    synsets = sorted({item.synset for item in train})
    if len(synsets) < 2:
        raise UserError(
            f"{source}: pictures of one class, {synsets[0]}; a classifier needs two classes or more"
            f"{'' if _table(source) else given_splits.inner(source, [item.path for item in (*train, *held_out)])}"
        )
    label = dict(zip(synsets, given_splits.class_names(folder, synsets, report)))
    looks = [(item.looked.thumbnail, item.looked.edges, item.synset) for item in train]
    sided = baselines.sided(*zip(*looks))
    if sided:
        report.choose("flip", "off", "the converter: mirrored pictures look like other classes")
    folder_conversion.start(out, "resnet")
    splits = folder_conversion.shards_by_split(train, held_out)
    class_names = {name: text for name, text in label.items() if name != text}
    converter.convert(out, splits, class_names, options.workers)
    labels = list(label.values())
    fields = {
        "num_classes": len(labels),
        "num_train_examples": len(train),
        "num_eval_examples": len(held_out),
    }
    label_lists = [[label[item.synset] for item in part] for part in (train, held_out)]
    description = folder_conversion.finish(
        out,
        "resnet",
        ["train-*-of-*", "validation-*-of-*"],
        fields,
        (len(train), len(held_out)),
        report.lines,
        labels,
        {"data.flip": False} if sided else {},
        baseline=baselines.classifier(_features(train), label_lists[0], _features(held_out), label_lists[1]),
        held_out=given_splits.relative([item.path for item in held_out], folder),
    )
    return Conversion(
        description,
        folder_conversion.balance(labels, *label_lists),
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

    table = _table(source)
    for path in () if table else filter(Path.is_file, (source / name for name in _METADATA)):
        report.skip("a table that lists no pictures, not read", str(path))
    source = table or source
    items, held_out = listed_splits.classified(
        source, options, lambda folder: _in_folder(folder, report), in_list
    )
    items = _sound(items, report, looked)
    if held_out is not None:
        return items, _sound(held_out, report, looked)
    folder_conversion.check_broken(report.lines, len(items))
    names = [item.group or near_copies.original(item.path) for item in items]
    groups = near_copies.groups([item.looked.thumbnail for item in items], names)
    return given_splits.own_split(items, [item.synset for item in items], groups, options)


def _table(folder: Path) -> Path | None:
    """Returns the list of a folder's pictures, one of _METADATA; None without one."""
    for path in (folder / name for name in _METADATA):
        if path.is_file() and (len(folder_conversion.folders(folder)) < 2 or _lists_pictures(path)):
            return path
    return None


def _lists_pictures(path: Path) -> bool:
    """Whether a table lists pictures; beside folders of classes it may be about anything."""
    if path.suffix != ".csv":
        return True
    try:
        return all(map(tables.read(path).column, ("path", "label")))
    except UserError:
        return False


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
    items = images.train_items(folder, report)
    classes = {item.synset for item in items}
    for path in folder_conversion.folders(folder):
        if text_files.normal(path.name) not in classes:
            report.leave_out("no pictures in it", str(path))
    return items


def _sound(items: Sequence[Item], report: Report, looked: dict[str, Picture]) -> list[Item]:
    results = folder_conversion.examined([item.path for item in items], png=False)
    sound = []
    for item, result in zip(items, results):
        if isinstance(result, str):
            report.leave_out("no whole picture", item.path, result)
        else:
            sound.append(dataclasses.replace(item, looked=result))
            looked[item.path] = result
    for name in sorted({item.synset for item in items} - {item.synset for item in sound}):
        report.suspect("a class all of whose pictures were left out", name)
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
