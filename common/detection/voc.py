"""Reads Pascal VOC's annotations, an XML file for each picture, as COCO's JSON."""

import contextlib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

from common.data import folder_conversion
from common.data.partners import Partners
from common.data.report import Report
from common.detection.annotation_formats import Builder, Source
from common.errors import UserError

NO_ANNOTATION = "no annotation of Pascal VOC"


def is_voc(path: Path) -> bool:
    """Whether the first tag of an XML file is Pascal VOC's."""
    try:
        return _root(path).tag == "annotation"
    except (OSError, ElementTree.ParseError, ValueError, RecursionError):
        return False


def read(folder: Path, report: Report) -> Source:
    """Reads all XML files in a folder; `report` receives a line about each that cannot be used.

    Raises UserError if none can be used.
    """
    files = [path for path in folder_conversion.files(folder) if path.suffix.lower() == ".xml"]
    partners, builder = Partners(folder), Builder()
    for path in files:
        try:
            root = _root(path)
            if root.tag != "annotation":
                raise ValueError(f"its first tag is {root.tag[:40]}, not annotation")
        except (OSError, ElementTree.ParseError, ValueError, RecursionError) as error:
            report.leave_out(NO_ANNOTATION, str(path), f"{path}: {NO_ANNOTATION} ({error})")
            continue
        name = root.findtext("filename") or ""
        size = [root.findtext(f"size/{side}") for side in ("width", "height")]
        named = None
        try:
            own = partners.of_stem(path.stem, near=path)
            with contextlib.suppress(*([UserError] if own else [])):
                named = partners.find(name, path) if name and (not own or Path(own).name != name) else None
            picture = partners.of_two(own, named, size, path, report)
        except UserError as error:
            report.leave_out("its picture is one of two", str(path), str(error))
            continue
        if picture is None:
            report.leave_out("its picture is missing", str(path))
            continue
        builder.image(picture, *size)
        for number, item in enumerate(root.iter("object"), 1):
            place = f"{path}: object {number}"
            try:
                label, box = _object(item)
            except (TypeError, ValueError) as error:
                report.leave_out(str(error).partition(":")[0], place, f"{place}: {error}")
                continue
            builder.add(label, box, None, place)
    if not builder.images:
        first = report.lines[0] if report.lines else "there is none"
        raise UserError(f"{folder}: {NO_ANNOTATION} among its XML files; the first: {first}")
    # The report has the files that cannot be used; their pictures need no line of their own.
    aside = [picture for path in files for picture in partners.with_stem(path)]
    return Source(builder.content(), folder, str(folder), aside=aside)


def _root(path: Path) -> ElementTree.Element:
    """Parses an XML file; rejects entities, because they can expand to any size or name other files.

    Raises OSError, ElementTree.ParseError, ValueError if it cannot be read, is not XML, or defines an entity.
    """
    data = path.read_bytes().lstrip(b" \t\r\n")  # Before the first tag, XML forbids what editors leave there.

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


def _object(item: ElementTree.Element) -> tuple[str, list[float]]:
    """Returns (class, box) of an object in an XML file; corners are pixels counted from 1, as in Pascal VOC."""
    box = item.find("bndbox")
    if box is None:
        other = next((one.tag for one in item if one.tag in ("robndbox", "polygon")), "")
        raise ValueError(
            f"an object without bndbox{f', but with {other}, which is not read' if other else ''}"
        )
    left, top, right, bottom = (float(box.findtext(side)) for side in ("xmin", "ymin", "xmax", "ymax"))
    name = (item.findtext("name") or "").strip()
    if not name:
        raise ValueError("an object without a name")
    if 0 <= left < right <= 1 and 0 <= top < bottom <= 1:
        raise ValueError("a box within 0 to 1: fractions; corners must be pixels")
    return name, [left - 1, top - 1, right - left + 1, bottom - top + 1]
