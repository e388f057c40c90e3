"""Converts COCO annotations to TFRecords, in the layout of tf-models' create_coco_tf_record (see coco_records.py)."""

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from common.data import pictures, tfrecords
from common.detection import masks as masks_of
from common.detection import shapes
from common.errors import UserError


def check(content: Any, source: str, masks: bool = False) -> None:
    """Checks that a COCO file has all fields that `examples` needs; `examples` itself leaves out unusable annotations.

    Raises UserError if a field is missing or has the wrong type, or with `masks` an object has no mask; the message
    names the file, `source`, the image or annotation, and the field.
    """
    for kind, fields in _FIELDS.items():
        entries = content.get(kind) if isinstance(content, dict) else None
        if not isinstance(entries, list):
            raise UserError(f"{source}: {kind} is not a list; get a COCO file of object instances")
        for number, entry in enumerate(entries):
            _check_entry(entry, fields, f"{source}: {kind}[{number}]")
    for item in content["annotations"] if masks else ():
        if not item.get("segmentation"):
            raise UserError(f"{source}: {_name(item)}: it has no segmentation; get a good copy")


def _check_entry(entry: Any, fields: Mapping[str, Callable[[Any], bool]], place: str) -> None:
    if not isinstance(entry, dict):
        raise UserError(f"{place} is not an object; get a good copy")
    for field, holds in fields.items():
        if not holds(entry.get(field)):
            value = repr(entry[field])[:40] if field in entry else "missing"
            owner = _name(entry) if "image_id" in entry else f"id {entry['id']}" if "id" in entry else ""
            raise UserError(f"{place}{owner and f' ({owner})'}: {field} is {value}; get a good copy")


def _name(item: Mapping) -> str:
    return f"image {item['image_id']}, annotation {item.get('id', 'without id')}"


def _is(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _box(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(map(_number, value))


def _shape(value: Any) -> bool:
    """Whether the value is polygons, run lengths or empty; `_fault` checks their values."""
    if isinstance(value, dict):
        return isinstance(value.get("size"), list) and "counts" in value
    return value is None or isinstance(value, list) and all(isinstance(polygon, list) for polygon in value)


_id, _text = _is(int, float, str), _is(str)
_FIELDS = {
    "images": {"id": _id, "file_name": _text, "height": _number, "width": _number},
    "categories": {"id": _id, "name": _text},
    "annotations": {
        "image_id": _id,
        "category_id": _id,
        "bbox": _box,
        "iscrowd": _number,
        "area": _number,
        "segmentation": _shape,
    },
}


def by_image(content: Mapping[str, Any]) -> dict[int, list[Mapping[str, Any]]]:
    """Groups a COCO file's annotations by image id."""
    groups = defaultdict(list)
    for item in content["annotations"]:
        groups[item["image_id"]].append(item)
    return groups


def examples(
    content: Mapping[str, Any],
    read: Callable[[Mapping[str, Any]], bytes],
    masks: bool = False,
    dropped: list[str] | None = None,
) -> Iterator[bytes]:
    """Yields the serialized examples of all images in a COCO file, in its order.

    Raises UserError if a category is unknown; the message names the image.

    Args:
      content: the annotation file, or some of its images with their annotations; `check` must accept it.
      read: returns the JPEG of an entry in "images".
      dropped: list that receives a line, with image and annotation, for each annotation left out.
    """
    names = {category["id"]: category["name"] for category in content["categories"]}
    objects = by_image(content)
    for image in content["images"]:
        real_objects = []
        for item in objects.get(image["id"], ()):
            why = _fault(item, image, names, masks)
            if why is None:
                real_objects.append(item)
            elif dropped is not None:
                dropped.append(f"{_name(item)}: {why}")
        yield _example(image, read(image), real_objects, names, masks)


def _fault(item: Mapping, image: Mapping, names: Mapping[int, str], masks: bool) -> str | None:
    """Returns why tf-models' converter omits an annotation, or None.

    An unknown category raises UserError; it is an error in that converter too.
    """
    if item["category_id"] not in names:
        fix = "download the annotations again"
        raise UserError(f"{_name(item)}: category {item['category_id']} is unknown; {fix}")
    x, y, width, height = item["bbox"]
    if width <= 0 or height <= 0:
        return "its box has no area"
    # The published converter allows no margin, but rounding makes some COCO boxes exceed the image by a hundredth.
    if x < 0 or y < 0 or x + width > image["width"] + 0.01 or y + height > image["height"] + 0.01:
        return "its box lies outside of the image"
    shape = item.get("segmentation")
    if isinstance(shape, list) and any(len(polygon) < 6 for polygon in shape):
        return "a polygon of fewer than three points"
    if isinstance(shape, dict) and list(shape["size"]) != [image["height"], image["width"]]:
        return f"a mask of size {shape['size']} in an image of {[image['height'], image['width']]}"
    try:
        _ = masks and shapes.checked(shape, image["height"], image["width"])
    except shapes.BadShapeError as error:
        return str(error)
    return None


def _example(image: Mapping, encoded: bytes, items: list[Mapping], names: Mapping, masks: bool) -> bytes:
    height, width = image["height"], image["width"]
    corners = np.array([item["bbox"] for item in items], np.float64).reshape(-1, 4)
    corners[:, 2:] += corners[:, :2]
    scaled = corners / [width, height, width, height]
    features = {
        "image/height": [height],
        "image/width": [width],
        "image/filename": image["file_name"],
        "image/source_id": str(image["id"]),
        "image/key/sha256": hashlib.sha256(encoded).hexdigest(),
        "image/encoded": encoded,
        "image/format": "jpg",
    }
    if items:
        for column, side in enumerate(("xmin", "ymin", "xmax", "ymax")):
            features[f"image/object/bbox/{side}"] = scaled[:, column].clip(0, 1).tolist()
        features["image/object/class/label"] = [int(item["category_id"]) for item in items]
        features["image/object/class/text"] = [names[item["category_id"]].encode() for item in items]
        features["image/object/is_crowd"] = [int(item["iscrowd"]) for item in items]
        features["image/object/area"] = [float(item["area"]) for item in items]
        if masks:
            shapes_of = (masks_of.decode(item["segmentation"], height, width) for item in items)
            features["image/object/mask"] = list(map(pictures.png, shapes_of))  # Values 0 and 1.
    return tfrecords.example(features)
