"""Finds the annotations of a user's pictures and reads them as COCO's JSON, whatever program wrote them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.data import folder_conversion, given_splits
from common.data.folder_conversion import Options
from common.data.report import Report
from common.detection import annotation_formats, voc, yolo
from common.detection.annotation_formats import Source
from common.errors import UserError
from common.untrusted import parsed, stays_inside

_HELP = (
    "expected COCO's JSON (or VIA's, LabelMe's) beside the pictures, Pascal VOC's XML, or YOLO's text files"
)


def find(folder: Path, options: Options) -> tuple[Source, Source | None]:
    """Finds the training annotations and, if the folder has a split, the evaluation annotations.

    `options.report` receives a line about each annotation file that cannot be used.

    Raises:
      UserError: there are no annotations, there are several and the user named none, or a file cannot be read.
    """
    report = options.report
    if options.annotations:
        held = _json(folder, [options.eval_annotations], report) if options.eval_annotations else None
        return _json(folder, [options.annotations], report), held
    first, second = folder_conversion.given_split(folder)
    if second:
        given_splits.report_unused(folder, (first, second), report, folder_conversion.EVAL)
    if second and _jsons(first) and _jsons(second):
        return _json(first, _jsons(first), report), _json(second, _jsons(second), report)
    found = _jsons(folder) + (_jsons(folder / "annotations") if (folder / "annotations").is_dir() else [])
    by_name = {split: [p for p in found if split in p.stem.lower()] for split in ("train", "val")}
    if len(by_name["train"]) == len(by_name["val"]) == 1:
        return _json(folder, by_name["train"], report), _json(folder, by_name["val"], report)
    if found:
        return _json(folder, found, report), None
    if any(path.suffix.lower() == ".xml" for path in folder_conversion.files(folder)):
        if second:
            return voc.read(first, report), voc.read(second, report)
        return voc.read_with_lists(folder, report)
    inside = annotation_formats.labelme_files(folder)
    if inside:
        return annotation_formats.labelme(folder, inside, report), None
    return yolo.find(folder, report, _HELP)


def _jsons(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*.json") if p.is_file() and folder_conversion.visible(p.name))


def _json(folder: Path, found: Sequence[Path], report: Report) -> Source:
    """Reads one annotation file of COCO or VIA, or LabelMe's, of which every picture has one."""
    contents = [_parsed(path) for path in found[:2]]
    if annotation_formats.is_labelme(contents[0]):
        return annotation_formats.labelme(folder, found, report)
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:4])
        raise UserError(f"{folder}: several annotation files ({names}); name one with --annotations")
    path, content = found[0], contents[0]
    if annotation_formats.is_via(content):
        content = annotation_formats.via(content, path, report)
    if not isinstance(content, dict) or not isinstance(content.get("images"), list):
        raise UserError(f"{path}: images is no list; get a COCO file of object instances")
    for kind in ("annotations", "categories"):
        if not isinstance(content.get(kind), list):
            raise UserError(f"{path}: {kind} is no list; get a COCO file of object instances")
    return Source(content, _pictures_of(folder, path, content["images"]), str(path))


def _parsed(path: Path) -> Any:
    if os.path.exists(path) and not os.path.isfile(path):  # Opening a pipe would block forever.
        raise UserError(f"{path}: no regular file; name another")
    try:
        return parsed(path.read_bytes())
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; correct the path or name another file") from error
    except ValueError as error:
        raise UserError(f"{path}: no JSON file ({error}); correct it or name another") from error


def _pictures_of(folder: Path, path: Path, images: Sequence[Any]) -> Path:
    """Returns the folder that contains the pictures listed in the file."""
    given = [
        str(image["file_name"]) for image in images if isinstance(image, dict) and image.get("file_name")
    ]
    names = [name for name in given if stays_inside(name)][:20]
    inside = [folder, folder / "images", path.parent, path.parent.parent / "images"]
    inside += folder_conversion.folders(folder)
    inside += folder_conversion.folders(folder / "images") if (folder / "images").is_dir() else []
    for place in inside:
        if any(os.path.isfile(place / name) for name in names):
            return place
    others = annotation_formats.Names(folder)
    if any(others.find(name) for name in given[:20]):
        return folder
    shown = f", such as {names[0]}" if names else ""
    raise UserError(f"{path}: none of its pictures{shown} is in {folder}; name the folder that holds them")
