"""Reads the split that a user's list or folder gives, and describes the part that is held out. TensorFlow-free."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TypeVar

from common.data import folder_conversion
from common.data.report import Report
from common.errors import UserError

T = TypeVar("T")


def report_unused(
    folder: Path, used: Sequence[Path], report: Report, names: Sequence[str] | None = None
) -> None:
    """Notes the folders beside a split's two that the conversion does not read, such as test/.

    `names` limits them to folders with these names, in lower case.
    """
    both = " and ".join(f"{path.name}/" for path in used)
    for path in folder_conversion.folders(folder):
        if path not in used and (names is None or path.name.lower() in names):
            report.skip(
                f"beside {both}, which are read", f"{path}/", max(1, len(folder_conversion.files(path)))
            )


NO_NAMES = "no line of it has a class and its name"


def report_layout(parts: Sequence[Path], suffixes: Collection[str], report: Report) -> None:
    """Notes what a folder of classes has that its layout does not explain.

    Args:
      parts: folders with a folder for each class.
      suffixes: of the files that are examples.
      report: receives files in no class's folder, and classes that are all divided in the same way.
    """
    for part in parts:
        for path in sorted(part.iterdir()):
            if folder_conversion.visible(path.name) and path.suffix.lower() in suffixes and not path.is_dir():
                report.skip("in no class's folder", str(path))
        classes = folder_conversion.folders(part)
        inside = [{path.name for path in folder_conversion.folders(place)} for place in classes]
        same = sorted(set.intersection(*inside)) if len(inside) > 1 else []
        if len(same) > 1:
            report.suspect(
                "the same folders in every class's folder, read as parts of the class",
                f"{classes[0]}/{same[0]} and {classes[-1]}/{same[0]}",
            )


def inner(folder: Path) -> str:
    """Returns the end of an error about a folder of one class: the class's folder, if the classes are inside of it."""
    only = folder_conversion.folders(folder) if folder.is_dir() else []
    deeper = len(only) == 1 and len(folder_conversion.folders(only[0])) > 1
    return f"; name {only[0]} if its folders are the classes" if deeper else ""


def part_of(name: str) -> int | None:
    """Returns the part that a split's name means: 0 for training, 1 for evaluation; None for another name."""
    return next(
        (
            part
            for part, names in enumerate((folder_conversion.TRAIN, folder_conversion.EVAL))
            if name.lower() in names
        ),
        None,
    )


def listed_split(source: Path, rows: Sequence[tuple[T, str]], report: Report) -> tuple[list[T], list[T]]:
    """Returns the training and the evaluation examples of a list with a column of splits.

    If the list has a validation and a test split, the test split stays out, and the report says so.

    Args:
      source: the list, for errors.
      rows: (example, split in lower case).
      report: receives the examples that belong to no part.

    Raises:
      UserError: a row's split is unknown, or a part has no row.
    """
    names = list(dict.fromkeys(name for _, name in rows))
    unknown = [name for name in names if part_of(name) is None]
    held = [name for name in names if part_of(name) == 1]
    if unknown or not held or len(held) == len(names):
        shown = ", ".join(name or "(empty)" for name in names)
        raise UserError(f"{source}: column split has {shown}; expected train and val (or test)")
    tests = (
        [name for name in held if name in folder_conversion.TESTS]
        if set(held) - set(folder_conversion.TESTS)
        else []
    )
    for name in tests:
        count = sum(part == name for _, part in rows)
        report.skip(f"split {name}, because another one is for evaluation", str(source), count)
    kept = [(item, name) for item, name in rows if name not in tests]
    return tuple([item for item, name in kept if part_of(name) == part] for part in (0, 1))


def relative(paths: Sequence[str], source: Path) -> list[str]:
    """Returns paths of files as seen from the source folder, or from the folder of a source file."""
    base = source if source.is_dir() else source.parent
    return [os.path.relpath(path, base) for path in paths]


def majority(train: Sequence[str], held: Sequence[str]) -> tuple[float, str]:
    """Returns the share of `held` in the class that `train` has most often, as `finish` takes a baseline."""
    name = max(sorted(set(train)), key=Counter(train).__getitem__)
    return held.count(name) / len(held), f"always the most frequent class, {name}"
