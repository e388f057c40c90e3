"""Reads Pascal VOC's annotations, an XML file for each picture, as COCO's JSON."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

from common.data import folder_conversion, pictures, text_files
from common.data.report import Report
from common.detection.annotation_formats import Builder, Source
from common.errors import UserError

# The lists in ImageSets/Main of the pictures to train and to evaluate on, first come first served.
_LISTS = (("train", "val"), ("trainval", "test"), ("train", "test"))


def read(folder: Path, report: Report) -> Source:
    """Reads all XML files in a folder; `report` receives a line about each that cannot be used.

    Raises:
      UserError: none can be used.
    """
    files = [path for path in folder_conversion.files(folder) if path.suffix.lower() == ".xml"]
    finder, made = _Pictures(folder), Builder()
    for path in files:
        try:
            root = _root(path)
            picture = finder.of(path, root.findtext("filename") or "")
            found = [_object(item) for item in root.iter("object")]
        except (OSError, ElementTree.ParseError, TypeError, ValueError, RecursionError) as error:
            report.leave_out(
                "no annotation of Pascal VOC", str(path), f"{path}: no annotation of Pascal VOC ({error})"
            )
            continue
        except LookupError as error:
            report.leave_out(error.args[0].partition(" is /")[0], str(path), f"{path}: {error.args[0]}")
            continue
        size = [root.findtext(f"size/{side}") for side in ("width", "height")]
        made.image(picture.relative_to(folder).as_posix(), *size)
        for number, (name, box) in enumerate(found):
            made.add(name, box, None, f"{path}: object {number + 1}")
    if not made.images:
        first = report.lines[0] if report.lines else "there is none"
        raise UserError(f"{folder}: no annotation of Pascal VOC among its XML files; the first: {first}")
    # The report has the files that cannot be used; their pictures need no line of their own.
    aside = [
        picture.relative_to(folder).as_posix() for path in files for picture in finder.by_stem[path.stem]
    ]
    return Source(made.content(), folder, str(folder), aside=aside)


def read_with_lists(folder: Path, report: Report) -> tuple[Source, Source | None]:
    """Reads Pascal VOC's layout; the lists in ImageSets/Main define the split if they exist.

    Raises:
      UserError: no annotation can be used, or a list cannot be read or names no picture that is there.
    """
    source = read(folder, report)
    place = folder / "ImageSets" / "Main"
    pairs = ([place / f"{name}.txt" for name in pair] for pair in _LISTS)
    lists = next((pair for pair in pairs if all(path.is_file() for path in pair)), None)
    if lists is None:
        for path in sorted(path for pair in _LISTS for path in (place / f"{name}.txt" for name in pair)):
            if path.is_file():
                report.skip("a list of pictures without the list of the other part", str(path))
        return source, None
    images = source.content["images"]
    known = {Path(image["file_name"]).stem for image in images}
    chosen = [_listed(path, known, report) for path in lists]
    for image in images:
        if not any(Path(image["file_name"]).stem in stems for stems in chosen):
            report.skip(f"in neither {lists[0].name} nor {lists[1].name}", image["file_name"])
    aside = [image["file_name"] for image in images]
    parts = []
    for stems in chosen:
        of_it = [image for image in images if Path(image["file_name"]).stem in stems]
        parts.append(dataclasses.replace(source, content={**source.content, "images": of_it}, aside=aside))
    return parts[0], parts[1]


def _listed(path: Path, known: Iterable[str], report: Report) -> set[str]:
    """Returns the pictures that a list names, one a line: a stem or file name, which may have spaces, and a flag."""
    lines = text_files.read(path)
    by_name = {text_files.normal(stem): stem for stem in known}
    stems = set()
    for number, line in enumerate(lines, 1):
        name = text_files.normal(line)
        if not name:
            continue
        forms = [name, *name.rsplit(None, 1)[:1]]  # Without the flag -1, 0 or 1 of a class's list.
        forms += [form.replace("\\", "/").rpartition("/")[2] for form in forms]
        forms += [form.rpartition(".")[0] for form in forms if _is_name(form)]
        found = next((by_name[form] for form in forms if form in by_name), None)
        if found is None:
            report.leave_out("named in a list, but no annotation is there", f"{path}: line {number}: {name}")
        else:
            stems.add(found)
    if not stems:
        raise UserError(
            f"{path}: none of its {len(lines)} lines names a picture with an annotation; correct it"
        )
    return stems


def _is_name(text: str) -> bool:
    return Path(text).suffix.lower() in {*pictures.SUFFIXES, ".xml"}


def _root(path: Path) -> ElementTree.Element:
    """Parses an XML file; rejects entities, because they can expand to any size or name other files.

    Raises:
      OSError, ElementTree.ParseError, ValueError: it cannot be read, is not XML, or defines an entity.
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


class _Pictures:
    """Finds an XML file's picture: beside the file, else in JPEGImages, else by the name in the file.

    Pascal VOC's own SegmentationClass folder has masks with the same names as pictures.
    """

    def __init__(self, folder: Path):
        self.by_stem: dict[str, list[Path]] = collections.defaultdict(list)
        for path in folder_conversion.files(folder):
            if path.suffix.lower() in pictures.SUFFIXES:
                self.by_stem[path.stem].append(path)

    def of(self, path: Path, name: str) -> Path:
        """Returns the picture of the XML file `path`; `name` is its name in that file, or "".

        Raises:
          LookupError: there is no picture or more than one; the message says which.
        """
        found = self.by_stem.get(path.stem) or self.by_stem.get(Path(name).stem, [])
        if not found:
            raise LookupError("its picture is missing")
        found = [picture for picture in found if picture.parent == path.parent] or found
        found = [picture for picture in found if picture.parent.name == "JPEGImages"] or found
        found = [picture for picture in found if picture.name == name] or found
        if len(found) > 1:
            raise LookupError(f"its picture is {found[0]} or {found[1]}; give each a name of its own")
        return found[0]


def _object(item: ElementTree.Element) -> tuple[str, list[float]]:
    """Returns (class, box) of an object in an XML file; corners are pixels counted from 1, as in Pascal VOC."""
    box = item.find("bndbox")
    if box is None:
        raise ValueError("an object without bndbox")
    left, top, right, bottom = (float(box.findtext(side)) for side in ("xmin", "ymin", "xmax", "ymax"))
    name = (item.findtext("name") or "").strip()
    if not name:
        raise ValueError("an object without a name")
    if 0 <= left < right <= 1 and 0 <= top < bottom <= 1:
        raise ValueError("a box within 0 to 1: fractions; corners must be pixels")
    return name, [left - 1, top - 1, right - left + 1, bottom - top + 1]
