"""Reads YOLO's annotations, a text file for each picture, as COCO's JSON."""

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from common.data import folder_conversion, given_splits, listed_splits, pictures, split_names, text_files
from common.data.partners import Partners, plain, stems
from common.data.report import Report
from common.detection import label_lines
from common.detection.annotation_formats import Builder, Source
from common.errors import UserError
from common.untrusted import parsed

_SETTINGS = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
_LISTS = ("classes.txt", "obj.names", "_darknet.labels")
_IMAGES = ("images", "jpegimages")  # Folders of pictures whose labels are in labels/ next to them.
NO_LABELS = "a picture without a file of labels, taken as one without objects"
NO_LABELS_BESIDE = (
    "a picture in a folder without any labels, not read; an empty file says that it has no objects"
)
_NOTES = "notes.json"  # Label Studio's list of classes beside classes.txt.
# The first line of a list of all pictures and their boxes, as of keras-yolo3: a.jpg x1,y1,x2,y2,class.
_IS_LIST = re.compile(r"\S.*\.(jpe?g|png|bmp)[\s,]+(-?[\d.]+,){3,}", re.I)
_HEADING = re.compile(r"#.*|(class(es|[ _]names?)|names|labels|categories)\s*[:=]?", re.I)  # No class's name.
_LOOKED_AT = 50  # Label files that show the program.


def find(folder: Path, report: Report, expected: Callable[[], str]) -> tuple[Source, Source | None]:
    """Reads a folder of pictures with text files next to them, or of images/ and labels/, or of splits with these.

    data.yaml, or lists such as train.txt and val.txt, divide the pictures; else folders such as train/ and val/. Raises
    UserError if there are no such annotations, with the text of `expected`, no file names the classes, or two classes
    have one name. `report` receives a line about each label that cannot be used.
    """
    settings = next(_all_settings(folder), {})
    first, second = given_splits.given_split(folder, pair=False)
    if second is None and (folder / "images").is_dir():  # images/train and labels/train.
        first, second = given_splits.given_split(folder / "images", pair=False, report=report)
    labels = Labels(folder)
    paths = _pictures(folder)
    if not any(map(labels.of, paths)):  # KITTI has image_2/ and label_2/.
        labels.anywhere = Partners(folder, (".txt",))
    if not any(map(labels.of, paths)):
        alone = labels.unused()
        if len(alone) > 1 and paths:
            if _IS_LIST.match(next(iter(text_files.read(alone[0])), "")):
                raise UserError(
                    f"{alone[0]}: a list of pictures and boxes, which is not read; convert it to COCO"
                )
            raise UserError(
                f"{folder}: {len(alone)} label files match no picture, such as {alone[0]} beside {paths[0].name}"
            )
        if alone and paths:
            label_lines.program_of(text_files.read(alone[0]), folder)
        raise UserError(expected())
    list(map(labels.of, paths))  # Those of a part that is not read are used too.
    for path in labels.unused(beside=True):
        report.skip("a file of labels without a picture", str(path), lost=True)
    program = label_lines.program_of(labels.some_lines(), folder)
    names = [] if program else _names(folder, settings, report)
    twice = next((name for number, name in enumerate(names) if name and name in names[:number]), None)
    if twice is not None:
        fix = "give each class its own name"
        raise UserError(f"{folder}: the list of classes has {twice[:80]!r} twice; {fix}")
    if settings.get("kpt_shape"):
        raise UserError(f"{settings['path of this file']}: {label_lines.POSES}")
    reader = _Reader(names, labels, report)
    lists = listed_splits.find(folder, settings, report)
    if lists:
        return reader.read(folder, program, lists[0] | lists[1]).divided(
            lists, report, "in no list of the split"
        )
    if second and not any(map(labels.of, _pictures(second))):
        report.suspect("a folder to evaluate on without labels, not read", f"{second}/")
        folder, second = first, None
    sources = [reader.read(part, program) for part in ([first, second] if second else [folder])]
    return sources[0], sources[1] if second else None


def labels_in(folder: Path) -> Path | None:
    """Returns a picture's file with a line of YOLO, five numbers or more; None without one. Others are captions."""
    labels = Labels(folder)
    for path in filter(None, map(labels.of, _pictures(folder)[:_LOOKED_AT])):
        if _is_label(path):
            return path
    return None


def _is_label(path: Path) -> bool:
    try:
        words = next(map(str.split, text_files.read(path)), [])
    except UserError:
        return False
    return len(words) > 4 and all(map(label_lines.NUMBER.fullmatch, words))


class Labels:
    """The label files below a folder: in labels/ where the picture is in images/, or next to their pictures.

    Attributes:
      anywhere: if not None, a label file may be in any folder.
    """

    def __init__(self, folder: Path):
        self._folder, self._files = folder, dict[str, Path]()
        self._used: dict[Path, Path] = {}
        self.anywhere: Partners | None = None
        for path in folder_conversion.files(folder):
            if path.suffix.lower() == ".txt" and path.name not in _LISTS:
                self._files.setdefault(plain(path.with_suffix("").as_posix()), path)

    def of(self, picture: Path, report: Report | None = None) -> Path | None:
        """Returns a picture's label file, or None; notes in the report another one, and another picture of the same."""
        places, folders = [picture], [name.lower() for name in picture.parts[:-1]]
        for images in _IMAGES:
            if images in folders:
                at = len(folders) - 1 - folders[::-1].index(images)
                places.insert(0, Path(*picture.parts[:at], "labels", *picture.parts[at + 1 :]))
        keys = (plain(place.with_name(stem).as_posix()) for place in places for stem in stems(place.name))
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
            self._used.setdefault(files[0], picture)
        return next(iter(files), None)

    def unused(self, beside: bool = False) -> list[Path]:
        """Returns the label files that no picture has; `beside`: only those in labels/ or where others are used."""
        places = {path.parent for path in self._used}
        alone = [path for path in self._files.values() if path not in self._used]
        inside = [path.relative_to(self._folder).parts[:-1] for path in alone]
        of_yolo = [any(part.lower() == "labels" for part in parts) for parts in inside]
        return [p for p, sure in zip(alone, of_yolo) if not beside or p.parent in places or sure]

    def some_lines(self) -> list[str]:
        """Returns lines of the files that pictures have; of unreadable files none."""
        lines = []
        for path in sorted(self._used)[:_LOOKED_AT]:
            with contextlib.suppress(UserError):
                lines += text_files.read(path)
        return lines


def _names(folder: Path, settings: Mapping[str, Any], report: Report) -> list[str]:
    """Returns the classes by their numbers, "" for an empty line, which keeps its number.

    Raises UserError if no file names the classes, or two files contradict each other; a data.yaml beside `settings`
    counts only in a folder of pictures or labels.
    """
    lists = {}
    for content in (settings, *_all_settings(folder, _SETTINGS)):
        if content.get("names") not in (None, ""):
            path = Path(content["path of this file"])
            if content is settings:
                lists[path] = _of_settings(path, content)
            elif path not in lists and _holds_pictures(path.parent):
                with contextlib.suppress(UserError):
                    lists[path] = _of_settings(path, content)
    for path in _files(folder, lambda path: path.name in (*_LISTS, _NOTES)):
        names = _of_notes(path) if path.name == _NOTES else _listed(path)
        if names:
            lists[path] = names
    if not lists:
        fix = f"add {_SETTINGS[0]} or {_LISTS[0]} with the classes"
        raise UserError(f"{folder}: YOLO's labels without names; {fix}")
    for path, names in lists.items():
        lists[path] = [text_files.normal(name) for name in names]
        while lists[path] and not lists[path][-1]:
            lists[path].pop()
    first, names = max(lists.items(), key=lambda one: len(one[1]))
    for path, others in lists.items():
        for number, (name, other) in enumerate(zip(names, others)):
            if name != other:
                fix = "keep the one that the labels were made with"
                raise UserError(f"{first} calls class {number} {name!r}, {path} calls it {other!r}; {fix}")
    report.choose("names of classes", ", ".join(filter(None, names))[:80], str(first))
    return names


def _holds_pictures(place: Path) -> bool:
    """Whether pictures, labels or a folder of these lie directly in a folder, or in those of a split in it."""
    parts = [path for path in folder_conversion.folders(place) if split_names.of_folder(path.name)]
    return any(map(_holds_pictures, parts)) or any(
        path.suffix.lower() in pictures.SUFFIXES
        or path.name.lower() in (*_IMAGES, "labels")
        or (path.suffix.lower() == ".txt" and _is_label(path))
        for path in place.iterdir()
    )


def _listed(path: Path) -> Sequence[str]:
    """Returns the classes of "1: dog", ... by their numbers 0, 1, ..., or else of lines; UserError for a heading."""
    lines = text_files.read(path)
    if lines and _HEADING.fullmatch(lines[0].strip()):
        raise UserError(f"{path}: {lines[0].strip()[:40]!r} seems to be a heading, not class 0; remove it")
    matches = [re.fullmatch(r"\s*(\d+)(?:\s*[:,]\s*|\s+)(\S.*)", line) for line in lines if line.strip()]
    names = {int(one[1]): one[2] for one in matches if one}
    return [names[number] for number in sorted(names)] if {*names} == {*range(len(matches))} else lines


def _of_notes(path: Path) -> list[str]:
    """Returns the classes of Label Studio's notes.json; [] if it has none."""
    try:
        entries = parsed(path.read_bytes())["categories"]
        numbered = {int(entry["id"]): str(entry["name"]) for entry in entries}
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [numbered.get(number, "") for number in range(max(numbered, default=-1) + 1)]


def _files(folder: Path, accepts: Callable[[Path], bool]) -> list[Path]:
    """Returns the accepted files of a folder, the nearest first.

    If the folder is named after a split, the accepted files of its parent follow.
    """
    inside = sorted(filter(accepts, folder_conversion.files(folder)), key=lambda path: len(path.parts))
    outside = folder.absolute().parent.iterdir() if split_names.of_folder(folder.absolute().name) else ()
    return [*inside, *filter(accepts, sorted(outside))]


def _all_settings(folder: Path, names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yields the contents of data.yaml and the like as texts, with "path of this file"; data.yaml first.

    `names` are the only names of such files, by default any.

    Raises UserError if a file cannot be read and none before it can.
    """
    used = False
    paths = _files(
        folder, lambda path: path.suffix in (".yaml", ".yml") and path.name in (names or [path.name])
    )
    for path in sorted(paths, key=lambda path: path.name not in _SETTINGS):
        try:
            # All values are texts: YAML would make True of a class "yes".
            content = yaml.load("\n".join(text_files.read(path)), Loader=yaml.BaseLoader)
        except (yaml.YAMLError, RecursionError, ValueError, UserError) as error:
            if used or path.name not in _SETTINGS:
                continue  # Another program's, such as a deployment of several documents.
            if isinstance(error, UserError):
                raise
            raise UserError(f"{path}: no YAML ({' '.join(str(error).split())[:80]}); correct it") from error
        if isinstance(content, dict) and (path.name in _SETTINGS or "names" in content):
            used = True
            yield {**content, "path of this file": str(path)}


def _of_settings(path: Path, content: Mapping[str, Any]) -> list[str]:
    names: Any = content["names"]
    if isinstance(names, dict):
        if set(names) != set(map(str, range(len(names)))):
            raise UserError(f"{path}: names has the numbers {list(names)[:5]}; number the classes from 0")
        names = [names[str(number)] for number in range(len(names))]
    if isinstance(names, list):
        names = [name.get("name", name) if isinstance(name, dict) else name for name in names]
    if not isinstance(names, list) or any(isinstance(name, list | dict) for name in names):
        raise UserError(f"{path}: names is {str(names)[:40]!r}; write a list of the classes")
    if content.get("nc", str(len(names))) != str(len(names)):
        raise UserError(f"{path}: nc is {content['nc']}, names has {len(names)} classes; correct one of them")
    return [str(name) for name in names]


class _Reader:
    """Reads the labels of pictures; notes what cannot be used in the report."""

    def __init__(self, names: Sequence[str], labels: Labels, report: Report):
        self._names, self._labels, self._report = names, labels, report

    def read(self, folder: Path, program: str = "", listed: Collection[str] = ()) -> Source:
        """Returns the annotations of the pictures in a folder.

        Raises UserError if the classes are counted from 1, or `label_lines.Layout` refuses the lines. `program` is one
        of `label_lines`, "" for YOLO. Pictures of lists, `listed`, count even in a folder without labels.
        """
        files, rows = self._lines(folder, listed), []
        for _, lines in files:
            rows += [(place, words) for place, words in lines or () if words]
        layout = None if program else label_lines.Layout(rows, str(folder), self._report)
        builder, report = Builder(), self._report
        for picture, lines in files:
            builder.image(picture.relative_to(folder).as_posix())
            if lines is None:
                report.change(NO_LABELS, str(picture))
                report.lost.add(NO_LABELS)
            of_yolo = layout and functools.partial(layout.read, names=self._names)
            builder.read(lines or (), of_yolo or label_lines.NAMED[program][1], report)
        self._check(folder, {words[0] for _, words in rows})
        return Source(builder.content(self._names), folder, str(folder), fractions=not program)

    def _lines(
        self, folder: Path, listed: Collection[str]
    ) -> list[tuple[Path, list[tuple[str, list[str]]] | None]]:
        """Returns (picture, (place, words) of each line, None without labels) of the pictures that can be used."""
        files = []
        for picture in _pictures(folder):
            path = self._labels.of(picture, self._report)
            try:
                lines = text_files.read(path) if path else ()
            except UserError as error:
                self._report.leave_out("its labels cannot be read", str(path), str(error))
                continue
            numbered = ((number, label_lines.words_of(line)) for number, line in enumerate(lines, 1))
            rows = [(f"{path}: line {number}", words) for number, words in numbered if words]
            files.append((picture, rows if path else None))
        places = {picture.parent for picture, rows in files if rows is not None}
        readable = []
        for picture, rows in files:
            if picture.parent in places or picture.relative_to(folder).as_posix() in listed:
                readable.append((picture, rows))
            else:
                self._report.suspect(NO_LABELS_BESIDE, str(picture))
        return readable

    def _check(self, folder: Path, numbers: set[str]) -> None:
        count = len(self._names)
        used = {float(number) for number in numbers if label_lines.NUMBER.fullmatch(number)}
        if label_lines.are_shifted(used, {*map(float, range(count))}, steps=[-1]):
            raise UserError(
                f"{folder}: the labels' classes are {min(used):g} to {max(used):g}, of {count} names; "
                "YOLO counts from 0"
            )


def _pictures(folder: Path) -> list[Path]:
    return [path for path in folder_conversion.files(folder) if path.suffix.lower() in pictures.SUFFIXES]
