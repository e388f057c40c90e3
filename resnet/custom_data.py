"""Converts your own photographs, one folder per class, for `timetotrain data resnet FOLDER OUT`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common.config import data_description
from common.config.data_description import Description
from common.data import folder_conversion, pictures
from common.data.folder_conversion import Card, Made, Options
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
    first, second = folder_conversion.given_split(folder)
    items, broken = _sound(first)
    if second:
        train = items
        held, more = _sound(second)
        broken += more
    else:
        folder_conversion.check_broken(broken, len(items), options)
        out_of = folder_conversion.divide([item.synset for item in items], options.eval_part, options.seed)
        train = [item for item, is_held in zip(items, out_of) if not is_held]
        held = [item for item, is_held in zip(items, out_of) if is_held]
    folder_conversion.check_broken(broken, min(len(train), len(held)), options)
    synsets = sorted({item.synset for item in train})
    if len(synsets) < 2:
        raise UserError(
            f"{first}: pictures of one class, {synsets[0]}; a classifier needs two folders or more"
        )
    names = _names(options.names or folder / _NAMES, options.names is not None)
    if options.names and not names.keys() & set(synsets):
        raise UserError(
            f"{options.names}: names no class, such as {synsets[0]}; write lines of class and name"
        )
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
        broken,
        labels,
        baseline=folder_conversion.majority(*shown),
        held_out=folder_conversion.relative([item.path for item in held], folder),
    )
    return Made(description, folder_conversion.balance(labels, *shown), "pictures", _facts([*train, *held]))


def _sound(folder: Path) -> tuple[list[Item], list[str]]:
    found = [dataclasses.replace(item, upright=True) for item in converter.train_items(folder)]
    items, broken = folder_conversion.sound(found, lambda item: pictures.fault(item.path), "pictures")
    seen = {item.synset for item in found}
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return items, [*broken, *(f"{path}: no pictures in it" for path in folders if path.name not in seen)]


def _names(path: Path, given: bool) -> dict[str, str]:
    """Reads lines with a class folder and a name; ignores a file in the source that has no such line."""
    if not given and not path.is_file():
        return {}
    return converter.class_names(path, "--names")


def _facts(items: Sequence[Item]) -> list[tuple[str, str]]:
    sizes = np.array([pictures.size(item.path) for item in items])
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
