"""Collects annotations as COCO's JSON, and reads VIA's and CreateML's."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.data import folder_conversion, pictures
from common.data.report import Report
from common.detection.shapes import BadShapeError, key_of, numbers
from common.errors import UserError

_CORNERS = 32  # Corners of the polygon that stands for a circle or an ellipse.
# VIA's attributes that usually hold the class, where an object has several.
_CLASS = ("class", "label", "name", "category", "type")


@dataclasses.dataclass(frozen=True)
class Source:
    """A split's annotations, and the folder to which their file names are relative.

    Attributes:
      content: annotations in the form of COCO's JSON.
      folder: folder of the pictures.
      named: the annotation file, for errors.
      fractions: whether boxes and polygons are fractions of the picture's width and height, not pixels.
      aside: names of pictures that are left aside knowingly.
    """

    content: Mapping[str, Any]
    folder: Path
    named: str
    fractions: bool = False
    aside: Collection[str] = ()

    def divided(
        self, splits: Sequence[Collection[str]], report: Report, outside: str = ""
    ) -> tuple[Source, Source]:
        """Returns the sources of the training and the evaluation pictures, by the names that lists give to each.

        Entries without a name are in the first, whose reader reports them. `outside` is what the report says of a
        picture in neither, "" for nothing.
        """
        images = self.content["images"]
        names = [str(image.get("file_name") or "") if isinstance(image, dict) else "" for image in images]
        for name in filter(None, names) if outside else ():
            if not any(name in split for split in splits):
                report.skip(outside, name)
        sources = []
        for number, split in enumerate(splits):
            chosen = [name in split if name else number == 0 for name in names]
            inside = [image for image, is_in in zip(images, chosen) if is_in]
            out = [image for image, is_in in zip(images, chosen) if not is_in and isinstance(image, dict)]
            others = {key_of(image.get("id")) for image in out} - {None}
            items = self.content["annotations"]
            items = [i for i in items if not isinstance(i, dict) or key_of(i.get("image_id")) not in others]
            content = {**self.content, "images": inside, "annotations": items}
            sources.append(dataclasses.replace(self, content=content, aside=list(filter(None, names))))
        return tuple(sources)


class Builder:
    """Collects pictures and objects in the form of COCO's JSON; a category's id is its name."""

    def __init__(self) -> None:
        self.images: list[dict[str, Any]] = []
        self.objects: list[dict[str, Any]] = []

    def image(self, name: str, width: Any = None, height: Any = None) -> None:
        """Adds a picture; the objects that follow are of it."""
        self.images.append({"id": len(self.images) + 1, "file_name": name, "width": width, "height": height})

    def add(
        self,
        name: str,
        box: Sequence[float],
        shape: list[Sequence[float]] | dict[str, Any] | None,
        place: str,
    ) -> None:
        """Adds an object with a box [x, y, width, height] and perhaps a mask; `place` names it in errors.

        `shape` is a list of polygons, each x0, y0, x1, y1, ..., or COCO's run lengths.
        """
        self.objects.append(
            {
                "image_id": len(self.images),
                "category_id": name,
                "bbox": list(box),
                "segmentation": shape,
                "place": place,
            }
        )

    def content(self, names: Sequence[str] = ()) -> dict[str, Any]:
        """Returns the content; `names` are the categories in order, or by default all that objects have, sorted."""
        if names:
            categories = [{"id": number, "name": name} for number, name in enumerate(names)]
            objects = [{**item, "category_id": names.index(item["category_id"])} for item in self.objects]
        else:
            used = sorted({item["category_id"] for item in self.objects})
            categories, objects = [{"id": name, "name": name} for name in used], self.objects
        return {"images": self.images, "annotations": objects, "categories": categories}


def report_unnamed(folder: Path, names: Collection[str], report: Report) -> None:
    """Notes the pictures directly in a folder that are none of `names`."""
    for path in sorted(folder.iterdir()):
        a_picture = path.suffix.lower() in pictures.SUFFIXES and path.is_file()
        if a_picture and path.name not in names and folder_conversion.visible(path.name):
            report.skip("a picture that no annotation names", str(path), lost=True)


def is_known(content: Any) -> bool:
    """Whether a JSON file's content is annotations of COCO, VIA or CreateML."""
    coco = isinstance(content, dict) and (
        isinstance(content.get("images"), list) or {"annotations", "categories"} <= content.keys()
    )
    return coco or is_via(content) or is_createml(content)


def is_via(content: Any) -> bool:
    """Whether a JSON file's content is a project or an export of the VGG Image Annotator."""
    entries = _via_entries(content)
    return bool(entries) and all(isinstance(e, dict) and "filename" in e and "regions" in e for e in entries)


def _via_entries(content: Any) -> list[Any]:
    if not isinstance(content, dict) or "images" in content:
        return []
    inside = content.get("_via_img_metadata", content)
    return list(inside.values()) if isinstance(inside, dict) else []


def via(content: Mapping[str, Any], path: Path, report: Report) -> dict[str, Any]:
    """Reads VIA's regions: rectangles, polygons, circles and ellipses; the class is an attribute of the region."""
    builder = Builder()
    attribute = _via_attribute(content, path)
    for entry in _via_entries(content):
        builder.image(str(entry["filename"]))
        for number, region in enumerate(_via_regions(entry)):
            place = f"{path}: {entry['filename']}: regions[{number}]"
            try:
                if not isinstance(region, dict):
                    raise BadShapeError("no object")
                name = _via_class(region.get("region_attributes"), attribute)
                points, box = _via_shape(region.get("shape_attributes"))
            except BadShapeError as error:
                report.leave_out(str(error), place)
                continue
            builder.add(name, box, [points.ravel().tolist()], place)
    return builder.content()


def _via_regions(entry: Mapping[str, Any]) -> list[Any]:
    regions = entry["regions"]
    regions = list(regions.values()) if isinstance(regions, dict) else regions
    return regions if isinstance(regions, list) else []


def _via_attribute(content: Mapping[str, Any], path: Path) -> str:
    """Returns the attribute of all regions that names the class, in lower case: one of _CLASS, or the only one.

    Raises UserError if the regions have several attributes, none of _CLASS.
    """
    regions = [region for entry in _via_entries(content) for region in _via_regions(entry)]
    given = [r.get("region_attributes") for r in regions if isinstance(r, dict)]
    names = {str(key): None for attributes in given if isinstance(attributes, dict) for key in attributes}
    lower = [name.lower() for name in names]
    if not set(lower) & set(_CLASS) and len(set(lower)) > 1:
        raise UserError(
            f"{path}: its regions have the attributes {', '.join(list(names)[:6])}; rename the one of the class to "
            "class"
        )
    return next((name for name in (*_CLASS, *lower) if name in lower), "")


def _via_class(attributes: Any, attribute: str) -> str:
    """Returns the value of the attribute that names the class; a checkbox's value is {class: true}."""
    given = attributes if isinstance(attributes, dict) else {}
    value = next((value for key, value in given.items() if key.lower() == attribute), None)
    if isinstance(value, dict):
        chosen = [key for key, is_set in value.items() if is_set]
        value = chosen[0] if len(chosen) == 1 else None
    if not isinstance(value, str | int) or not str(value).strip():
        raise BadShapeError("no attribute of the region names one class")
    return str(value).strip()


def _via_shape(shape: Any) -> tuple[np.ndarray, list[float]]:
    """Returns (corners [n, 2], the box around them)."""
    kind = shape.get("name") if isinstance(shape, dict) else None
    if kind in ("polygon", "polyline"):
        x, y = (numbers(shape.get(side)) for side in ("all_points_x", "all_points_y"))
        if len(x) != len(y) or len(x) < 3:
            raise BadShapeError(f"a polygon with {len(x)} and {len(y)} coordinates")
        return around(np.stack([x, y], 1))
    if kind == "rect":
        x, y, width, height = numbers([shape.get(side) for side in ("x", "y", "width", "height")])
        return around(rectangle(x, y, x + width, y + height))
    if kind in ("circle", "ellipse"):
        across = shape.get("r" if kind == "circle" else "rx")
        down = shape.get("r" if kind == "circle" else "ry")
        x, y, across, down = numbers([shape.get("cx"), shape.get("cy"), across, down])
        turned = numbers([shape.get("theta") or 0])[0]
        return around(ellipse(x, y, across, down, turned))
    raise BadShapeError(f"a shape {str(kind)[:40]!r} is no area")


def is_createml(content: Any) -> bool:
    """Whether a JSON file's content is Apple's CreateML: a list of pictures, each with its objects."""
    return isinstance(content, list) and any(_createml_objects(entry) for entry in content)


def _createml_objects(entry: Any) -> list[Any]:
    objects = entry.get("annotations") if isinstance(entry, dict) else None
    known = [
        one for one in objects or () if isinstance(one, dict) and isinstance(one.get("coordinates"), dict)
    ]
    return known if isinstance(objects, list) and (entry.get("image") or entry.get("imagefilename")) else []


def createml(content: Sequence[Any], path: Path, report: Report) -> dict[str, Any]:
    """Reads CreateML's boxes: the centre, width and height in pixels."""
    builder = Builder()
    for entry in content:
        if not isinstance(entry, dict):
            report.leave_out("no object", str(path))
            continue
        builder.image(str(entry.get("image") or entry.get("imagefilename")))
        for number, item in enumerate(_createml_objects(entry)):
            place = f"{path}: {builder.images[-1]['file_name']}: annotations[{number}]"
            try:
                sides = (item["coordinates"].get(side) for side in ("x", "y", "width", "height"))
                x, y, width, height = numbers(list(sides))
            except BadShapeError as error:
                report.leave_out(str(error), place)
                continue
            builder.add(
                str(item.get("label") or ""), [x - width / 2, y - height / 2, width, height], None, place
            )
    return builder.content()


def rectangle(left: float, top: float, right: float, bottom: float) -> np.ndarray:
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]])


def ellipse(x: float, y: float, across: float, down: float, turned: float = 0.0) -> np.ndarray:
    angles = np.arange(_CORNERS) * (2 * np.pi / _CORNERS)
    rim = np.stack([across * np.cos(angles), down * np.sin(angles)], 1)
    rotation = np.array([[np.cos(turned), np.sin(turned)], [-np.sin(turned), np.cos(turned)]])
    return rim @ rotation + [x, y]


def around(points: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Returns (the points [n, 2], the box [x, y, width, height] around them)."""
    low, high = points.min(0), points.max(0)
    return points, [*low.tolist(), *(high - low).tolist()]
