"""Reads YOLO's annotations, a text file for each picture, as COCO's JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from common.data import folder_conversion, pictures, text_files
from common.data.report import Report
from common.detection.annotation_formats import Builder, Source
from common.errors import UserError

_SETTINGS = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
_LISTS = ("classes.txt", "obj.names", "_darknet.labels")
_SLACK = 0.01  # Rounding makes some fractions exceed 1.


def find(folder: Path, report: Report, expected: str) -> tuple[Source, Source | None]:
    """Reads a folder of pictures with text files beside them, or of images/ and labels/, or of splits with these.

    Args:
      folder: the user's folder.
      report: receives a line about each label that cannot be used.
      expected: what the folder could hold instead, for the error.

    Raises:
      UserError: there are no such annotations, no file names the classes, or two classes have one name.
    """
    first, second = folder_conversion.given_split(folder)
    if second is None and (folder / "images").is_dir():  # images/train and labels/train.
        first, second = folder_conversion.given_split(folder / "images")
    parts = [first, second] if second else [folder]
    if not any(_label(path).is_file() for part in parts for path in _pictures(part)):
        raise UserError(f"{folder}: no annotations; {expected}")
    names = [text_files.normal(name) for name in _names(folder)]
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise UserError(
            f"{folder}: the list of classes has {twice[:80]!r} twice; give each class its own name"
        )
    sources = [_read(part, names, report) for part in parts]
    return sources[0], sources[1] if second else None


def _pictures(folder: Path) -> list[Path]:
    return [p for p in folder_conversion.files(folder) if p.suffix.lower() in pictures.SUFFIXES]


def _label(picture: Path) -> Path:
    """Returns the picture's label file: beside it, or in labels/ where the picture is in images/."""
    beside = picture.with_suffix(".txt")
    if beside.is_file() or "images" not in picture.parts[:-1]:
        return beside
    parts = list(beside.parts)
    at = len(parts) - 2 - parts[:-1][::-1].index("images")
    return Path(*parts[:at], "labels", *parts[at + 1 :])


def _names(folder: Path) -> list[str]:
    for name in _SETTINGS:
        if (folder / name).is_file():
            found = _of_settings(folder / name)
            if found:
                return found
    for place in (folder, folder / "labels", folder / "train", folder / "train" / "labels"):
        for name in _LISTS:
            if (place / name).is_file():
                return [line.strip() for line in text_files.read(place / name) if line.strip()]
    raise UserError(
        f"{folder}: YOLO's labels without names; add {_SETTINGS[0]} or {_LISTS[0]} with the classes"
    )


def _of_settings(path: Path) -> list[str]:
    try:
        # All values are texts: YAML would make True of a class "yes".
        content = yaml.load("\n".join(text_files.read(path)), Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UserError(f"{path}: no YAML ({' '.join(str(error).split())[:80]}); correct it") from error
    names: Any = content.get("names") if isinstance(content, dict) else None
    if names in (None, ""):
        return []
    if isinstance(names, dict):
        if set(names) != set(map(str, range(len(names)))):
            raise UserError(f"{path}: names has the numbers {list(names)[:5]}; number the classes from 0")
        names = [names[str(number)] for number in range(len(names))]
    if not isinstance(names, list):
        raise UserError(f"{path}: names is {str(names)[:40]!r}; write a list of the classes")
    if content.get("nc", str(len(names))) != str(len(names)):
        raise UserError(f"{path}: nc is {content['nc']}, names has {len(names)} classes; correct one of them")
    return [str(name) for name in names]


def _read(folder: Path, names: Sequence[str], report: Report) -> Source:
    made, used = Builder(), set()
    for picture in _pictures(folder):
        path = _label(picture)
        used.add(path)
        made.image(picture.relative_to(folder).as_posix())
        if not path.is_file():
            report.change("a picture without a file of labels, taken as one without objects", str(picture))
            continue
        try:
            lines = text_files.read(path)
        except UserError as error:
            made.images.pop()
            report.leave_out("its labels cannot be read", str(path), str(error))
            continue
        for number, line in enumerate(lines, 1):
            if line.strip():
                place = f"{path}: line {number}"
                try:
                    made.add(*_parsed(line.split(), names), place)
                except ValueError as error:
                    report.leave_out(str(error).partition(":")[0], place, f"{place}: {error}")
    for place in sorted({path.parent for path in used}):
        for path in sorted(place.glob("*.txt")):
            if path not in used and path.name not in _LISTS and folder_conversion.visible(path.name):
                report.skip("a file of labels without a picture", str(path))
    numbered = [str(name) for name in names]
    return Source(made.content(numbered), folder, str(folder), fractions=True)


def _parsed(words: Sequence[str], names: Sequence[str]) -> tuple[str, list[float], list[float] | None]:
    """Returns (class, box, polygon or None), as fractions of the picture.

    Raises:
      ValueError: the line is neither a box nor a polygon.
    """
    try:
        number, *values = (float(word) for word in words)
    except ValueError:
        raise ValueError(f"no numbers: {' '.join(words)[:60]}") from None
    if not all(map(math.isfinite, [number, *values])) or number != int(number):
        raise ValueError(f"no finite numbers after a whole one: {' '.join(words)[:60]}")
    if not 0 <= number < len(names):
        raise ValueError(f"a class outside of the {len(names)} names: {int(number)}")
    if not all(-_SLACK <= value <= 1 + _SLACK for value in values):
        raise ValueError(f"coordinates outside of 0 to 1: {' '.join(words)[:60]}")
    name = names[int(number)]
    if len(values) in (4, 5):  # The fifth is the score of a prediction.
        x, y, width, height = values[:4]
        return name, [x - width / 2, y - height / 2, width, height], None
    if len(values) >= 6 and len(values) % 2 == 0:
        left, top = min(values[::2]), min(values[1::2])
        return name, [left, top, max(values[::2]) - left, max(values[1::2]) - top], values
    raise ValueError(f"neither a box nor a polygon: {len(values)} numbers after the class")
