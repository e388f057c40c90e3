"""Finds the annotations of a user's pictures and reads them as COCO's JSON, whatever program wrote them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.data import folder_conversion, given_splits, split_names
from common.data.folder_conversion import Options
from common.data.partners import Partners
from common.data.report import Report
from common.detection import annotation_formats, foreign_formats, labelme, voc, yolo
from common.detection.annotation_formats import Source
from common.errors import UserError
from common.untrusted import parsed

_HELP = "expected COCO's JSON (or VIA's, LabelMe's, CreateML's) beside the pictures, Pascal VOC's XML, or YOLO's labels"


def find(folder: Path, options: Options) -> tuple[Source, Source | None]:
    """Finds the training annotations and, if the folder has a split, the evaluation annotations.

    `options.report` receives a line about each annotation file that cannot be used. Raises UserError if there are no
    annotations, there are several and the user named none, or a file cannot be read.
    """
    report = options.report
    if folder.is_file():
        known = foreign_formats.of_file(folder)
        raise UserError(
            f"{folder}: {f'annotations of {known}' if known else 'a file; name the folder around it'}"
        )
    if options.annotations:
        held = _json(folder, [options.eval_annotations], report) if options.eval_annotations else None
        return _json(folder, [options.annotations], report), held
    first, second = given_splits.given_split(folder)
    if second:
        given_splits.report_unused(folder, (first, second), report, split_names.EVAL)
    if second and _jsons(first) and _jsons(second):
        return _json(first, _jsons(first), report), _json(second, _jsons(second), report)
    listed = _jsons(folder) + (_jsons(folder / "annotations") if (folder / "annotations").is_dir() else [])
    pair = _pair(listed, report)
    if pair:
        return _json(folder, [pair[0]], report), _json(folder, [pair[1]], report)
    if listed:
        return _json(folder, listed, report), None
    inside = folder_conversion.files(folder)
    known = foreign_formats.first([path for path in inside if path.suffix.lower() == ".xml"][:8])
    if known:
        raise UserError(known)
    if any(path.suffix.lower() == ".xml" for path in inside):
        if second:
            return voc.read(first, report), voc.read(second, report)
        return voc.read_with_lists(folder, report)
    if labelme.files(folder):
        parts = [part for part in (first, second) if part]
        sources = [labelme.read(part, labelme.files(part), report) for part in parts]
        return sources[0], sources[1] if second else None
    return yolo.find(folder, report, foreign_formats.first(inside) or f"{folder}: no annotations; {_HELP}")


def _jsons(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*.json") if p.is_file() and folder_conversion.visible(p.name))


def _pair(listed: Sequence[Path], report: Report) -> tuple[Path, Path] | None:
    """Returns a training and an evaluation split's files by the words of their names; None if they are not a pair."""
    named = [(path, split_names.word_of(path.stem)) for path in listed]
    train = [path for path, word in named if split_names.part_of(word) == 0]
    held = [path for path, word in named if split_names.part_of(word) == 1]
    chosen = [path for path in held if split_names.word_of(path.stem) not in split_names.TESTS] or held
    if len(train) != 1 or len(chosen) != 1:
        return None
    for path in listed:
        if path not in (train[0], chosen[0]):
            report.skip(f"beside {train[0].name} and {chosen[0].name}, which are read", str(path))
    return train[0], chosen[0]


def _json(folder: Path, paths: Sequence[Path], report: Report) -> Source:
    """Reads one annotation file of COCO, VIA or CreateML, or LabelMe's, of which every picture has one."""
    first = [_parsed(path) for path in paths[:2]]
    if any(map(labelme.is_labelme, first)):
        return labelme.read(folder, paths, report)
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths[:4])
        raise UserError(f"{folder}: several annotation files ({names}); name one with --annotations")
    path, content = paths[0], first[0]
    if annotation_formats.is_via(content):
        content = annotation_formats.via(content, path, report)
    elif annotation_formats.is_createml(content):
        content = annotation_formats.createml(content, path, report)
    known = foreign_formats.of_json(content)
    if known:
        raise UserError(f"{path}: annotations of {known}")
    if not isinstance(content, dict) or not isinstance(content.get("images"), list):
        raise UserError(f"{path}: images is no list; get a COCO file of object instances")
    for kind in ("annotations", "categories"):
        if not isinstance(content.get(kind), list):
            raise UserError(f"{path}: {kind} is no list; get a COCO file of object instances")
    return _with_pictures(folder, path, content, report)


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


def _with_pictures(folder: Path, path: Path, content: Mapping[str, Any], report: Report) -> Source:
    """Finds the file of each picture in the annotations `content` of `path`.

    Raises:
      UserError: no picture is there, or a name fits two.
    """
    images = [_named(image) for image in content["images"]]
    names = dict.fromkeys(
        i["file_name"] for i in images if isinstance(i, dict) and _is_name(i.get("file_name"))
    )
    partners = Partners(folder)
    files = {name: partners.find(name, path) for name in names}
    there = {name: file for name, file in files.items() if file}
    if not there:
        shown = f", such as {next(iter(names))}" if names else ""
        raise UserError(
            f"{path}: none of its pictures{shown} is in {folder}; name the folder that holds them"
        )
    bases = {file.removesuffix(name) for name, file in there.items()}
    # All names are relative to one folder: they stay.
    if len(bases) == 1 and bases.isdisjoint(there.values()):
        return Source({**content, "images": images}, folder / bases.pop(), str(path))
    for name, file in there.items():
        if not f"/{file}".endswith(f"/{name}"):
            report.change("a file name found in another spelling", f"{name} as {file}")
    for number, image in enumerate(images):
        if isinstance(image, dict) and _is_name(image.get("file_name")) and image["file_name"] in there:
            images[number] = {**image, "file_name": there[image["file_name"]]}
    return Source({**content, "images": images}, folder, str(path))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _named(image: Any) -> Any:
    """Returns an entry of "images" with a file name; LVIS has the picture's address instead."""
    address = image.get("coco_url") if isinstance(image, dict) else None
    if _is_name(address) and not image.get("file_name"):
        return {**image, "file_name": "/".join(address.split("/")[-2:])}
    return image
