"""Converts a user's pictures with boxes or masks; SSD and Mask R-CNN share it."""

import collections
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from common.config.data_description import BACKGROUND, Description
from common.data import baselines, folder_conversion, given_splits, near_copies, pictures
from common.data.folder_conversion import Conversion, Options
from common.data.pictures import Picture
from common.data.report import Report
from common.detection import coco_eval, coco_source, coco_tidy, mask_files
from common.detection import convert as converter
from common.detection.annotation_formats import Source
from common.errors import UserError

ANNOTATIONS = "instances_val2017.json"  # The converter's name for the file that an evaluation reads.
PATTERNS = ("train-*.tfrecord", "val-*.tfrecord", "instances_*2017.json")
# Colors that color-blind people can distinguish: Okabe and Ito, "Color Universal Design" (2008).
_COLORS = ((230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (213, 94, 0), (204, 121, 167))


# Of (training pictures, those with an object, the largest number of objects in one): fields and defaults of a run.
Settings = Callable[[int, int, int], tuple[Mapping[str, Any], Mapping[str, Any]]]


def convert(
    benchmark: str, folder: Path, out: Path, options: Options, masks: bool, settings: Settings
) -> Conversion:
    """Writes the records, the annotation files of both splits and the description into `out`.

    Raises UserError if there are no annotations or no sound pictures, or `out` holds something else. `settings` returns
    the fields and defaults of the benchmark's description beside those that both share.
    """
    report = options.report
    first, second = coco_source.find(folder, options)
    sources = [first, second] if second else [first]
    if masks:
        _check_masks(sources, folder)
    contents, names, looked = coco_tidy.tidy(sources, masks, report)
    if coco_tidy.ALL_LOST in report.changed or coco_tidy.ALL_IGNORED in report.changed:
        _check_objects(contents[0], report)
    folder_conversion.check_broken(report.lines, min(len(content["images"]) for content in contents))
    if second is None:
        contents = list(_divided(contents[0], looked[0], first.films, options))
    _report(contents, looked, report)
    folders = [sources[0].folder, sources[-1].folder]
    folder_conversion.start(out, benchmark)
    for split, content, place in zip(converter.SPLITS, contents, folders):
        size = folder_conversion.size([place / image["file_name"] for image in content["images"]])
        shards = folder_conversion.shard_count(len(content["images"]), size)
        text = json.dumps(content).encode()
        dropped = converter.convert(
            out, split, str(place), text, shards, masks, options.workers, upright=True
        )
        for line in dropped:
            report.leave_out(line.rpartition(": ")[2], split, f"{split}: {line}")
    train = contents[0]
    per_image = collections.Counter(item["image_id"] for item in train["annotations"])
    split = len(train["images"]), len(contents[1]["images"])
    fields, defaults = settings(split[0], len(per_image), max(per_image.values(), default=1))
    description = folder_conversion.finish(
        out,
        benchmark,
        PATTERNS,
        {"num_classes": len(names) + 1, "num_eval_examples": split[1], **fields},
        split,
        report.lines,
        (BACKGROUND, *names),
        defaults,
        baseline=_baseline(train, out / ANNOTATIONS, masks),
    )
    per_class = [[names[item["category_id"] - 1] for item in c["annotations"]] for c in contents]
    balance = folder_conversion.balance(names, *per_class)
    return Conversion(description, balance, "objects", _facts(contents, per_image, looked))


def _check_masks(sources: Sequence[Source], folder: Path) -> None:
    """Raises UserError if no object has a mask, before any picture is read."""
    lists = [source.content.get("annotations") for source in sources]
    objects = [item for items in lists if isinstance(items, list) for item in items if isinstance(item, dict)]
    if objects and not any(item.get("segmentation") for item in objects):
        place = mask_files.place_of(folder_conversion.files(folder), folder)
        hint = f"; the masks in {place} are read if no file of boxes is beside them" if place else ""
        raise UserError(
            f"{sources[0].origin}: its objects have boxes and no masks, on which maskrcnn trains{hint}; for boxes: "
            f"timetotrain data ssd {folder} OUT"
        )


def _report(
    contents: Sequence[Mapping[str, Any]], looked: Sequence[Mapping[str, Picture]], report: Report
) -> None:
    """Notes what is suspicious about both splits.

    Raises UserError if no object is left to train on.
    """
    _check_objects(contents[0], report)
    if all(item["iscrowd"] for item in contents[0]["annotations"]):
        fix = "set iscrowd to 0 where an object stands alone"
        raise UserError(f"no usable object to train on: every one is a crowd; {fix}")
    if not contents[1]["annotations"]:
        report.suspect("no object in the pictures to evaluate on", contents[1]["images"][0]["file_name"])
    by_split = []
    for content, by_name in zip(contents, (looked[0], looked[-1])):
        of_split = {image["file_name"]: by_name[image["file_name"]] for image in content["images"]}
        folder_conversion.report_pictures(report, of_split)
        by_split.append(of_split)
    marks = ([(name, one.digest, one.thumbnail, "") for name, one in part.items()] for part in by_split)
    near_copies.report(report, *marks)
    _report_crowds(contents[0], report)


def _check_objects(content: Mapping[str, Any], report: Report) -> None:
    """Raises UserError if no object is left to train on."""
    if not content["annotations"]:
        reasons = "; ".join(report.summaries("left_out")) or "no annotation at all"
        fix = "annotate objects, or fix the entries left out"
        raise UserError(f"no usable object to train on: {reasons}; {fix}")


def _report_crowds(content: Mapping[str, Any], report: Report) -> None:
    """Notes the classes of which every object is a crowd, on which no network trains."""
    alone = {item["category_id"] for item in content["annotations"] if not item["iscrowd"]}
    crowds = collections.Counter(item["category_id"] for item in content["annotations"])
    what = "a class of crowds alone (iscrowd), which is not trained on"
    for category in content["categories"]:
        number = category["id"]
        if number in crowds and number not in alone:
            report.suspect(what, category["name"], crowds[number])


def _baseline(
    train: Mapping[str, Any], annotations: Path, masks: bool
) -> tuple[float | dict[str, float], str]:
    """Returns the average precision of median boxes, as the run logs its quality, and what they are."""
    truth = coco_eval.ground_truth(str(annotations)).dataset
    results = baselines.median_boxes(train, truth)

    def precision(kind: str) -> float:
        statistics = coco_eval.average_precision(annotations, [dict(item) for item in results], kind)
        return max(statistics["AP"], 0.0)  # -1: no object is there to find.

    quality = {"BBOX": precision("bbox"), "SEGM": precision("segm")} if masks else precision("bbox")
    coco_eval.ground_truth.cache_clear()  # Another conversion may write the same file.
    return quality, "the median box of each class in every picture"


def _divided(
    content: Mapping[str, Any], looked: Mapping[str, Picture], films: bool, options: Options
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits the images, stratified by each image's rarest class; near copies stay together.

    With `films`, those of a folder do too, if there are several folders.
    """
    per_class = collections.Counter(item["category_id"] for item in content["annotations"])
    rarest: dict[int, int] = {}
    for item in content["annotations"]:
        image, category = item["image_id"], item["category_id"]
        if per_class[category] < per_class.get(rarest.get(image), len(content["annotations"]) + 1):
            rarest[image] = category
    classes = [str(rarest.get(image["id"], "none")) for image in content["images"]]
    thumbnails = [looked[image["file_name"]].thumbnail for image in content["images"]]
    names = [near_copies.original(image["file_name"]) for image in content["images"]]
    folders = [os.path.dirname(name) for name in names]
    if films and len({*folders}) > 1:
        names = folders
    elif films:
        options.report.suspect("frames of one film on both sides of the split", folders[0])
    groups = near_copies.groups(thumbnails, names)
    splits = []
    for images in given_splits.own_split(content["images"], classes, groups, options, "the pictures"):
        ids = {image["id"] for image in images}
        objects = [item for item in content["annotations"] if item["image_id"] in ids]
        splits.append({**content, "images": images, "annotations": objects})
    return splits[0], splits[1]


def _facts(
    contents: Sequence[Mapping[str, Any]],
    per_image: Mapping[int, int],
    looked: Sequence[Mapping[str, Picture]],
) -> list[tuple[str, str]]:
    objects = sum(len(content["annotations"]) for content in contents)
    empty = len(contents[0]["images"]) - len(per_image)
    return [
        ("objects", f"{objects}, at most {max(per_image.values(), default=0)} in a training picture"),
        ("training pictures without objects", str(empty)),
        *folder_conversion.picture_facts(
            part[image["file_name"]] for content, part in zip(contents, looked) for image in content["images"]
        ),
    ]


def draw_objects(
    pixels: np.ndarray,
    boxes: np.ndarray,
    classes: np.ndarray,
    description: Description,
    masks: np.ndarray | None = None,
) -> bytes:
    """Draws boxes, names of `description` and masks on a picture, uint8 [H, W, 3]; returns it as PNG.

    Boxes are float [n, 4], corners (ymin, xmin, ymax, xmax) in pixels, classes int [n], 0 for no object, and masks
    uint8 [n, S, S] of 0 and 1, each filling its box, or None.
    """
    # Small pictures are enlarged, so that names can be read.
    scale = max(1, round(400 / max(pixels.shape[:2])))
    height, width = (side * scale for side in pixels.shape[:2])
    image = Image.fromarray(pixels).resize((width, height), Image.Resampling.NEAREST)
    single = len(description.labels) == 2  # One class needs no names.
    for number in np.flatnonzero(classes > 0):
        color = _COLORS[int(classes[number]) % len(_COLORS)]
        top, left, bottom, right = (round(float(side) * scale) for side in boxes[number])
        corners = left, top, max(right, left + 1), max(bottom, top + 1)
        if masks is not None:
            size = corners[2] - left, corners[3] - top
            shape = Image.fromarray(masks[number] * 110).resize(size, Image.Resampling.BILINEAR)
            image.paste(Image.new("RGB", shape.size, color), corners[:2], shape)
        draw = ImageDraw.Draw(image)
        draw.rectangle(corners, outline=color, width=2)
        if not single:
            name = description.labels[int(classes[number])]
            place = left + 2, max(top, 0)
            draw.rectangle(draw.textbbox(place, name), fill=color)
            draw.text(place, name, fill=(0, 0, 0))
    return pictures.png(np.asarray(image))
