"""Reads the split of annotated pictures from data.yaml, lists, fields or folders. TensorFlow-free."""

import collections
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.data import given_splits, pictures, split_names
from common.data.partners import Partners
from common.data.report import Report
from common.detection.annotation_formats import Source
from common.errors import UserError


def of_source(source: Source, folder: Path, report: Report) -> tuple[Source, Source | None]:
    """Divides annotations by lists, by COCO's field `split`, or by folders in the names; else (source, None).

    `report` receives what in the user's folder looks like a split but cannot be honored.
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

    `report` receives what cannot be honored of the `settings`, the content of data.yaml or {}.
    """
    for read in (lambda: _of_yaml(settings), lambda: _of_lists(folder, report)):
        parts = read()
        train, held_out = parts.get(0), parts.get(1)
        if not train or not held_out:
            continue
        partners = Partners(folder)
        splits = tuple(_pictures(entries, folder, partners, report) for entries in (train, held_out))
        example = f"{train[0][0]}: {train[0][1]} and {held_out[0][1]}"
        if not all(splits):
            report.suspect("a split whose pictures are not there, not taken", example)
        elif splits[0] <= splits[1]:
            report.suspect("a split that names the same pictures for both parts, not taken", example)
        else:
            both = splits[0] & splits[1]
            if both:
                report.suspect("a picture in both parts of the split, not trained on", min(both), len(both))
            return splits[0] - both, splits[1]
    for path in folder.glob("**/obj.data"):
        report.suspect(
            "darknet's obj.data, not read; put its lists into data/ as train.txt and val.txt", str(path)
        )
    return None


Entries = list[tuple[Path, str]]  # (The file that names it, a folder, a list or a picture).


def _of_yaml(settings: Mapping[str, Any]) -> dict[int, Entries]:
    """Returns what train: and val: of data.yaml name, or test: where val: is missing."""
    parts: dict[int, Entries] = {}
    if not settings:
        return parts
    path = Path(settings["path of this file"])
    for word in (*split_names.TRAIN, *split_names.EVAL):
        values = settings.get(word)
        values = values if isinstance(values, list) else [values]
        entries = [
            (path, str(Path(str(settings.get("path") or ""), v))) for v in values if isinstance(v, str) and v
        ]
        if entries:
            parts.setdefault(split_names.part_of(word), entries)
    return parts


def _of_lists(folder: Path, report: Report) -> dict[int, Entries]:
    """Returns the lists train.txt and val.txt (test.txt, autosplit_val.txt, ...) of every ImageSets; else of a folder.

    Of an ImageSets, Main counts first. The folders are the user's, splits/ and data/. ImageSets may have lists of each
    class instead: cat_train.txt, cat_val.txt.
    """
    sets: dict[Path, list[Path]] = collections.defaultdict(list)
    places = {path.parent for path in folder.glob("**/ImageSets/**/*.txt")}
    for place in sorted(places, key=lambda path: (path.name != "Main", path)):
        sets[next(path for path in (place, *place.parents) if path.name == "ImageSets")].append(place)
    parts: dict[int, Entries] = {}
    for inside in sets.values():
        for part, paths in enumerate(_first_pair(inside, True, report)):
            parts.setdefault(part, []).extend((path, path.name) for path in paths)
    if parts.get(0):
        return parts
    pair = _first_pair([folder, *sorted(folder.glob("*split*/")), folder / "data"], False, report)
    return {part: [(path, path.name) for path in paths] for part, paths in enumerate(pair)}


def _first_pair(places: Sequence[Path], sets: bool, report: Report) -> tuple[list[Path], list[Path]]:
    """Returns the lists (to train, to evaluate on) of the first folder that has both; ([], []) without one.

    With `sets` the folders are of ImageSets, which may have several lists of a part.
    """
    doubts = []
    for place in places:
        stems = {path: path.stem for path in sorted(place.glob("*.txt")) if not _pictures_beside(path)}
        words = {path: split_names.of_folder(stem) for path, stem in stems.items()}
        plain = {path: word for path, word in words.items() if stems[path].lower() == word}
        train, evals = split_names.pair(plain)
        if not train:
            train, evals = split_names.pair(words)
        if sets and not any(words.values()):
            train, evals = split_names.pair({path: split_names.word_of(stem) for path, stem in stems.items()})
        elif len(train) > 1 or len(evals) > 1:
            doubts.append(("lists of several splits, not taken", str(place), len(train) + len(evals)))
            continue
        if train:
            return train, evals
        alone = (path for path, word in words.items() if split_names.part_of(word) or word and sets)
        for path in itertools.islice(alone, 1):
            doubts.append(("one part of a split without the other, not taken", str(path)))
    for doubt in doubts:
        report.suspect(*doubt)
    return [], []


def _pictures_beside(path: Path) -> bool:
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
        path = Path(os.path.normpath(base / value))
        if path.is_relative_to(folder):
            yield path
    for first in range(len(words)):
        yield folder.joinpath(*words[first:])
