"""Converts your own pictures with masks, for `timetotrain data maskrcnn FOLDER OUT`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from common.config import data_description
from common.config.data_description import Description
from common.data.folder_conversion import Card, Conversion, Options
from common.detection import custom_pictures
from common.distributed.replicas.base import Shard
from common.errors import counted
from maskrcnn import input as reader
from maskrcnn.presets import PRESETS

PREVIEW = "cpu-nuclei"  # The page shows this preset's sizes.


def convert(sources: Sequence[Path], out: Path, options: Options) -> Conversion:
    """Writes the records and their description into `out`; see common.detection.custom_pictures.convert."""

    def settings(images: int, _: int, most: int) -> tuple[dict, dict]:
        return {"num_train_examples": images, "data.skip_empty": False}, {"max_instances": most}

    return custom_pictures.convert("maskrcnn", sources[0], out, options, True, settings)


def preview(data_dir: Path, description: Description, count: int) -> list[Card]:
    """Returns augmented training pictures with boxes and masks, from batches of one picture each."""
    config = data_description.apply(PRESETS[PREVIEW], description)
    config = dataclasses.replace(config, global_batch_size=1, eval_batch_size=1)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, cache="none"))
    cards = []
    for batch in reader.train_input(config, data_dir, Shard(0, 1), 1).take(count):
        one = {name: value[0].numpy() for name, value in batch.items()}
        height, width = (round(float(side)) for side in one["image_info"][:2])
        objects = counted(int((one["classes"] > 0).sum()), "object")
        picture = custom_pictures.draw_objects(
            one["image"][:height, :width], one["boxes"], one["classes"], description, one["masks"]
        )
        cards.append(Card(f"train: {objects}", picture))
    return cards
