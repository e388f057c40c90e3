"""Reads masks as pictures, of objects or of classes, as COCO's JSON."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from common.data import folder_conversion, near_copies, pictures, text_files
from common.data.partners import stems
from common.data.report import Report
from common.detection.annotation_formats import Builder, Source, masked
from common.errors import UserError

# Folders of masks, in lower case: common names, Pascal VOC's and Penn-Fudan's.
FOLDERS = {"masks", "mask", "segmentationobject", "segmentationclass", "pedmasks", "gt_masks", "instances"}
_LOSSLESS = {".png", ".bmp", ".tif", ".tiff", ".gif"}
_ENDING = re.compile(r"[-_](masks?|seg|gt|label|instances?|gtfine_instanceids|segmentation)$")
_OBJECTS = re.compile(
    "object|instance|pedmask"
)  # In a folder's name: a value is an object's number, not a class.
_LISTS = ("classes.txt", "labels.txt", "labelmap.txt", "class_names.txt")
_VOID = 255  # Beside other values: the border of an object, as in Pascal VOC, or no class.
_MOST_VALUES = 256  # Of a mask; more are the shades of a smoothed or a lossy picture.
BACKGROUND, ONE_CLASS = {"background", "_background_", "__background__", "bg"}, "object"


def find(folder: Path, report: Report) -> Source | None:
    """Reads the masks of the pictures in a folder; None if it has none.

    A mask is in a folder of FOLDERS and has its picture's name, or a folder images/ beside that one holds the only
    picture of all its masks. 0 is the background. Masks of one value show one class. Otherwise values are classes if a
    list names them, and numbers of objects if the folder's name says so. Each piece of a class is an object.

    Raises UserError if nothing says what the values are, or the list of classes does not fit them.
    """
    files = [path for path in folder_conversion.files(folder) if path.suffix.lower() in pictures.SUFFIXES]
    inside = {path: _place(path, folder) for path in files}
    masks = [path for path in files if inside[path] and path.suffix.lower() in _LOSSLESS]
    if not masks and any(inside.values()):
        lossy = next(path for path in files if inside[path])
        raise UserError(f"{lossy}: a mask of a lossy format, which changes its values; save masks as PNG")
    found = _partners([path for path in files if not inside[path]], masks)
    if not found:
        return None
    for path in masks:
        if not any(path in of_picture for of_picture in found.values()):
            report.skip("a mask without a picture", str(path), lost=True)
    values, broken = {}, []
    for picture, of_picture in found.items():
        for path in of_picture:
            try:
                values[path] = _values(path)
            except (OSError, ValueError) as error:
                report.leave_out("a mask that cannot be read", str(path), f"{path}: {error}")
                broken.append(picture)
    if not values:
        raise UserError(f"{folder}: none of its {len(masks)} masks can be read; the first: {report.lines[0]}")
    names, numbered = _meaning(folder, values, report)
    builder = Builder()
    for picture, of_picture in found.items():
        if picture in broken:
            continue
        size = values[of_picture[0]].shape
        builder.image(picture.relative_to(folder).as_posix(), size[1], size[0])
        for path in of_picture:
            found_objects = _objects(path, values[path], names, numbered)
            builder.read(found_objects, lambda item: masked(*item), report)
    aside = [picture.relative_to(folder).as_posix() for picture in broken]
    return Source(builder.content(), folder, str(folder), aside=aside)


def _place(path: Path, folder: Path) -> str:
    """Returns the folder of masks in which a file is, in lower case; "" if it is in none."""
    return next((name for name in map(str.lower, path.relative_to(folder).parts[:-1]) if name in FOLDERS), "")


def _partners(files: Sequence[Path], masks: Sequence[Path]) -> dict[Path, list[Path]]:
    """Returns {picture: its masks}, in the order of the names."""
    objects = any(_OBJECTS.search(path.parent.name.lower()) for path in masks)
    by_stem, beside, found = {}, {}, {}
    for path in files:
        by_stem.setdefault(stems(path.name)[-1], []).append(path)
        beside.setdefault(path.parent.parent, []).append(path)
    for mask in masks:
        if objects and mask.parent.name.lower() == "segmentationclass":
            continue  # Pascal VOC has the numbers of objects beside.
        stem = stems(mask.name)[-1]
        fitting = (
            by_stem.get(stem) or by_stem.get(_ENDING.sub("", stem)) or beside.get(mask.parent.parent, [])
        )
        shared = [len({*path.parts} & {*mask.parts}) for path in fitting]
        nearest = [path for path, count in zip(fitting, shared) if count == max(shared)]
        if len(nearest) == 1:
            found.setdefault(nearest[0], []).append(mask)
    return dict(sorted(found.items()))


def _values(path: Path) -> np.ndarray:
    """Returns a mask's values [height, width]; colors become one number each. Raises ValueError for smooth shades."""
    with Image.open(path, formats=pictures.FORMATS) as image:
        values = np.asarray(
            image if image.mode in ("L", "P", "I", "I;16", "1") else image.convert("RGB")
        ).astype(int)
    if values.ndim == 3:
        gray = (values == values[..., :1]).all()
        values = values[..., 0] if gray else values @ (1 << 16, 1 << 8, 1)
    if len(np.unique(values)) > _MOST_VALUES:
        raise ValueError("a mask of smooth shades; save it as PNG, without smoothing")
    return values


def _meaning(
    folder: Path, values: Mapping[Path, np.ndarray], report: Report
) -> tuple[Mapping[int, str], bool]:
    """Returns ({value: class}, whether values are numbers of objects, all of one class)."""
    inside = {path: set(np.unique(mask).tolist()) - {0} for path, mask in values.items()}
    every = set().union(*inside.values())
    if len(every) > 1 and _VOID in every:
        report.change("the value 255 of masks, read as a border", str(next(iter(values))))
        every.discard(_VOID)
    report.choose("objects in masks", "each connected piece of a class", "the converter")
    if len(every) == 1:
        return dict.fromkeys(every, ONE_CLASS), False
    lists = [path for path in folder_conversion.files(folder) if path.name.lower() in _LISTS]
    if lists:
        names = [text_files.normal(name) for name in text_files.read(lists[0])]
        names = names if names and names[0].casefold() in BACKGROUND else ["", *names]
        if max(every) >= len(names):
            fix = "write a line for each value from 0 on, background first"
            raise UserError(f"{lists[0]}: names no class {max(every)}, a value of the masks; {fix}")
        report.choose("classes of masks", ", ".join(filter(None, names))[:80], str(lists[0]))
        return {value: names[value] for value in every}, False
    if all(_OBJECTS.search(path.parent.name.lower()) for path in values):
        report.choose("objects in masks", "each value, all of one class", "the folder's name")
        return dict.fromkeys(every, ONE_CLASS), True
    fix = f"name the classes in {_LISTS[0]}, background first, or call the folder instances/ if they number objects"
    raise UserError(f"{folder}: nothing says what the values {sorted(every)[:5]} of the masks are; {fix}")


def _pieces(values: np.ndarray) -> np.ndarray:
    """Returns the number of the connected piece, of one value, to which each pixel belongs [height, width]."""
    starts = np.ones(values.shape, bool)
    starts[:, 1:] = values[:, 1:] != values[:, :-1]
    runs = np.cumsum(starts).reshape(values.shape) - 1
    links = []
    for below, above in (
        (runs[1:], runs[:-1]),
        (runs[1:, 1:], runs[:-1, :-1]),
        (runs[1:, :-1], runs[:-1, 1:]),
    ):
        shapes = np.stack([below.ravel(), above.ravel()], 1)
        of_run = values.ravel()[np.flatnonzero(starts.ravel())]
        links += np.unique(shapes[of_run[shapes[:, 0]] == of_run[shapes[:, 1]]], axis=0).tolist()
    return np.array(near_copies.joined(runs[-1, -1] + 1, links))[runs]


def _objects(
    path: Path, values: np.ndarray, names: Mapping[int, str], numbered: bool
) -> Iterator[tuple[str, tuple[str, np.ndarray]]]:
    """Yields (place, (class, mask)) of each object: of a value, or of each piece of a class."""
    pieces = values if numbered else _pieces(values)
    for number in np.unique(pieces[values > 0]).tolist():
        mask = pieces == number
        value = int(values[mask][0])
        if value in names:
            yield f"{path}: {'value' if numbered else 'a piece of'} {value}", (names[value], mask)
