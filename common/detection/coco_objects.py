"""Normalizes the objects of a user's annotations: checks each box and mask before any C library reads it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from common.data.report import Report
from common.detection import label_lines, shapes
from common.detection.annotation_formats import Source
from common.detection.shapes import BadShapeError, key_of

# Texts and numbers that programs write for yes and no; a missing number in a table becomes NaN.
_YES, _NO = ("1", "1.0", "true", "yes"), ("", "0", "0.0", "false", "no", "none", "null", "nan")
_TINY = 2.0  # Pixels; a box of a narrower side is suspicious.
_OUTSIDE = 0.5  # Part of a box outside of its picture from which it is suspicious.
_APART = 0.5  # Overlap of a box and the box around its mask below which they are suspicious.


Entry = dict[str, Any]  # Of a sound picture in the result: id, file_name, width, height.
# What is (suspicious, noted) of an object, until it is known that the object is taken.
Notes = list[tuple[bool, str]]


def of_source(
    source: Source,
    places: Mapping[str, Entry | None],
    numbers: Mapping[str, int],
    masks: bool,
    report: Report,
) -> list[dict[str, Any]]:
    """Returns the entries of a source's usable objects, numbered from 1; the others get a line in the report.

    Args:
      places: the entry of each picture, by its id; None for a picture that was left out.
      numbers: {id of a category: its number}.
      masks: whether every object needs a mask; without, masks are dropped.
    """
    objects: list[dict[str, Any]] = []
    others = {key_of(i.get("id")) for i in source.content["images"] if isinstance(i, dict)}
    from_builder = all(isinstance(item, dict) and "place" in item for item in source.content["annotations"])
    for number, item in enumerate(source.content["annotations"]):
        place = f"{source.origin}: annotations[{number}]"
        if not isinstance(item, dict):
            report.leave_out("no object", place)
            continue
        place = item.get("place", place) if from_builder else place
        key = key_of(item.get("image_id"))
        if key not in places:
            if key is None or key not in others and not from_builder:  # A list may have dropped the picture.
                line = f"{place}: of an unknown image {shapes.quote(item.get('image_id'))}"
                report.leave_out("of an unknown image", place, line)
            continue
        if places[key] is None:
            report.change("objects of pictures that were left out, left out with them", place)
            continue
        notes: Notes = []
        try:
            entry = _object(item, places[key], numbers, masks, source.fractions, notes)
        except BadShapeError as error:
            places[key]["lost"] = places[key].get("lost", 0) + 1
            report.leave_out(_kind(str(error)), place, f"{place}: {error}")
            continue
        label_lines.suspect_score(report, item.get("score", ""), place)
        for suspicious, what in notes:
            (report.suspect if suspicious else report.change)(what, place)
        objects.append({**entry, "id": len(objects) + 1})
    _suspect_twice(objects, report, source.origin)
    return objects


def _kind(reason: str) -> str:
    """Returns a reason without its values, so that a report counts like ones together."""
    words = [word for word in reason.split() if not any(c.isdigit() or c in "[]{}'\"" for c in word)]
    return " ".join(words) or reason


def _object(
    item: Mapping[str, Any],
    place: Entry,
    numbers: Mapping[str, int],
    masks: bool,
    fractions: bool,
    notes: Notes,
) -> dict[str, Any]:
    """Returns an object's entry. Raises BadShapeError if it cannot be used."""
    category = key_of(item.get("category_id"))
    if category not in numbers:
        raise BadShapeError(f"category {shapes.quote(item.get('category_id'))} is unknown")
    crowd = _crowd(item.get("iscrowd"), notes)
    if not crowd and str(item.get("ignore", 0)).strip().lower() in _YES:
        notes.append((False, "an object marked as difficult or to ignore, taken as a crowd: not trained on"))
        crowd = 1
    height, width = place["height"], place["width"]
    bbox, shape = item.get("bbox"), item.get("segmentation")
    if fractions:
        bbox = [value * side for value, side in zip(bbox, (width, height) * 2)]
        shape = shape and [[v * (width, height)[i % 2] for i, v in enumerate(part)] for part in shape]
    if masks:
        shape = shapes.checked(shape, height, width)
    box = _box(bbox, shape, height, width, notes)
    box = _clipped(box, height, width, notes)
    if masks:
        _check_mask(shape, box, height, width, notes)
    area = item.get("area")
    usable = isinstance(area, int | float) and 0 < area < 1 << 40
    return {
        "image_id": place["id"],
        "category_id": numbers[category],
        "bbox": box,
        "area": float(area) if usable else box[2] * box[3],
        "iscrowd": crowd,
        "segmentation": shape if masks else None,
    }


def _crowd(value: Any, notes: Notes) -> int:
    text = str(value).strip().lower() if isinstance(value, str | int | float) or value is None else "?"
    if text not in (*_YES, *_NO):
        raise BadShapeError(f"iscrowd is {shapes.quote(value)}, neither 0 nor 1")
    number = int(text in _YES)
    if value is not None and not (isinstance(value, int) and value == number):
        notes.append((False, f"iscrowd that is not a number, read as {number}"))
    return number


def _box(bbox: Any, shape: Any, height: int, width: int, notes: Notes) -> list[float]:
    if bbox in (None, [], [0] * 4) and shape:
        notes.append((False, "a box computed from its mask"))
        sound = shapes.checked(shape, height, width)
        return coco_mask.toBbox(shapes.encoded(sound, height, width)).tolist()
    try:
        return shapes.numbers(bbox, 4)
    except BadShapeError as error:
        raise BadShapeError(f"bbox is {shapes.quote(bbox)}, not four numbers x, y, width, height") from error


def _clipped(box: Sequence[float], height: int, width: int, notes: Notes) -> list[float]:
    x, y, across, down = box
    left, top = max(x, 0.0), max(y, 0.0)
    right, bottom = min(x + across, float(width)), min(y + down, float(height))
    if not (right > left and bottom > top):
        raise BadShapeError("its box has no area within the picture")
    inside = (right - left) * (bottom - top) / (across * down)
    if inside < 1 - _OUTSIDE:
        notes.append((True, "a box more than half outside of its picture"))
    elif inside < 1 - 1e-6:
        notes.append((False, "a box cut at the picture's edge"))
    if min(right - left, bottom - top) < _TINY:
        notes.append((True, f"a box less than {_TINY:g} pixels wide or high"))
    return [left, top, right - left, bottom - top]


def _check_mask(shape: Any, box: Sequence[float], height: int, width: int, notes: Notes) -> None:
    mask = shapes.encoded(shape, height, width)
    if not coco_mask.area(mask):
        raise BadShapeError("its mask has no pixel within the picture")
    around = coco_mask.toBbox(mask)
    overlap = coco_mask.iou(np.array([box]), np.array([around]), [0])[0, 0]
    if overlap < _APART:
        notes.append((True, "a box and a mask that are apart"))


def _suspect_twice(objects: Sequence[Mapping[str, Any]], report: Report, origin: str) -> None:
    boxes = set()
    for item in objects:
        same = (item["image_id"], item["category_id"], *item["bbox"])
        if same in boxes:
            report.suspect("the same box twice", f"{origin}: picture {item['image_id']}, box {item['bbox']}")
        boxes.add(same)
