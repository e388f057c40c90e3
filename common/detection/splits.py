"""Reads the split of annotated pictures from data.yaml, obj.data, lists, fields or folders. TensorFlow-free."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.data import given_splits, pictures, split_names, text_files
from common.data.partners import Partners
from common.data.report import Report
from common.detection.annotation_formats import Source
from common.errors import UserError


def of_source(source: Source, folder: Path, report: Report) -> tuple[Source, Source | None]:
    """Divides annotations by lists, by COCO's field `split`, or by folders in the names; else (source, None).

    Args:
      folder: the user's folder.
      report: receives what looks like a split but cannot be honoured.
    """
    images = [
        i for i in source.content["images"] if isinstance(i, dict) and isinstance(i.get("file_name"), str)
    ]
    names = [image["file_name"] for image in images]
    lists = None if source.fractions else find(folder, {}, report)  # YOLO's are read already.
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


def find(folder: Path, settings: Mapping[str, Any], report: Report) -> tuple[set[str], set[str]] | None:
    """Returns the names, relative to `folder`, of the pictures to train and to evaluate on; None without such a split.

    Args:
      settings: the content of data.yaml, {} without one.
      report: receives what of the settings cannot be honoured.
    """
    for read in (lambda: _of_yaml(settings), lambda: _of_darknet(folder), lambda: _of_files(folder, report)):
        given = read()
        train, held = given.get(0), given.get(1)
        if not train or not held:
            continue
        partners = Partners(folder)
        splits = tuple(_pictures(entries, folder, partners, report) for entries in (train, held))
        said = f"{train[0][0]}: {train[0][1]} and {held[0][1]}"
        if not all(splits):
            report.suspect("a split whose pictures are not there, not taken", said)
        elif splits[0] <= splits[1]:
            report.suspect("a split that names the same pictures for both parts, not taken", said)
        else:
            both = splits[0] & splits[1]
            if both:
                report.suspect("a picture in both parts of the split, not trained on", min(both), len(both))
            return splits[0] - both, splits[1]
    return None


Entries = list[tuple[Path, str]]  # (The file that names it, a folder, a list or a picture).


def _of_yaml(settings: Mapping[str, Any]) -> dict[int, Entries]:
    """Returns what train: and val: of data.yaml name, or test: where val: is missing."""
    given: dict[int, Entries] = {}
    if not settings:
        return given
    path = Path(settings["path of this file"])
    for word in (*split_names.TRAIN, *split_names.EVAL):
        values = settings.get(word)
        values = values if isinstance(values, list) else [values]
        entries = [
            (path, str(Path(str(settings.get("path") or ""), v))) for v in values if isinstance(v, str) and v
        ]
        if entries:
            given.setdefault(split_names.part_of(word), entries)
    return given


def _of_darknet(folder: Path) -> dict[int, Entries]:
    """Returns what the lines train = FILE and valid = FILE of obj.data name."""
    path, given = next(folder.glob("**/obj.data"), None), {}
    for line in text_files.read(path) if path else ():
        word, _, value = (side.strip() for side in line.partition("="))
        if value and split_names.part_of(word) is not None:
            given.setdefault(split_names.part_of(word), [(path, value)])
    return given


def _of_files(folder: Path, report: Report) -> dict[int, Entries]:
    """Returns the lists train.txt and val.txt (test.txt, autosplit_val.txt, ...) of every ImageSets; else of a folder.

    These are the user's folder, splits/ and data/. The names of a pair of lists differ in the split's word alone.
    """
    given: dict[int, Entries] = {}
    seen: set[Path] = set()
    for glob in ("**/ImageSets/Main/*", "**/ImageSets/*/*", "**/ImageSets/*", "*", "*split*/*", "data/*"):
        for place in sorted({path.parent for path in folder.glob(f"{glob}.txt")} - seen):
            root = next((path for path in (place, place.parent) if path.name == "ImageSets"), folder)
            if given if root == folder else root in seen:
                continue
            seen.add(place)
            names = {path: path.stem for path in sorted(place.glob("*.txt")) if not pictures_beside(path)}
            lists = {path: name for path, name in names.items() if split_names.of_folder(name)}
            held = any(split_names.part_of(split_names.word_of(name)) for name in lists.values())
            pairs = split_names.pairs(lists)
            if "" in pairs or len(pairs) == 1:
                seen.add(root)
                for part, paths in enumerate(pairs.get("") or next(iter(pairs.values()))):
                    given.setdefault(part, []).append((paths[0], paths[0].name))
            elif pairs:
                report.suspect("lists of several splits, not taken", str(place), len(pairs))
            elif held or lists and root != folder:
                report.suspect("one part of a split without the other, not taken", str(next(iter(lists))))
    return given


def pictures_beside(path: Path) -> bool:
    """Whether a text file is the labels of a picture of the same name."""
    return any(path.with_suffix(suffix).is_file() for suffix in pictures.SUFFIXES)


def _pictures(
    entries: Sequence[tuple[Path, str]], folder: Path, partners: Partners, report: Report
) -> set[str]:
    """Returns the names of all pictures that the entries mean."""
    names: set[str] = set()
    for source, value in entries:
        place = next((path for path in _places(source, value, folder) if os.path.exists(path)), None)
        if place is None:
            report.suspect("a part of the split that is not there", f"{source}: {value}")
        elif place.is_dir():
            names |= set(partners.below(place))
        elif place.suffix.lower() in pictures.SUFFIXES:
            names.add(place.relative_to(folder).as_posix())
        else:
            try:
                names |= given_splits.of_list(place, partners, report)
            except UserError as error:
                report.suspect("a list of the split that cannot be read", str(error))
    return names


def _places(source: Path, value: str, folder: Path) -> Iterator[Path]:
    """Yields where a folder or list may be: as written, or below the user's folder by fewer and fewer of its folders.

    Exporters write paths of their own machine, and Roboflow "../train/images" for a folder next to data.yaml.
    """
    words = [word for word in value.replace("\\", "/").split("/") if word not in ("", ".", "..")]
    for base in dict.fromkeys((source.parent, folder)):
        given = Path(os.path.normpath(base / value))
        if given.is_relative_to(folder):
            yield given
    for first in range(len(words)):
        yield folder.joinpath(*words[first:])
