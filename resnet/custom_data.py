"""Converts your own photographs, one folder per class, for `timetotrain data resnet FOLDER OUT`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from common.config import data_description
from common.config.data_description import Description
from common.data import folder_conversion, pictures
from common.data.folder_conversion import Card, Looked, Made, Options
from common.data.report import Report
from common.distributed.replicas.base import Shard
from common.errors import UserError
from resnet import convert as converter
from resnet import input as reader
from resnet.convert import Item
from resnet.presets import PRESETS

PREVIEW = "cpu-photos"  # The page shows this preset's sizes.
_NAMES = "classes.txt"


def convert(sources: Sequence[Path], out: Path, options: Options) -> Made:
    """Writes the records and their description into `out`.

    Args:
      sources: one folder, of class folders or of train/ and val/ with class folders.
      out: folder for the records.
      options: split, names, limits.

    Raises:
      UserError: no pictures, too many broken ones, or `out` holds something else.
    """
    (folder,) = sources
    report = options.report
    first, second = folder_conversion.given_split(folder)
    looked: dict[str, Looked] = {}
    items = _sound(first, report, looked)
    if second:
        train, held = items, _sound(second, report, looked)
    else:
        folder_conversion.check_broken(report.lines, len(items), options)
        out_of = folder_conversion.divide([item.synset for item in items], options.eval_part, options.seed)
        train = [item for item, is_held in zip(items, out_of) if not is_held]
        held = [item for item, is_held in zip(items, out_of) if is_held]
    folder_conversion.check_broken(report.lines, min(len(train), len(held)), options)
    folder_conversion.report_pictures(report, looked)
    parts = [{item.path: looked[item.path].digest for item in part} for part in (train, held)]
    folder_conversion.report_copies(report, *parts, "picture")
    synsets = sorted({item.synset for item in train})
    if len(synsets) < 2:
        raise UserError(
            f"{first}: pictures of one class, {synsets[0]}; a classifier needs two folders or more"
        )
    names = _names(options.names or folder / _NAMES, options.names is not None)
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
    description = folder_conversion.finish(
        out,
        "resnet",
        ["train-*-of-*", "validation-*-of-*"],
        fields,
        (len(train), len(held)),
        report.lines,
        labels,
    )
    shown = [[label[item.synset] for item in part] for part in (train, held)]
    return Made(description, folder_conversion.balance(labels, *shown), "pictures", _facts(looked.values()))


def _sound(folder: Path, report: Report, looked: dict[str, Looked]) -> list[Item]:
    """Returns the sound pictures of a folder; adds what is known of each to `looked`, {path: ...}."""
    found = converter.train_items(folder, report)
    results = folder_conversion.examined(
        found, lambda item: folder_conversion.look(item.path, png=False), "pictures"
    )
    kept = []
    for item, result in zip(found, results):
        if isinstance(result, str):
            report.leave_out("no whole picture", item.path, result)
        else:
            kept.append(item)
            looked[item.path] = result
    seen = {item.synset for item in found}
    for path in folder_conversion.folders(folder):
        if path.name not in seen:
            report.leave_out("no pictures in it", str(path))
    return kept


def _names(path: Path, given: bool) -> dict[str, str]:
    """Reads lines with a class folder and a name; ignores a file in the source that has no such line."""
    if not given and not path.is_file():
        return {}
    return converter.class_names(path)


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
