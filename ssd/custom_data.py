"""Converts your own pictures with boxes, for `timetotrain data ssd FOLDER OUT`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from common.config import data_description
from common.config.data_description import Description
from common.data import pictures
from common.data.folder_conversion import Card, Conversion, Options
from common.detection import custom_pictures
from common.distributed.replicas.base import Shard
from common.errors import counted
from ssd import input as reader
from ssd.presets import PRESETS

PREVIEW = "cpu-nuclei"  # The page shows this preset's sizes.


def convert(sources: Sequence[Path], out: Path, options: Options) -> Conversion:
    """Writes the records and their description into `out`; see common.detection.custom_pictures.convert."""

    def settings(_: int, with_objects: int, most: int) -> tuple[dict, dict]:
        # Training skips images without an object.
        defaults = {"data.max_boxes": most, "data.shuffle_buffer": min(with_objects, 4096)}
        return {"num_train_examples": with_objects}, defaults

    return custom_pictures.convert("ssd", sources[0], out, options, False, settings)


def preview(data_dir: Path, description: Description, count: int) -> list[Card]:
    """Returns `count` augmented training pictures with their boxes, and some evaluation pictures."""
    config = data_description.apply(PRESETS[PREVIEW], description)
    config = dataclasses.replace(config, global_batch_size=count, eval_batch_size=count)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, cache="none"))
    batch = next(iter(reader.train_input(config, data_dir, Shard(0, 1), count)))
    cards = []
    for image, boxes, classes in zip(*(batch[name].numpy() for name in ("image", "boxes", "classes"))):
        objects = counted(int((classes > 0).sum()), "object")
        picture = custom_pictures.draw_objects(image, boxes * config.image_size, classes, description)
        cards.append(Card(f"train: {objects}", picture))
    eval_batch = next(iter(reader.eval_input(config, data_dir, Shard(0, 1), count)))
    for image, number in zip(eval_batch["image"].numpy()[: count // 2], eval_batch["image_id"].numpy()):
        if number >= 0:
            cards.append(Card(f"eval: picture {number}", pictures.png(image)))
    return cards
