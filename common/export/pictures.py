"""Draws answers into pictures: a strip with the best classes, or boxes and masks with names."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from common.config.data_description import BACKGROUND
from common.data import pictures as reader
from common.errors import UserError

# Colors for classes, in the order of the labels: Okabe and Ito's, which color-blind people can distinguish.
COLORS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
LEAST_SIDE = 480  # Pixels; smaller pictures are enlarged so that text is readable.
MOST_HIDDEN = 0.25  # Fraction of an object that another's label may cover; in a crowd, labels are omitted.


def palette(labels: Sequence[str]) -> dict[str, str]:
    """Returns {class: color} of a network's classes, the same in every picture."""
    names = [name for name in labels if name != BACKGROUND]
    return {name: COLORS[i % len(COLORS)] for i, name in enumerate(names)}


def draw(
    answer: Mapping[str, Any], folder: str | os.PathLike, colors: Mapping[str, str] | None = None
) -> pathlib.Path:
    """Writes an answer's picture with labels, boxes and masks to `folder` as PNG; returns its path.

    Args:
      answer: from `inference.ask`.
      folder: created if it does not exist.
      colors: from `palette`; other classes get colors in order of appearance.

    Raises UserError if the file cannot be read as a picture, or the folder cannot be written.
    """
    source = pathlib.Path(answer["file"])
    path = pathlib.Path(folder, f"{source.stem}.png")
    number = 1
    while path.exists():
        path, number = pathlib.Path(folder, f"{source.stem}-{number}.png"), number + 1
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = reader.decoded(reader.read(reader.contents(source), png=True).encoded)
        _drawing(Image.fromarray(pixels), answer, colors or {}).save(path)
    except (OSError, reader.BadPictureError) as error:
        fix = "name a picture and a folder to write"
        raise UserError(f"{path}: cannot draw {source}: {error}; {fix}") from error
    return path


def outlines(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns an answer's objects. Masks become COCO run lengths of the whole picture."""
    from common.detection import masks

    picture = reader.read(reader.contents(answer["file"]), png=True)
    width, height = picture.width, picture.height
    outlined = []
    for entry in answer["objects"]:
        pasted = masks.paste(entry["mask"][None], np.array([entry["box"]]), height, width)
        outlined.append({**entry, "mask": masks.encode(pasted)[0]})
    return outlined


def _drawing(picture: Image.Image, answer: Mapping[str, Any], own_colors: Mapping[str, str]) -> Image.Image:
    scale = max(1.0, LEAST_SIDE / max(picture.size))
    picture = picture.resize([round(side * scale) for side in picture.size], Image.Resampling.BICUBIC)
    font = ImageFont.load_default(max(14, max(picture.size) // 40))
    if "classes" in answer:
        return _with_strip(picture, answer["classes"], font)
    names = sorted({one["name"] for one in answer["objects"]})
    colors = {name: COLORS[i % len(COLORS)] for i, name in enumerate(names)} | dict(own_colors)
    objects = list(reversed(answer["objects"]))  # The best object is drawn last, over the others.
    for one in objects:
        if "mask" in one:
            picture = _with_mask(picture, one, scale, colors[one["name"]])
    pen = ImageDraw.Draw(picture)
    for one in objects:
        top, left, bottom, right = (value * scale for value in one["box"])
        pen.rectangle((left, top, right, bottom), outline=colors[one["name"]], width=max(2, font.size // 7))
    boxes = [[value * scale for value in one["box"]] for one in answer["objects"]]
    places: list[tuple[float, ...]] = []
    for number, one in enumerate(answer["objects"]):
        others = boxes[:number] + boxes[number + 1 :]
        tag = _tag(pen, one, boxes[number], font, picture.size)
        if not _hides(tag.place, places, others):
            places.append(tag.place)
            top, left, bottom, right = tag.place
            pen.rectangle((left, top, right, bottom), fill=colors[one["name"]])
            pen.text(tag.begin, tag.text, fill="black", font=font)
    return picture


@dataclasses.dataclass(frozen=True)
class _Tag:
    """A label: its rectangle (top, left, bottom, right) and the start of its text (x, y), in pixels."""

    text: str
    place: tuple[float, ...]
    begin: tuple[float, float]


def _tag(pen: Any, label: Mapping[str, Any], box: Sequence[float], font: Any, size: tuple[int, int]) -> _Tag:
    """Returns the tag with name and score: above the box, or inside it if there is no room above."""
    top, left, _, _ = box
    text = f"{label['name']} {label['score']:.2f}"
    x0, y0, x1, y1 = pen.textbbox((0, 0), text, font=font)
    wide, high = x1 - x0 + 6, y1 - y0 + 6
    x, y = min(max(left, 0), max(size[0] - wide, 0)), top - high if top >= high else max(top, 0)
    return _Tag(text, (y, x, y + high, x + wide), (x + 3 - x0, y + 3 - y0))


def _hides(place: Sequence[float], tags: Sequence[Sequence[float]], boxes: Sequence[Sequence[float]]) -> bool:
    """Whether a label would cover part of another label or more than MOST_HIDDEN of another object."""
    return any(_shared(place, tag) > 0 for tag in tags) or any(
        _shared(place, box) > MOST_HIDDEN * (box[2] - box[0]) * (box[3] - box[1]) for box in boxes
    )


def _shared(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns the area that two rectangles share."""
    height = min(one[2], other[2]) - max(one[0], other[0])
    width = min(one[3], other[3]) - max(one[1], other[1])
    return max(height, 0.0) * max(width, 0.0)


def _with_mask(picture: Image.Image, detection: Mapping[str, Any], scale: float, color: str) -> Image.Image:
    from common.detection import masks

    box = np.array([detection["box"]]) * scale
    inside = masks.paste(detection["mask"][None], box, picture.height, picture.width)[..., 0]
    alpha = Image.fromarray((inside * 110).astype(np.uint8))
    return Image.composite(Image.new("RGB", picture.size, color), picture, alpha)


def _with_strip(picture: Image.Image, classes: Any, font: Any) -> Image.Image:
    """Adds a strip below the picture with a bar for each class."""
    row, wide = round(font.size * 1.6), picture.width
    strip = ImageOps.expand(picture, (0, 0, 0, row * len(classes) + 6), fill="white")
    pen = ImageDraw.Draw(strip)
    for i, one in enumerate(classes):
        y = picture.height + 3 + i * row
        pen.rectangle((0, y, wide * one["score"], y + row - 3), fill=COLORS[1])
        pen.text((6, y + 1), f"{one['name']}  {one['score']:.3f}", fill="black", font=font)
    return strip
