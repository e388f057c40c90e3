"""Reads the annotations of VIA and LabelMe as COCO's JSON, and finds the pictures that annotations name."""

from __future__ import annotations

import collections
import dataclasses
import os
import unicodedata
import urllib.parse
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.data import folder_conversion, pictures
from common.data.report import Report
from common.detection.shapes import BadShapeError, numbers
from common.errors import UserError, counted
from common.untrusted import parsed, stays_inside

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


class Names:
    """Finds pictures by the names that programs on other systems wrote.

    A name may have backslashes, a drive, another Unicode form or case, URL escapes, or a folder that is not there.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._whole: dict[str, str] | None = None
        self._last: dict[str, list[str]] = collections.defaultdict(list)

    def find(self, name: str) -> str | None:
        """Returns the path of the picture `name` relative to the folder, or None if there is none or more than one."""
        if stays_inside(name) and os.path.isfile(self._folder / name):
            return name
        if self._whole is None:
            self._whole = {}
            for path in folder_conversion.files(self._folder):
                inside = path.relative_to(self._folder).as_posix()
                self._whole.setdefault(_plain(inside), inside)
                self._last[_plain(path.name)].append(inside)
        for form in (name, urllib.parse.unquote(name)):
            plain = _plain(form)
            if plain in self._whole:
                return self._whole[plain]
            same = self._last.get(plain.rpartition("/")[2], ())
            if len(same) == 1:
                return same[0]
        return None


def _plain(name: str) -> str:
    return unicodedata.normalize("NFC", name.replace("\\", "/")).casefold().removeprefix("./")


class Builder:
    """Collects pictures and objects in the form of COCO's JSON; a category's id is its name."""

    def __init__(self) -> None:
        self.images: list[dict[str, Any]] = []
        self.objects: list[dict[str, Any]] = []

    def image(self, name: str, width: Any = None, height: Any = None) -> None:
        """Adds a picture; the objects that follow are of it."""
        self.images.append({"id": len(self.images) + 1, "file_name": name, "width": width, "height": height})

    def add(self, name: str, box: Sequence[float], polygon: Sequence[float] | None, place: str) -> None:
        """Adds an object with a box [x, y, width, height] and perhaps a polygon; `place` names it in errors."""
        shape = [list(polygon)] if polygon is not None else None
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
            report.skip("a picture that no annotation names", str(path))


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
    made = Builder()
    for entry in _via_entries(content):
        made.image(str(entry["filename"]))
        regions = entry["regions"]
        regions = list(regions.values()) if isinstance(regions, dict) else regions
        for number, region in enumerate(regions if isinstance(regions, list) else ()):
            place = f"{path}: {entry['filename']}: regions[{number}]"
            try:
                if not isinstance(region, dict):
                    raise BadShapeError("no object")
                name = _via_class(region.get("region_attributes"))
                points, box = _via_shape(region.get("shape_attributes"))
            except BadShapeError as error:
                report.leave_out(str(error), place)
                continue
            made.add(name, box, points.ravel().tolist(), place)
    return made.content()


def _via_class(attributes: Any) -> str:
    """Returns the value of the attribute that names the class; a checkbox's value is {class: true}."""
    given = attributes if isinstance(attributes, dict) else {}
    keys = [key for key in _CLASS if key in {k.lower() for k in given}] or [
        k.lower() for k in list(given)[:1]
    ]
    value = next((value for key, value in given.items() if key.lower() in keys[:1]), None)
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
        return around(_rectangle(x, y, x + width, y + height))
    if kind in ("circle", "ellipse"):
        across = shape.get("r" if kind == "circle" else "rx")
        down = shape.get("r" if kind == "circle" else "ry")
        x, y, across, down = numbers([shape.get("cx"), shape.get("cy"), across, down])
        turned = numbers([shape.get("theta") or 0])[0]
        return around(_ellipse(x, y, across, down, turned))
    raise BadShapeError(f"a shape {str(kind)[:40]!r} is no area")


def _rectangle(left: float, top: float, right: float, bottom: float) -> np.ndarray:
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]])


def _ellipse(x: float, y: float, across: float, down: float, turned: float = 0.0) -> np.ndarray:
    angles = np.arange(_CORNERS) * (2 * np.pi / _CORNERS)
    rim = np.stack([across * np.cos(angles), down * np.sin(angles)], 1)
    rotation = np.array([[np.cos(turned), np.sin(turned)], [-np.sin(turned), np.cos(turned)]])
    return rim @ rotation + [x, y]


def around(points: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Returns (the points [n, 2], the box [x, y, width, height] around them)."""
    low, high = points.min(0), points.max(0)
    return points, [*low.tolist(), *(high - low).tolist()]


def is_labelme(content: Any) -> bool:
    """Whether a JSON file's content is LabelMe's, which describes one picture."""
    return isinstance(content, dict) and isinstance(content.get("shapes"), list) and "imagePath" in content


def labelme_files(folder: Path) -> list[Path]:
    """Returns the JSON files at any depth in a folder if the first is LabelMe's."""
    found = [path for path in folder_conversion.files(folder) if path.suffix.lower() == ".json"]
    try:
        return found if found and is_labelme(parsed(found[0].read_bytes())) else []
    except (OSError, ValueError):
        return []


def labelme(folder: Path, files: Sequence[Path], report: Report) -> Source:
    """Reads LabelMe's files, one for each picture: rectangles, polygons and circles with a label.

    Raises:
      UserError: no file can be used.
    """
    made, names = Builder(), Names(folder)
    for path in files:
        try:
            content = parsed(path.read_bytes())
            if not is_labelme(content):
                raise ValueError("it has no shapes or no imagePath")
        except (OSError, ValueError) as error:
            report.leave_out(
                "no annotation of LabelMe", str(path), f"{path}: no annotation of LabelMe ({error})"
            )
            continue
        beside = (
            path.parent.relative_to(folder) / str(content["imagePath"]).replace("\\", "/").rpartition("/")[2]
        )
        picture = names.find(beside.as_posix()) or names.find(str(content["imagePath"]))
        if picture is None:
            report.leave_out("its picture is missing", str(path))
            continue
        made.image(picture, content.get("imageWidth"), content.get("imageHeight"))
        for number, shape in enumerate(content["shapes"]):
            place = f"{path}: shapes[{number}]"
            try:
                name, (points, box) = _labelme_shape(shape)
            except BadShapeError as error:
                report.leave_out(str(error), place)
                continue
            made.add(name, box, points.ravel().tolist(), place)
    if not made.images:
        raise UserError(f"{folder}: no annotation of LabelMe can be used; the first: {report.lines[0]}")
    return Source(made.content(), folder, str(folder))


def _labelme_shape(shape: Any) -> tuple[str, tuple[np.ndarray, list[float]]]:
    if not isinstance(shape, dict) or not str(shape.get("label") or "").strip():
        raise BadShapeError("a shape without a label")
    given = shape.get("points")
    points = np.array([numbers(point, 2) for point in given] if isinstance(given, list) else []).reshape(
        -1, 2
    )
    kind = shape.get("shape_type") or "polygon"
    if kind == "rectangle" and len(points) >= 2:
        made = around(_rectangle(*points.min(0), *points.max(0)))
    elif kind == "circle" and len(points) == 2:
        radius = float(np.linalg.norm(points[1] - points[0]))
        made = around(_ellipse(*points[0], radius, radius))
    elif kind == "polygon" and len(points) >= 3:
        made = around(points)
    else:
        raise BadShapeError(f"a shape {str(kind)[:40]!r} of {counted(len(points), 'point')} is no area")
    return str(shape["label"]).strip(), made
