"""Reads YOLO's annotations, a text file for each picture, as COCO's JSON."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from common.data import folder_conversion, given_splits, pictures, split_names, text_files
from common.data.partners import Partners, plain, stems
from common.data.report import Report
from common.detection import splits
from common.detection.annotation_formats import Builder, Source
from common.errors import UserError

_SETTINGS = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
_LISTS = ("classes.txt", "obj.names", "_darknet.labels")
_IMAGES = ("images", "jpegimages")  # Folders of pictures whose labels are in labels/ next to them.
NO_LABELS = "a picture without a file of labels, taken as one without objects"
_SLACK = 0.01  # Rounding makes some fractions exceed 1.


def find(folder: Path, report: Report, expected: str) -> tuple[Source, Source | None]:
    """Reads a folder of pictures with text files next to them, or of images/ and labels/, or of splits with these.

    data.yaml, or lists such as train.txt and val.txt, divide the pictures; else folders such as train/ and val/. Raises
    UserError if there are no such annotations, no file names the classes, or two classes have one name.

    Args:
      report: receives a line about each label that cannot be used.
      expected: the error for a folder without such annotations.
    """
    settings = _settings(folder)
    first, second = given_splits.given_split(folder, pair=False)
    if second is None and (folder / "images").is_dir():  # images/train and labels/train.
        first, second = given_splits.given_split(folder / "images", pair=False, report=report)
    labels = Labels(folder)
    paths = [p for p in folder_conversion.files(folder) if p.suffix.lower() in pictures.SUFFIXES]
    if not any(map(labels.of, paths)):
        labels.anywhere = Partners(folder, (".txt",))
    if not any(map(labels.of, paths)):
        alone = labels.unused()
        if len(alone) > 1 and paths:
            expected = f"{folder}: {len(alone)} label files match no picture, such as {alone[0]} beside {paths[0].name}"
        raise UserError(expected)
    names = [text_files.normal(name) for name in _names(folder, settings)]
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        fix = "give each class its own name"
        raise UserError(f"{folder}: the list of classes has {twice[:80]!r} twice; {fix}")
    reader = _Reader(names, labels, bool(settings.get("kpt_shape")), report)
    lists = splits.find(folder, settings, report)
    if lists:
        return reader.read(folder).divided(lists, report, "in no list of the split")
    sources = [reader.read(part) for part in ([first, second] if second else [folder])]
    return sources[0], sources[1] if second else None


def has_labels(folder: Path) -> bool:
    """Whether a picture has a file of labels."""
    labels = Labels(folder)
    paths = (p for p in folder_conversion.files(folder) if p.suffix.lower() in pictures.SUFFIXES)
    return any(map(labels.of, paths))


class Labels:
    """The label files below a folder: in labels/ where the picture is in images/, or next to their pictures.

    Attributes:
      anywhere: if not None, a label file may be in any folder.
    """

    def __init__(self, folder: Path):
        self._files: dict[str, Path] = {}
        self._used: dict[Path, Path] = {}
        self.anywhere: Partners | None = None
        for path in folder_conversion.files(folder):
            if path.suffix.lower() == ".txt" and path.name not in _LISTS:
                self._files.setdefault(_key(path.with_suffix("")), path)

    def of(self, picture: Path, report: Report | None = None) -> Path | None:
        """Returns a picture's label file, or None; notes in the report another one, and another picture of the same."""
        places, folders = [picture], [name.lower() for name in picture.parts[:-1]]
        for images in _IMAGES:
            if images in folders:
                at = len(folders) - 1 - folders[::-1].index(images)
                places.insert(0, Path(*picture.parts[:at], "labels", *picture.parts[at + 1 :]))
        keys = (_key(place.with_name(stem)) for place in places for stem in stems(place.name))
        files = list(dict.fromkeys(self._files[key] for key in keys if key in self._files))
        if not files and self.anywhere:
            other = self.anywhere.of_stem(picture.stem, near=picture)
            files = [self.anywhere.folder / other] if other else []
        if report and len(files) > 1 and files[0].read_bytes() != files[1].read_bytes():
            report.suspect(
                "two files of labels of a picture, of which the first is read", f"{files[0]} and {files[1]}"
            )
        if report and files and self._used.get(files[0], picture) != picture:
            report.suspect("two pictures with one file of labels", f"{picture} and {self._used[files[0]]}")
        if files:
            self._used[files[0]] = picture
        return next(iter(files), None)

    def unused(self, near: Path | None = None) -> list[Path]:
        """Returns the label files that no picture has; with `near` only those in folders where others are used."""
        places = {path.parent for path in self._used}
        return [
            p for p in self._files.values() if p not in self._used and (near is None or p.parent in places)
        ]


def _key(path: Path) -> str:
    return plain(path.as_posix())


def _names(folder: Path, settings: Mapping[str, Any]) -> list[str]:
    if settings.get("names") not in (None, ""):
        return _of_settings(Path(settings["path of this file"]), settings)
    for path in _files(folder, lambda path: path.name in _LISTS):
        return [line.strip() for line in text_files.read(path) if line.strip()]
    fix = f"add {_SETTINGS[0]} or {_LISTS[0]} with the classes"
    raise UserError(f"{folder}: YOLO's labels without names; {fix}")


def _files(folder: Path, accepts: Callable[[Path], bool]) -> list[Path]:
    """Returns the accepted files of a folder, the nearest first; then its parent's, if its name is a split's."""
    inside = sorted(filter(accepts, folder_conversion.files(folder)), key=lambda path: len(path.parts))
    outside = folder.absolute().parent.iterdir() if split_names.of_folder(folder.absolute().name) else ()
    return [*inside, *filter(accepts, sorted(outside))]


def _settings(folder: Path) -> dict[str, Any]:
    """Returns the content of data.yaml and the like as texts, with "path of this file"; {} if there is none."""
    paths = _files(folder, lambda path: path.suffix in (".yaml", ".yml"))
    for path in sorted(paths, key=lambda path: path.name not in _SETTINGS):
        try:
            # All values are texts: YAML would make True of a class "yes".
            content = yaml.load("\n".join(text_files.read(path)), Loader=yaml.BaseLoader)
        except (yaml.YAMLError, RecursionError, ValueError, UserError) as error:
            if path.name not in _SETTINGS:
                continue  # Another program's, such as a deployment of several documents.
            if isinstance(error, UserError):
                raise
            raise UserError(f"{path}: no YAML ({' '.join(str(error).split())[:80]}); correct it") from error
        if isinstance(content, dict) and (path.name in _SETTINGS or "names" in content):
            return {**content, "path of this file": str(path)}
    return {}


def _of_settings(path: Path, content: Mapping[str, Any]) -> list[str]:
    names: Any = content["names"]
    if isinstance(names, dict):
        if set(names) != set(map(str, range(len(names)))):
            raise UserError(f"{path}: names has the numbers {list(names)[:5]}; number the classes from 0")
        names = [names[str(number)] for number in range(len(names))]
    if not isinstance(names, list):
        raise UserError(f"{path}: names is {str(names)[:40]!r}; write a list of the classes")
    if content.get("nc", str(len(names))) != str(len(names)):
        raise UserError(f"{path}: nc is {content['nc']}, names has {len(names)} classes; correct one of them")
    return [str(name) for name in names]


class _Reader:
    """Reads the labels of pictures; notes what cannot be used in the report."""

    def __init__(self, names: Sequence[str], labels: Labels, pose: bool, report: Report):
        self._names, self._labels, self._pose, self._report = names, labels, pose, report
        self._numbers: set[int] = set()

    def read(self, folder: Path) -> Source:
        """Returns the annotations of the pictures in a folder.

        Raises UserError if the classes are counted from 1, or the lines are poses without kpt_shape.
        """
        builder, report, numbers, poses = Builder(), self._report, set(), []
        for picture in folder_conversion.files(folder):
            if picture.suffix.lower() not in pictures.SUFFIXES:
                continue
            path = self._labels.of(picture, report)
            builder.image(picture.relative_to(folder).as_posix())
            if path is None:
                report.change(NO_LABELS, str(picture))
                report.lost.add(NO_LABELS)
                continue
            try:
                lines = text_files.read(path)
            except UserError as error:
                builder.images.pop()
                report.leave_out("its labels cannot be read", str(path), str(error))
                continue
            for number, line in enumerate(lines, 1):
                if line.strip():
                    place, words = f"{path}: line {number}", line.split()
                    numbers.add(words[0])
                    if len(words) == 6:
                        report.change("a fifth number of a box, taken for a prediction's score", place)
                    poses.append(_looks_like_pose(words))
                    try:
                        builder.add(*_parsed(words, self._names, self._pose), place)
                    except ValueError as error:
                        report.leave_out(str(error).partition(":")[0], place, f"{place}: {error}")
        for path in self._labels.unused(near=folder):
            if path.is_relative_to(folder) or not any(p.lower() == "labels" for p in path.parts):
                report.skip("a file of labels without a picture", str(path), lost=True)
        self._check(folder, numbers, poses)
        numbered = [str(name) for name in self._names]
        return Source(builder.content(numbered), folder, str(folder), fractions=True)

    def _check(self, folder: Path, numbers: set[str], poses: Sequence[bool]) -> None:
        count = len(self._names)
        if str(count) in numbers and "0" not in numbers and numbers <= {str(n) for n in range(1, count + 1)}:
            raise UserError(
                f"{folder}: the labels' classes are {min(numbers)} to {count}, of {count} names; YOLO counts from 0"
            )
        if not self._pose and len(poses) >= _LEAST_POSES and all(poses):
            fix = "write kpt_shape into data.yaml"
            raise UserError(f"{folder}: every line is a box with points inside, as of poses; {fix}")


_LEAST_POSES = 4  # Lines; one line alone may be a polygon of this form. This project's choice.


def _looks_like_pose(words: Sequence[str]) -> bool:
    """Whether a line's first four numbers are a box and all further points, x y or x y v, lie inside of it."""
    try:
        x, y, width, height, *points = map(float, words[1:])
    except ValueError:
        return False
    for step in (2, 3):
        if len(points) >= step and len(points) % step == 0:
            across, down = points[::step], points[1::step]
            inside = all(abs(p - x) <= width / 2 + _SLACK for p in across if p)
            if inside and all(abs(p - y) <= height / 2 + _SLACK for p in down if p):
                return True
    return False


def _parsed(
    words: Sequence[str], names: Sequence[str], pose: bool
) -> tuple[str, list[float], list[Sequence[float]] | None]:
    """Returns (class, box, [polygon] or None), as fractions of the picture; of a pose's line the box alone.

    Raises ValueError if the line is neither a box nor a polygon.
    """
    try:
        number, *values = (float(word) for word in words)
    except ValueError:
        raise ValueError(f"no numbers: {' '.join(words)[:60]}") from None
    if not all(map(math.isfinite, [number, *values])) or number != int(number):
        raise ValueError(f"no finite numbers after a whole one: {' '.join(words)[:60]}")
    if not 0 <= number < len(names):
        raise ValueError(f"a class outside of the {len(names)} names: {int(number)}")
    if pose:
        values = values[:4]
    if not all(-_SLACK <= value <= 1 + _SLACK for value in values):
        raise ValueError(f"coordinates outside of 0 to 1: {' '.join(words)[:60]}")
    name = names[int(number)]
    if len(values) in (4, 5):  # The fifth is the score of a prediction.
        x, y, width, height = values[:4]
        return name, [x - width / 2, y - height / 2, width, height], None
    if len(values) >= 6 and len(values) % 2 == 0:
        left, top = min(values[::2]), min(values[1::2])
        return name, [left, top, max(values[::2]) - left, max(values[1::2]) - top], [values]
    raise ValueError(f"neither a box nor a polygon: {len(values)} numbers after the class")
