"""Reads annotations with a file for each picture, Pascal VOC's XML and LabelMe's JSON, as COCO's JSON."""

import collections
import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

import numpy as np

from common.data import folder_conversion
from common.data.partners import Partners
from common.data.report import Report
from common.detection import formats
from common.detection.annotation_formats import Builder, Object, Source, outlined
from common.detection.shapes import BadShapeError, numbers
from common.errors import UserError, counted
from common.untrusted import parsed

# What makes a file no annotation.
_BAD = (OSError, LookupError, ElementTree.ParseError, ValueError, RecursionError)


@dataclasses.dataclass(frozen=True)
class _File:
    """A file's content: the picture that it names, its width and height, (place, object) pairs, and their reader.

    `hint` ends the line about a picture that is not there.
    """

    name: str
    size: Sequence[Any]
    items: Sequence[tuple[str, Any]]
    to_object: Callable[[Any], Object]
    hint: str = ""


def is_voc(path: Path) -> bool:
    """Whether the first tag of an XML file is Pascal VOC's."""
    try:
        return _root(path).tag == "annotation"
    except _BAD:
        return False


def voc(folder: Path, report: Report) -> Source:
    """Reads all XML files in a folder; see `read`."""
    files = [path for path in folder_conversion.files(folder) if path.suffix.lower() == ".xml"]
    return read(folder, files, "Pascal VOC", report)


def read(folder: Path, paths: Sequence[Path], program: str, report: Report) -> Source:
    """Reads the files of "Pascal VOC" or "LabelMe"; `report` receives a line about each that cannot be used.

    Raises UserError if none can be used.
    """
    partners, builder, bad = Partners(folder), Builder(), f"no annotation of {program}"
    for path in paths:
        try:
            file = _voc(path) if program == "Pascal VOC" else _labelme(path)
        except _BAD as error:
            report.leave_out(bad, str(path), f"{path}: {bad} ({error})")
            continue
        if file is None:
            report.skip("a JSON file beside the annotations that are read", str(path))
            continue
        try:
            picture = partners.of_annotation(path, file.name, report)
        except UserError as error:
            report.leave_out("its picture is one of two", str(path), str(error))
            continue
        if picture is None:
            what = "its picture is missing"
            report.leave_out(what, str(path), f"{path}: {what}{file.hint}")
            continue
        builder.image(picture, *file.size)
        builder.read(file.items, file.to_object, report)
    if not builder.images:
        first = report.lines[0] if report.lines else "there is none"
        raise UserError(f"{folder}: {bad} among its files; the first: {first}")
    # The report has the files that cannot be used; their pictures need no line of their own.
    aside = [picture for path in paths for picture in partners.with_stem(path)]
    return Source(builder.content(), folder, str(folder), aside=aside)


def _labelme(path: Path) -> _File | None:
    content = parsed(path.read_bytes())
    if not isinstance(content, dict) or not {"imagePath", "shapes"} & content.keys():
        return None
    if not formats.is_labelme(content):
        raise ValueError("it is not a JSON file with shapes and imagePath")
    hint = ", but inside of the file (imageData); save it beside" if content.get("imageData") else ""
    size = content.get("imageWidth"), content.get("imageHeight")
    groups = collections.Counter(map(_group, content["shapes"]))
    shapes = []
    for number, shape in enumerate(content["shapes"]):
        parts = groups[_group(shape)] if _group(shape) else 1
        shapes.append((f"{path}: shapes[{number}]", (shape, parts)))
    return _File(str(content["imagePath"] or ""), size, shapes, _labelme_object, hint)


def _group(shape: Any) -> tuple[str, str] | None:
    """Returns the class and the number that LabelMe gives to all shapes of one object; None without a number."""
    group = shape.get("group_id") if isinstance(shape, dict) else None
    return None if group is None else (str(shape.get("label")), str(group))


def _labelme_object(item: tuple[Any, int]) -> Object:
    """Reads LabelMe's rectangle or polygon, one of so many shapes of its group.

    Raises BadShapeError if it has no label, is another shape, or is only a part of an object.
    """
    shape, parts = item
    if not isinstance(shape, dict) or not str(shape.get("label") or "").strip():
        raise BadShapeError("a shape without a label")
    if parts > 1:
        raise BadShapeError(f"one of {parts} shapes of one group_id, which are not joined; outline it as one")
    raw_points, kind = shape.get("points"), shape.get("shape_type") or "polygon"
    points = [numbers(point, 2) for point in raw_points] if isinstance(raw_points, list) else []
    corners = np.array(points).reshape(-1, 2)
    if kind == "rectangle" and len(points) >= 2:
        (left, top), (right, bottom) = corners.min(0), corners.max(0)
        corners = np.array([[left, top], [right, top], [right, bottom], [left, bottom]])
    elif kind not in ("polygon", "rotation") or len(points) < 3:
        what = f"a shape {str(kind)[:40]!r} of {counted(len(points), 'point')}"
        raise BadShapeError(f"{what} is neither a rectangle nor a polygon; draw one")
    return outlined(str(shape["label"]).strip(), corners.ravel().tolist())


def _voc(path: Path) -> _File:
    root = _root(path)
    if root.tag != "annotation":
        raise ValueError(f"its first tag is {root.tag[:40]}, not annotation")
    size = [root.findtext(f"size/{side}") for side in ("width", "height")]
    items = [(f"{path}: object {number}", item) for number, item in enumerate(root.iter("object"), 1)]
    return _File(root.findtext("filename") or "", size, items, _voc_object)


def _root(path: Path) -> ElementTree.Element:
    """Parses an XML file; rejects entities, because they can expand to any size or name other files.

    Raises OSError, ElementTree.ParseError, ValueError if it cannot be read, is not XML, or defines an entity, and
    LookupError if its encoding is unknown.
    """
    data = path.read_bytes().lstrip(b" \t\r\n")  # Before the first tag, XML forbids what editors leave there.
    declaration = re.match(rb"<\?xml[^>]*encoding=[\"']([\w.-]+)[^>]*\?>", data[:200])
    if declaration:  # expat knows few encodings.
        data = data[declaration.end() :].decode(declaration.group(1).decode()).lstrip().encode()

    def refuse(name: str, *_: Any) -> None:
        raise ValueError(f"it defines the entity {name[:40]!r}")

    looking = expat.ParserCreate()
    looking.EntityDeclHandler = refuse
    try:
        looking.Parse(data, True)
    except expat.ExpatError as error:
        raise ElementTree.ParseError(str(error)) from error
    root = ElementTree.fromstring(data)
    for item in root.iter():
        item.tag = item.tag.rpartition("}")[2]  # Without the namespace.
    return root


def _voc_object(item: ElementTree.Element) -> Object:
    """Reads an object; its corners are pixels counted from 1, as in Pascal VOC."""
    box = item.find("bndbox")
    if box is None:
        other = next((one.tag for one in item if one.tag in ("robndbox", "polygon")), "")
        raise ValueError(
            f"an object without bndbox{f', but with {other}, which is not read' if other else ''}"
        )
    corners = [box.findtext(side) or "" for side in ("xmin", "ymin", "xmax", "ymax")]
    if not all(corners):
        raise ValueError("a bndbox without xmin, ymin, xmax or ymax")
    left, top, right, bottom = map(float, corners)
    name = (item.findtext("name") or "").strip()
    if not name:
        raise ValueError("an object without a name")
    if 0 <= left < right <= 1 and 0 <= top < bottom <= 1:
        raise ValueError("a box within 0 to 1: fractions; corners must be pixels")
    difficult = (item.findtext("difficult") or "").strip() == "1"
    return Object(name, [left - 1, top - 1, right - left + 1, bottom - top + 1], difficult=difficult)
