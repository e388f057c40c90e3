"""Reads masks as pictures, of objects or of classes, as COCO's JSON."""

import collections
import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from common.data import folder_conversion, near_copies, pictures, split_names, text_files
from common.data.partners import LOSSLESS, MASK_ENDING, MASK_FOLDERS, stems
from common.data.report import Report
from common.detection.annotation_formats import Builder, Source, masked
from common.errors import UserError

_OBJECTS = re.compile("object|instance|pedmask")  # In a folder's name: values number objects, not classes.
_LISTS = ("classes.txt", "labels.txt", "labelmap.txt", "class_names.txt")
_CVAT = re.compile(r"(.*?):(\d{1,3},\d{1,3},\d{1,3})(:.*)?")  # NAME:RED,GREEN,BLUE:..., of labelmap.txt.
_NUMBERED = re.compile(r"(\d{1,6})[: ]\s*(\S.*)")
_VOID = 255  # Beside other values: the border of an object, as in Pascal VOC, or no class.
_COLOR = np.array([1 << 16, 1 << 8, 1])  # Weights of red, green and blue in one number.
_COLORED = 1 << 24  # Added to it, so that no color has the number of a gray.
_FEW = 32  # Values of a picture that seems to be a mask. This project's choice.
_LOOKED_AT = 20  # Pictures decoded to see whether they seem to be masks.
_MOST_VALUES = 256  # Of a mask; more are the shades of a smoothed or a lossy picture.
BACKGROUND, ONE_CLASS = {"background", "_background_", "__background__", "bg"}, "object"


def find(folder: Path, report: Report) -> Source | None:
    """Reads the masks of the pictures in a folder; None if it has none.

    A mask is in a folder of MASK_FOLDERS and has its picture's name, or a folder images/ beside that one holds the only
    picture of all its masks. 0 is the background. Masks of one value show one class. Otherwise values are numbers of
    objects if the folder's name says so, and classes if a list names them. Each piece of a class is an object, unless
    a mask of SegmentationObject beside the one of SegmentationClass tells its objects.

    Raises UserError if nothing says what the values are, the list of classes does not fit them, or no mask can be read.
    """
    files = [path for path in folder_conversion.files(folder) if path.suffix.lower() in pictures.SUFFIXES]
    inside = {path: _place(path, folder) for path in files}
    masks = [path for path in files if inside[path] and path.suffix.lower() in LOSSLESS]
    if not masks and any(inside.values()):
        lossy = next(path for path in files if inside[path])
        raise UserError(f"{lossy}: a mask of a lossy format, which changes its values; save masks as PNG")
    lists = [path for path in folder_conversion.files(folder) if path.name.lower() in _LISTS]
    readable, beside = _pairs(masks, bool(lists))
    others = [path for path in files if not inside[path] and "visualization" not in path.parent.name.lower()]
    by_picture = _partners(others, readable)
    if not by_picture:
        return None
    for path in readable:
        if not any(path in of_picture for of_picture in by_picture.values()):
            report.skip("a mask without a picture", str(path), lost=True)
    values, numbers, broken = {}, {}, []
    for picture, of_picture in by_picture.items():
        for path in of_picture:
            try:
                values[path] = _values(path)
                if path in beside:
                    numbers[path] = _values(beside[path])
                    if numbers[path].shape != values[path].shape:
                        raise ValueError(f"its size is not that of {beside[path]}")
            except (OSError, ValueError) as error:
                report.leave_out("a mask that cannot be read", str(path), f"{path}: {error}")
                broken.append(picture)
    if not values:
        raise UserError(f"{folder}: none of its {len(masks)} masks can be read; the first: {report.lines[0]}")
    names, numbered, odd = _meaning(folder, values, lists, report)
    if numbered or numbers:
        report.choose("objects in masks", "each value of the masks of objects", "the folders' names")
    around = [path for path, mask in values.items() if mask[[0, 0, -1, -1], [0, -1, 0, -1]].all()]
    if len({*names.values()}) == 1 and 2 * len(around) > len(values):
        report.suspect(
            "a mask whose object has all four corners; 0 is the background", str(around[0]), len(around)
        )
    # masks/cat/0.png and masks/dog/0.png, but not folders that pictures have too, such as masks/day/.
    folders = {path.parent.name for path in values}
    others = {name.lower() for path in by_picture for name in (path.parent.name, path.stem)} | MASK_FOLDERS
    is_class = all(one.lower() not in others and not split_names.names_no_class(one) for one in folders)
    if by_folder := {*names.values()} == {ONE_CLASS} and len(folders) > 1 and is_class:
        report.choose("classes of masks", ", ".join(sorted(folders))[:80], "the masks' folders")
    builder = Builder()
    for picture, of_picture in by_picture.items():
        for path in sorted(odd.keys() & of_picture):
            report.leave_out(odd[path], str(path))
            report.suspect(f"{odd[path]}; left out with its picture", str(path))
            broken.append(picture)
        if picture in broken:
            continue
        builder.image(picture.relative_to(folder).as_posix(), *values[of_picture[0]].shape[::-1])
        for path in of_picture:
            of_path = dict.fromkeys(names, text_files.normal(path.parent.name)) if by_folder else names
            shapes = _objects(path, values[path], of_path, (values if numbered else numbers).get(path))
            builder.read(shapes, lambda item: masked(*item), report)
    aside = [picture.relative_to(folder).as_posix() for picture in broken]
    return Source(builder.content(), folder, str(folder), aside=aside)


def seem(files: Sequence[Path]) -> str:
    """Returns the error for a folder whose pictures seem to have masks, but not as `find` reads them; else ""."""
    by_stem: dict[str, list[Path]] = collections.defaultdict(list)
    for path in files if len(files) > 1 else ():
        if path.suffix.lower() in pictures.SUFFIXES:
            by_stem[MASK_ENDING.sub("", stems(path.name)[-1].removeprefix("mask_"))].append(path)
    alike = itertools.chain.from_iterable(paths for paths in by_stem.values() if len(paths) > 1)
    lossless = (path for path in alike if path.suffix.lower() in LOSSLESS)
    for path in itertools.islice(lossless, _LOOKED_AT):
        with contextlib.suppress(OSError, ValueError, Image.DecompressionBombError):
            if len(np.unique(_values(path))) <= _FEW:
                fix = "put the masks alone, with their pictures' names, into masks/"
                return f"{path}: seems to be a mask, in a place or with a name that is not read; {fix}"
    return ""


def place_of(files: Sequence[Path], folder: Path) -> str:
    """Returns a folder of masks among the files, "" without one."""
    return next((str(path.parent) for path in files if _place(path, folder)), "")


def _place(path: Path, folder: Path) -> str:
    """Returns the folder of masks in which a file is, in lower case; "" if it is in none."""
    return next(
        (name for name in map(str.lower, path.relative_to(folder).parts[:-1]) if name in MASK_FOLDERS), ""
    )


def _pairs(masks: Sequence[Path], listed: bool) -> tuple[Sequence[Path], dict[Path, Path]]:
    """Returns the masks to read, of one kind if a folder of each has them, and {mask of classes: mask of objects}."""
    kinds: tuple[dict, dict] = {}, {}
    for path in masks:
        kinds[bool(_OBJECTS.search(path.parent.name.lower()))][path.parent.parent, path.stem] = path
    read, other = kinds if listed else kinds[::-1]  # Without a list, nothing names classes.
    pairs = {read[key]: other[key] for key in read if key in other}
    return list(read.values()) if pairs else masks, pairs if listed else {}


def _partners(files: Sequence[Path], masks: Sequence[Path]) -> dict[Path, list[Path]]:
    """Returns {picture: its masks}, in the order of the names."""
    by_stem, near, by_picture = {}, {}, {}
    for path in files:
        by_stem.setdefault(stems(path.name)[-1], []).append(path)
        near.setdefault(path.parent.parent, []).append(path)
    for mask in masks:
        stem = stems(mask.name)[-1]
        fitting = (
            by_stem.get(stem) or by_stem.get(MASK_ENDING.sub("", stem)) or near.get(mask.parent.parent, [])
        )
        shared = [len({*path.parts} & {*mask.parts}) for path in fitting]
        nearest = [path for path, count in zip(fitting, shared) if count == max(shared)]
        if len(nearest) == 1:
            by_picture.setdefault(nearest[0], []).append(mask)
    return dict(sorted(by_picture.items()))


def _values(path: Path) -> np.ndarray:
    """Returns a mask's values [height, width]; colors become one number each. Raises ValueError for smooth shades."""
    with Image.open(path, formats=pictures.FORMATS) as image:
        gray = image.mode in ("L", "P", "I", "I;16", "1")
        values = np.asarray(image if gray else image.convert("RGB")).astype(int)
    values = values if gray else _as_one(values)
    if len(np.unique(values)) > _MOST_VALUES:
        raise ValueError("a mask of smooth shades; save it as PNG, without smoothing")
    return values.astype(np.int32)


def _as_one(colors: np.ndarray) -> np.ndarray:
    """Returns one number for each color [..., 3]: a gray's own."""
    gray = (colors == colors[..., :1]).all(-1)
    return np.where(gray, colors[..., 0], colors @ _COLOR + _COLORED)


def _text_of(value: int) -> str:
    """Returns a value as a list writes it: a number, or red, green and blue."""
    return ",".join(str(value >> bits & 255) for bits in (16, 8, 0)) if value & _COLORED else str(value)


def _meaning(
    folder: Path, values: Mapping[Path, np.ndarray], lists: Sequence[Path], report: Report
) -> tuple[Mapping[int, str], bool, Mapping[Path, str]]:
    """Returns ({value: class}, whether values are numbers of objects, {mask to leave out: why})."""
    inside = {path: set(np.unique(mask).tolist()) - {0} for path, mask in values.items()}
    numbers = [bool(_OBJECTS.search(path.parent.name.lower())) for path in values]
    objects = any(numbers) if lists else all(numbers)  # A list never names objects' numbers.
    names = _names(lists[0]) if lists else {}
    listed = set() if objects else set(names)
    void = [path for path, codes in inside.items() if _VOID in codes - listed and max(codes) < _COLORED]
    mixed = [path for path in void if len(inside[path]) > 1]
    others = set().union(*(inside[path] for path in mixed)) - {_VOID}
    # A border lies beside objects: in most masks with 255, or beside the list's values or the first numbers.
    border = mixed and (2 * len(mixed) > len(void) or others <= (listed or set(range(1, len(others) + 1))))
    if border:
        report.change(f"the value {_VOID} of masks, read as a border", str(mixed[0]))
        odd = {path: f"a mask of nothing but {_VOID}, a border" for path in void if path not in mixed}
    else:
        odd = dict.fromkeys(mixed, f"a mask with values beside {_VOID}, unlike most")
    every = {value for path in inside.keys() - odd.keys() for value in inside[path]}
    every -= {_VOID} if border else set()
    report.choose("objects in masks", "each connected piece of a class", "the converter")
    if lists and every <= listed:
        report.choose("classes of masks", ", ".join(dict.fromkeys(names.values()))[:80], str(lists[0]))
        return {value: names[value] for value in every}, False, odd
    classes = {name for name in names.values() if name.casefold() not in BACKGROUND} or {ONE_CLASS}
    if (objects or len(every) == 1) and len(classes) == 1:
        return dict.fromkeys(every, *classes), len(every) > 1, odd
    if lists and objects:
        raise UserError(f"{lists[0]}: names no class of numbers of objects; give SegmentationClass/ too")
    if lists:
        fix = "write a line for each value from 0 on, background first"
        raise UserError(
            f"{lists[0]}: names no class {_text_of(max(every - listed))}, a value of the masks; {fix}"
        )
    fix = f"name the classes in {_LISTS[0]}, background first, or call the folder instances/ if they number objects"
    examples = ", ".join(map(_text_of, sorted(every)[:5]))
    raise UserError(f"{folder}: nothing says what the values [{examples}] of the masks are; {fix}")


def _names(path: Path) -> dict[int, str]:
    """Returns {value: class} of a list: a class a line, each with its number or none, or CVAT's, with colors too."""
    lines = [line for line in text_files.read(path) if not line.startswith("# label:")]
    colored = [_CVAT.fullmatch(line) for line in lines]
    names = [text_files.normal(one[1] if one else line) for line, one in zip(lines, colored)]
    numbered = {int(one[1]): one[2] for one in map(_NUMBERED.fullmatch, names) if one and not any(colored)}
    if len({*numbered.values()}) == len([*filter(None, names)]) and list(numbered) == sorted(numbered):
        return numbered
    first = 0 if names and names[0].casefold() in BACKGROUND else 1
    colors = {
        int(_as_one(np.array(one[2].split(","), int))): name for name, one in zip(names, colored) if one
    }
    return {**{value: name for value, name in enumerate(names, first) if name}, **colors}


def _pieces(values: np.ndarray) -> np.ndarray:
    """Returns the number of the connected piece, of one value, to which each pixel belongs [height, width]."""
    starts = np.ones(values.shape, bool)
    starts[:, 1:] = values[:, 1:] != values[:, :-1]
    runs = np.cumsum(starts).reshape(values.shape) - 1
    links = []
    of_run = values.ravel()[np.flatnonzero(starts.ravel())]
    pairs = (runs[1:], runs[:-1]), (runs[1:, 1:], runs[:-1, :-1]), (runs[1:, :-1], runs[:-1, 1:])
    for below, above in pairs:
        shapes = np.stack([below.ravel(), above.ravel()], 1)
        links += np.unique(shapes[of_run[shapes[:, 0]] == of_run[shapes[:, 1]]], axis=0).tolist()
    return np.array(near_copies.joined(runs[-1, -1] + 1, links))[runs]


def _objects(
    path: Path, values: np.ndarray, names: Mapping[int, str], numbers: np.ndarray | None
) -> Iterator[tuple[str, tuple[str, np.ndarray]]]:
    """Yields (place, (class, mask)) of each object: of a number in `numbers`, or of each piece of a class."""
    pieces = _pieces(values) if numbers is None else values.astype(np.int64) << 32 | numbers
    for number in np.unique(pieces[values > 0]).tolist():
        mask = pieces == number
        value = int(values[mask][0])
        if value in names:
            yield f"{path}: value {_text_of(value)}", (names[value], mask)
