"""Converts your own photographs, one folder per class, for `timetotrain data resnet FOLDER OUT`."""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from common.config import data_description
from common.config.data_description import Description
from common.data import (
    baselines,
    folder_conversion,
    given_splits,
    near_copies,
    pictures,
    split_names,
    text_files,
)
from common.data.folder_conversion import Card, Conversion, Looked, Options
from common.data.report import Report
from common.distributed.replicas.base import Shard
from common.errors import UserError
from resnet import convert as converter
from resnet import images, web_dataset
from resnet import input as reader
from resnet.images import Item
from resnet.presets import PRESETS

PREVIEW = "cpu-photos"  # The page shows this preset's sizes.
_NAMES = "classes.txt"
_METADATA = ("metadata.csv", "metadata.jsonl")  # Hugging Face's names for a list of a folder's pictures.


def convert(sources: Sequence[Path], out: Path, options: Options) -> Conversion:
    """Writes the records and their description into `out`.

    Args:
      sources: one folder, of class folders, with Hugging Face's metadata.csv or with WebDataset's tar files, or of
        train/ and val/ with these; or one CSV file of path,label and perhaps split.
      options: split, names, limits.

    Raises UserError: no pictures, too many broken ones, or `out` holds something else.
    """
    (source,) = sources
    folder = source if source.is_dir() else source.parent
    report = options.report
    looked: dict[str, Looked] = {}
    train, held = _parts(source, options, looked)
    folder_conversion.check_broken(report.lines, min(len(train), len(held)), options)
    folder_conversion.report_pictures(report, looked)
    parts = [{item.place: looked[item.place].digest for item in part} for part in (train, held)]
    folder_conversion.report_copies(report, *parts, "picture")
    thumbnails = ({item.place: looked[item.place].thumbnail for item in part} for part in (train, held))
    near_copies.report_across(report, *thumbnails)
    twins = ((item.place, looked[item.place].digest, item.synset) for item in (*train, *held))
    folder_conversion.report_twins(report, twins, "picture")
    synsets = sorted({item.synset for item in train})
    if len(synsets) < 2:
        raise UserError(
            f"{source}: pictures of one class, {synsets[0]}; a classifier needs two classes or more"
            f"{'' if _table(source) else given_splits.inner(source)}"
        )
    path = options.names or folder / _NAMES
    names = _names(path, options.names is not None)
    if path.is_file() and not names.keys() & set(synsets) and not options.names:
        report.skip(given_splits.NO_NAMES, str(path))
    if options.names and not names.keys() & set(synsets):
        fix = "write lines of class and name"
        raise UserError(f"{options.names}: names no class, such as {synsets[0]}; {fix}")
    folder_conversion.start(out, "resnet")
    splits = {
        split: (part, folder_conversion.shard_count(len(part), sum(item.size for item in part)))
        for split, part in (("train", train), ("validation", held))
    }
    converter.convert(out, splits, names, options.workers)
    label = folder_conversion.named(synsets, names)
    labels = list(label.values())
    fields = {
        "num_classes": len(labels),
        "num_train_examples": len(train),
        "num_eval_examples": len(held),
        "data.label_offset": 1,
        "data.train_pattern": "train-*",
        "data.eval_pattern": "validation-*",
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
        {"data.flip": False}
        if baselines.sided([looked[item.place].thumbnail for item in train], shown[0])
        else {},
        baseline=baselines.classifier(
            *(part for side, names in zip((train, held), shown) for part in (_features(side, looked), names))
        ),
        held_out=given_splits.relative([item.place for item in held], folder),
    )
    return Conversion(
        description, folder_conversion.balance(labels, *shown), "pictures", _facts(looked.values())
    )


def _features(part: Sequence[Item], looked: Mapping[str, Looked]) -> list[bytes]:
    return [looked[item.place].colours + looked[item.place].thumbnail for item in part]


def _parts(source: Path, options: Options, looked: dict[str, Looked]) -> tuple[list[Item], list[Item]]:
    """Returns the sound pictures to train and to evaluate on; adds what is known of each to `looked`, {path: ...}."""
    report = options.report
    if source.is_dir() and not _table(source):
        first, second = given_splits.given_split(source, report=report)
        shards = web_dataset.split(web_dataset.shards(first)) if second is None else ([], [])
        if all(shards):
            return tuple(_sound(web_dataset.items(part, report), report, looked) for part in shards)
        if second:
            given_splits.report_unused(source, (first, second), report)
            given_splits.report_layout(
                [p for p in (first, second) if not _table(p)], pictures.SUFFIXES, report
            )
            return _in_folder(first, report, looked), _in_folder(second, report, looked)
        given_splits.report_layout((first,), pictures.SUFFIXES, report)
        items = _in_folder(first, report, looked)
    else:
        table = _table(source) or source
        rows = images.listed(table, report)
        _report_unlisted(table, rows, report)
        if any(part for _, part in rows):
            splits = given_splits.listed_split(table, rows, report)
            return _sound(splits[0], report, looked), _sound(splits[1], report, looked)
        items = _sound([item for item, _ in rows], report, looked)
    folder_conversion.check_broken(report.lines, len(items), options)
    groups = near_copies.groups([item.looked.thumbnail for item in items], [item.group for item in items])
    out_of = folder_conversion.divide(
        [item.synset for item in items], options.eval_part, options.seed, groups
    )
    splits = [], []
    for item, is_held in zip(items, out_of):
        splits[int(is_held)].append(item)
    return splits


def _table(folder: Path) -> Path | None:
    """Returns Hugging Face's list of a folder's pictures, None without one."""
    return next((folder / name for name in _METADATA if (folder / name).is_file()), None)


def _report_unlisted(table: Path, rows: Sequence[tuple[Item, str]], report: Report) -> None:
    """Notes the pictures next to a list that it does not name."""
    listed = {os.path.realpath(item.path) for item, _ in rows}
    # Not every folder below: a list may lie in a home folder.
    places = {Path(os.path.abspath(item.path)).parent for item, _ in rows}
    inside = (place for place in places if place.is_relative_to(table.parent.absolute()))
    for place in sorted(place for place in inside if place.is_dir() and os.access(place, os.R_OK)):
        for path in sorted(place.iterdir()):
            named = os.path.realpath(path) in listed or not folder_conversion.visible(path.name)
            if path.suffix.lower() in pictures.SUFFIXES and not named and path.is_file():
                report.skip("a picture that the list does not name", str(path), lost=True)
    others = (path for path in sorted(table.parent.iterdir()) if path.suffix.lower() == table.suffix.lower())
    for other in others if split_names.word_of(table.stem) else ():
        if other != table and split_names.word_of(other.stem):
            report.suspect(
                "a list of another split beside the one that is read; write both into one, with a column split",
                str(other),
            )


def _in_folder(folder: Path, report: Report, looked: dict[str, Looked]) -> list[Item]:
    table = _table(folder)
    if table:
        return _sound([item for item, _ in images.listed(table, report)], report, looked)
    shards = web_dataset.shards(folder)
    if shards:
        return _sound(web_dataset.items(shards, report), report, looked)
    found = images.train_items(folder, report)
    seen = {item.synset for item in found}
    whole = _sound(found, report, looked)
    for path in folder_conversion.folders(folder):
        if text_files.normal(path.name) not in seen:
            report.leave_out("no pictures in it", str(path))
    return whole


def _sound(found: Sequence[Item], report: Report, looked: dict[str, Looked]) -> list[Item]:
    results = folder_conversion.examined(found, _look)
    sound = []
    for item, result in zip(found, results):
        if isinstance(result, str):
            report.leave_out("no whole picture", item.place, result)
        else:
            sound.append(dataclasses.replace(item, looked=result))
            looked[item.place] = result
    return sound


def _look(item: Item) -> Looked | str:
    if not item.offset:
        return folder_conversion.look(item.path, png=False)
    return folder_conversion.look(item.place, png=False, contents=lambda _: item.read())


def _names(path: Path, given: bool) -> dict[str, str]:
    """Reads lines with a class folder and a name; ignores a file in the source that has no such line."""
    if not given and not path.is_file():
        return {}
    return converter.class_names(path, "--names")


def _facts(looked: Iterable[Looked]) -> list[tuple[str, str]]:
    sizes = np.array([(one.width, one.height) for one in looked])
    smallest, middle, largest = (sizes[np.argsort(sizes.prod(1))[i]] for i in (0, len(sizes) // 2, -1))
    return [
        ("smallest picture", f"{smallest[0]} x {smallest[1]}"),
        ("median picture", f"{middle[0]} x {middle[1]}"),
        ("largest picture", f"{largest[0]} x {largest[1]}"),
    ]


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
