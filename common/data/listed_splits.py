"""Reads the split of examples from data.yaml, lists or folders. TensorFlow-free."""

import collections
import itertools
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.data import folder_conversion, given_splits, pictures, split_names
from common.data.partners import Partners
from common.data.report import Report
from common.errors import UserError


def find(
    folder: Path,
    settings: Mapping[str, Any],
    report: Report,
    suffixes: Collection[str] | None = pictures.SUFFIXES,
) -> tuple[set[str], set[str]] | None:
    """Returns the names, relative to `folder`, of the files to train and to evaluate on; None without such a split.

    `report` receives what cannot be honored of the `settings`, the content of data.yaml or {}. The
    files have one of `suffixes`, None for any.
    """
    for read in (lambda: _of_yaml(settings), lambda: _of_lists(folder, report)):
        parts = read()
        train, held_out = parts.get(0), parts.get(1)
        if not train or not held_out:
            continue
        partners = Partners(folder, suffixes)
        splits = tuple(_pictures(part, folder, partners, report) for part in (train, held_out))
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

    Of an ImageSets, Main counts first. The folders are the user's, splits/, data/ and meta/. ImageSets may have lists
    of each class instead: cat_train.txt, cat_val.txt.
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
    places = [folder, *sorted(folder.glob("*split*/")), folder / "data", folder / "meta"]
    pair = _first_pair(places, False, report)
    return {part: [(path, path.name) for path in paths] for part, paths in enumerate(pair)}


def _first_pair(places: Sequence[Path], sets: bool, report: Report) -> tuple[list[Path], list[Path]]:
    """Returns the lists (to train, to evaluate on) of the first folder that has both; ([], []) without one.

    With `sets` the folders are of ImageSets, which may have several lists of a part.
    """
    doubts = []
    for place in places:
        pictured = {
            path.stem for path in place.glob("*.*") if path.suffix in pictures.SUFFIXES
        }  # By their labels.
        stems = {path: path.stem for path in sorted(place.glob("*.txt")) if path.stem not in pictured}
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


def _pictures(entries: Entries, folder: Path, partners: Partners, report: Report) -> set[str]:
    """Returns the names of all files that the entries mean."""
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


# A list's name, such as train.txt, val_split.csv or UCF101's trainlist01.txt, but not valley.txt.
_LIST = re.compile(
    r"(train|test|val)(ing|val|id|idation)?(list|set|split)?(?![^\W\d_]).*\.(txt|.sv|json|mat)"
)
_TEXTS = {"", ".txt", ".csv", ".tsv", ".json", ".xml", ".mat", ".md"}


def classified(
    source: Path,
    options: folder_conversion.Options,
    in_folder: Callable[[Path], list[Any]],
    in_list: Callable[[Path], list[tuple[Any, str]]],
) -> tuple[list[Any], list[Any] | None]:
    """Returns the examples to train and to evaluate on of folders of classes or of a list; the second None: no split.

    `source` is a folder of class folders, perhaps with lists such as train.txt, or of train/ and val/ with these; or a
    list, whose examples `in_list` reads, each with its split in lower case, "" without one. Raises UserError as
    `given_split` and `listed_split`.
    """
    report = options.report
    if not source.is_dir():
        rows = in_list(source)
        if any(part for _, part in rows):
            return given_splits.listed_split(source, rows, report)
        return [item for item, _ in rows], None
    first, second = given_splits.given_split(source, report=report)
    if second and not folder_conversion.folders(second) and not given_splits.lists(second):
        report.suspect("a folder to evaluate on without classes, not read", f"{second}/")
        second = None
    if second:
        given_splits.report_unused(source, (first, second), report)
    parts = [in_folder(_classes_in(part, report)) for part in (first, second) if part]
    names = [os.path.relpath(item.path, first) for item in parts[0]]
    listed = None if second else find(first, {}, report, None)
    if listed and all({*names} & part for part in listed):
        for name in sorted({*names}.difference(*listed)):
            report.skip("in no list of the split", name, lost=True)
        return tuple([one for one, name in zip(parts[0], names) if name in part] for part in listed)
    examples = [Path(item.path) for part in parts for item in part]
    used = {path.stem for path in examples}, {path.parent for path in examples}
    around = first.absolute().parent if split_names.names_no_class(first.name) and not second else first
    for path in sorted({*folder_conversion.files(first), *around.glob("*"), *around.glob("meta/*")}):
        if _LIST.fullmatch(path.name.lower()) and path.stem not in used[0] and path.parent not in used[1]:
            report.suspect("a list beside the folders that may be a split, not read", str(path))
    return parts[0], parts[1] if second else None


def _classes_in(folder: Path, report: Report) -> Path:
    """Returns the folder of the classes: images/ or the like if it has folders, and only texts are beside it."""
    inside = [path for path in folder_conversion.folders(folder) if split_names.names_no_class(path.name)]
    if len(inside) == 1 and len(folder_conversion.folders(inside[0])) > 1:
        others = [path for path in folder_conversion.files(folder) if not path.is_relative_to(inside[0])]
        if {path.suffix.lower() for path in others} <= _TEXTS:
            report.choose("folder of the classes", f"{inside[0]}/", "the converter")
            return inside[0]
    return folder
