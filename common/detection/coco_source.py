"""Finds the annotations of a user's pictures and reads them as COCO's JSON, whatever program wrote them."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.data import folder_conversion, given_splits, listed_splits, split_names
from common.data.folder_conversion import Options
from common.data.partners import Partners, stems
from common.data.report import Report
from common.detection import formats, mask_files, picture_files, sequences, yolo
from common.detection.annotation_formats import Source
from common.errors import UserError
from common.untrusted import parsed

_LISTS = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".manifest", ".odgt", ".mat")
_HELP = "expected COCO's JSON (or LabelMe's) beside the pictures, Pascal VOC's XML, or YOLO's labels"

# Files of other tasks that COCO has beside its instances.
_OTHER_TASKS = re.compile("caption|keypoint|panoptic|stuff|image_info")


def find(folder: Path, options: Options) -> tuple[Source, Source | None]:
    """Finds the training annotations and, if the folder has a split, the evaluation annotations.

    `options.report` receives a line about each annotation file that cannot be used. Raises UserError if there are no
    annotations, there are several and the user named none, or a file cannot be read.
    """
    report = options.report
    if folder.is_file():
        program = formats.of_file(folder)
        raise UserError(
            f"{folder}: {f'annotations of {program}' if program else 'a file; name the folder around it'}"
        )
    folder_conversion.files(folder, findings := Report())
    if folder_conversion.DENIED in findings.left_out:
        raise UserError(
            f"{findings.left_out[folder_conversion.DENIED].example}: {folder_conversion.DENIED}; give yourself that"
        )
    if options.annotations:
        files = [path for path in (options.annotations, options.eval_annotations) if path]
        sources = [_json(folder, {path: _parsed(path)}, report) for path in files]
    else:
        sources = [source for source in _sources(folder, report) if source]
    return tuple(sources) if len(sources) > 1 else _divided(sources[0], folder, report)


def _divided(source: Source, folder: Path, report: Report) -> tuple[Source, Source | None]:
    """Divides annotations by lists, by COCO's field `split`, or by folders in the names; else (source, None).

    `report` receives what in the user's folder looks like a split but cannot be honored.
    """
    images = [image for image in source.content["images"] if _name_of(image)]
    names = list(map(_name_of, images))
    lists = None if source.fractions else listed_splits.find(folder, {}, report)  # YOLO's are read already.
    if lists:
        listed = [{os.path.relpath(folder / name, source.folder) for name in part} for part in lists]
        for name in sorted(set().union(*listed).difference(names)):
            report.leave_out("named in a list, but no annotation is there", name)
        return source.divided(listed, report, "in no list of the split")
    for kind, words in (
        ("field split", [str(image.get("split") or "").lower() for image in images]),
        ("folders", [split_names.of_path(os.path.relpath(source.folder / name, folder)) for name in names]),
    ):
        present = {split_names.part_of(word) for word in words}
        if present == {0, 1}:
            listed = given_splits.listed_split(folder, list(zip(names, words)), report)
            return source.divided(listed, report)
        if {0, 1} < present or kind == "field split" and any(words):
            report.suspect(
                f"{kind}: a split that not every picture has in both parts, not taken", str(folder)
            )
    return source, None


def _sources(folder: Path, report: Report) -> Sequence[Source | None]:
    """Returns the sources that the folder's annotation files and folders show, without what else may divide them."""
    first, second = given_splits.given_split(folder, pair=False, report=report)
    parts = [first, second] if second else [folder]
    if second:
        given_splits.report_unused(folder, parts, report, split_names.EVAL)
        pairs = [(part, _annotations(part, report)) for part in parts]
        if all(contents for _, contents in pairs):
            return [_json(part, contents, report) for part, contents in pairs]
    contents = _annotations(folder, report)
    pair = _pair(contents, folder, report)
    inside = folder_conversion.files(folder)
    xml = [path for path in inside if path.suffix.lower() == ".xml"]
    if contents:
        _suspect_others([next(filter(picture_files.is_voc, xml), None), yolo.labels_in(folder)], report)
    if pair:
        return [_json(folder, {path: contents[path]}, report) for path in pair]
    if contents:
        return [_json(folder, contents, report)]
    foreign = formats.first(xml[:8])
    if foreign:
        raise UserError(foreign)
    labels = yolo.labels_in(folder)
    if xml and (any(map(picture_files.is_voc, xml)) or not yolo.Labels(folder).unused()):
        _suspect_others([labels], report)
        return [picture_files.voc(part, report) for part in parts]
    for read in () if labels else (mask_files.find, sequences.find):
        sources = [read(part, report) for part in parts]
        if sources[0]:
            if None in sources:
                report.suspect("a folder to evaluate on without labels, not read", f"{second}/")
            return sources
    sequences.refuse_detected(inside)
    other = next((path for path in inside if path.suffix.lower() in _LISTS), None)
    what = f"{other}: not in a form that is read" if other else f"{folder}: no annotations"
    # Masks are looked for only without labels, as that decodes pictures.
    return yolo.find(
        folder, report, lambda: formats.first(inside) or mask_files.seem(inside) or f"{what}; {_HELP}"
    )


def _suspect_others(paths: Sequence[Path | None], report: Report) -> None:
    for path in filter(None, paths):
        report.suspect("annotations in another format beside those that are read", str(path))


def _annotations(folder: Path, report: Report) -> dict[Path, Any]:
    """Returns {JSON file: its content} of those with annotations, in the folder and annotations/, or else at any depth.

    Those at a depth count only without XML of Pascal VOC and labels of YOLO; COCO's captions and the like only without
    its instances. Raises UserError if the only JSON file is none, or the files are another program's.
    """
    files = folder_conversion.files(folder)
    inside = [path for path in files if path.suffix.lower() == ".json"]
    near = [path for path in inside if path.parent in (folder, folder / "annotations")]
    if inside and not near:
        xml = any(picture_files.is_voc(path) for path in files if path.suffix.lower() == ".xml")
        near = [] if xml or yolo.labels_in(folder) else inside
    instances = any("instances" in path.stem.lower() for path in near)
    paths = [path for path in near if not (instances and _OTHER_TASKS.search(path.stem.lower()))]
    contents: dict[Path, Any] = {}
    for path in paths:
        try:
            contents[path] = _parsed(path)
        except UserError as error:
            if len(paths) == 1:
                raise
            report.leave_out("no JSON file", str(path), str(error))
            continue
        if formats.is_labelme(contents[path]):  # Of each picture there is one.
            return {**dict.fromkeys(inside), **contents}
    annotations = {path: content for path, content in contents.items() if formats.is_known(content)}
    foreign = {path: formats.of_json(content) for path, content in contents.items()}
    annotations = {path: annotations[path] for path in annotations if not foreign[path]} or annotations
    if not annotations and any(foreign.values()):
        raise UserError(next(f"{path}: annotations of {text}" for path, text in foreign.items() if text))
    for path in near if annotations else ():
        if path not in annotations:
            report.skip("a JSON file beside the annotations that are read", str(path))
    return annotations


def _pair(contents: Mapping[Path, Any], folder: Path, report: Report) -> tuple[Path, Path] | None:
    """Returns a training and an evaluation split's files by the words of their names; None if they are not a pair."""
    words = {path: split_names.word_of(os.path.relpath(path.with_suffix(""), folder)) for path in contents}
    train, held_out = split_names.pair(words)
    if len(train) != 1 or len(held_out) != 1 or any(map(formats.is_labelme, contents.values())):
        return None
    for path in contents:
        if path not in (train[0], held_out[0]):
            report.skip(f"beside {train[0].name} and {held_out[0].name}, which are read", str(path))
    return train[0], held_out[0]


def _json(folder: Path, contents: Mapping[Path, Any], report: Report) -> Source:
    """Reads one annotation file of COCO, or LabelMe's, of which every picture has one."""
    if any(map(formats.is_labelme, contents.values())):
        return picture_files.read(folder, list(contents), "LabelMe", report)
    if len(contents) > 1:
        names = ", ".join(path.name for path in list(contents)[:4])
        raise UserError(f"{folder}: several annotation files ({names}); name one with --annotations")
    ((path, content),) = contents.items()
    program = formats.of_json(content)
    if program:
        raise UserError(f"{path}: annotations of {program}")
    for kind in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(kind), list):
            raise UserError(f"{path}: {kind} is not a list; get a COCO file of object instances")
    return _with_pictures(folder, path, content, report)


def _parsed(path: Path) -> Any:
    if os.path.exists(path) and not os.path.isfile(path):  # Opening a pipe would block forever.
        raise UserError(f"{path}: not a regular file; name another")
    try:
        return parsed(path.read_bytes())
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; correct the path or name another file") from error
    except ValueError as error:
        raise UserError(f"{path}: not a JSON file ({error}); correct it or name another") from error


def _with_pictures(folder: Path, path: Path, content: Mapping[str, Any], report: Report) -> Source:
    """Finds the file of each picture in the annotations `content` of `path`.

    Raises UserError if no picture is there, or a name fits two.
    """
    images = [_with_name(image) for image in content["images"]]
    names = dict.fromkeys(filter(None, map(_name_of, images)))
    partners = Partners(folder)
    files = {name: partners.find(name, path) for name in names}
    there = {name: file for name, file in files.items() if file}
    if not there:
        example = f", such as {next(iter(names))}" if names else ""
        other = next(
            filter(None, (partners.of_stem(stems(name)[-1].rpartition("/")[2], path) for name in names)), None
        )
        hint = (
            f", but {other} is; give the names their suffix" if other else "; name the folder that holds them"
        )
        raise UserError(f"{path}: none of its pictures{example} is in {folder}{hint}")
    bases = {file.removesuffix(name) for name, file in there.items()}
    # All names are relative to one folder: they stay.
    if len(bases) == 1 and bases.isdisjoint(there.values()):
        return Source({**content, "images": images}, folder / bases.pop(), str(path))
    for name, file in there.items():
        if not f"/{file}".endswith(f"/{name}"):
            report.change("a file name found in another spelling", f"{name} as {file}")
    for number, image in enumerate(images):
        if _name_of(image) in there:
            images[number] = {**image, "file_name": there[image["file_name"]]}
    return Source({**content, "images": images}, folder, str(path))


def _name_of(image: Any, field: str = "file_name") -> str:
    """Returns the name in an entry of "images", "" without one."""
    name = image.get(field) if isinstance(image, dict) else None
    return name if isinstance(name, str) else ""


def _with_name(image: Any) -> Any:
    """Returns an entry of "images" with a file name; LVIS has the picture's address instead."""
    address = _name_of(image, "coco_url")
    if address and not image.get("file_name"):
        return {**image, "file_name": "/".join(address.split("/")[-2:])}
    return image
