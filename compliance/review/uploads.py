"""Merges the uploads of a round: the last one of each name counts, and those of one organisation become one folder.

mlcommons/training #877, on the upload form: it keeps only the latest upload of a submission, and merges the folders of
one organisation, which are called <organization>_<number>. Results of an earlier upload of the same name are lost.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from common.errors import UserError
from compliance.submission.tree_files import SPECIAL, kind_of

_NUMBERED = re.compile(r"(.+)_(\d{1,4})")


class Change(NamedTuple):
    """What became of one thing in an upload. `kind`: "vanished", "replaced", "sent again" or "left out"."""

    organisation: str
    kind: str
    name: str
    text: str


@dataclass(frozen=True)
class Upload:
    """One submitter's folder as it was sent. `order` counts the trees of the command line; a later one is newer."""

    path: Path
    order: int

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def parts(self) -> tuple[str, int]:
        """Returns the folder's name without the number at its end, and the number; -1 without one."""
        match = _NUMBERED.fullmatch(self.name)
        return (match[1], int(match[2])) if match else (self.name, -1)

    def entries(self) -> dict[str, Path]:
        """Returns {"system/benchmark": folder of runs}."""
        found = sorted((self.path / "results").glob("*/*"))
        return {f"{one.parent.name}/{one.name}": one for one in found if _is_folder(one)}


def find(trees: Sequence[Path]) -> tuple[list[Upload], list[Change]]:
    """Returns the submitters' folders at or directly below `trees`, and what was left out.

    Raises UserError: a tree does not exist, or has no submitter's folder.
    """
    sent: list[Upload] = []
    left_out: list[Change] = []
    for order, tree in enumerate(Path(os.path.abspath(tree)) for tree in trees):
        if not tree.is_dir():
            raise UserError(f"{tree}: no such folder; name a round's folder, or a submitter's with results/")
        inside = [tree] if (tree / "results").is_dir() else sorted(tree.iterdir())
        here = [one for one in inside if one == tree or _is_folder(one)]
        left_out += [
            Change(one.name, "left out", one.name, "a symbolic link; name the folder itself")
            for one in inside
            if one not in here and one.is_symlink() and (one / "results").is_dir()
        ]
        own = [Upload(one, order) for one in here if (one / "results").is_dir()]
        if not own:
            raise UserError(f"{tree}: no folder with results/ in it; name a round's folder, or a submitter's")
        sent += own
    return sent, left_out


def organisations(uploads: Sequence[Upload]) -> dict[str, list[Upload]]:
    """Returns {organisation: its uploads, oldest first}.

    <name>_<number> is an upload of <name> if another upload has that name, with or without a number.
    """
    bases: dict[str, set[str]] = defaultdict(set)
    for one in uploads:
        bases[one.parts[0]].add(one.name)
    grouped: dict[str, list[Upload]] = defaultdict(list)
    for one in uploads:
        grouped[one.parts[0] if len(bases[one.parts[0]]) > 1 else one.name].append(one)
    oldest_first = partial(sorted, key=lambda one: (one.parts[1], one.order))
    return {name: oldest_first(group) for name, group in sorted(grouped.items())}


def merge(
    organisation: str, uploads: Sequence[Upload], place: Path
) -> tuple[Path, list[Change], dict[str, str]]:
    """Merges the uploads of one organisation, oldest first.

    Args:
      organisation: its name.
      uploads: from `organisations`.
      place: an empty folder, for a merged copy. A single upload stays where it is.

    Returns:
      (the submitter's folder, what changed, {"system/benchmark": the upload that it comes from}).
    """
    last = {one.name: one for one in uploads}
    latest = [one for one in uploads if last[one.name] is one]
    changes: list[Change] = []
    origin: dict[str, Upload] = {}
    for one in latest:
        for name, folder in one.entries().items():
            if name in origin:
                changes.append(_again(organisation, name, origin[name].entries()[name], folder))
            origin[name] = one
    for one in uploads:
        for name, folder in one.entries().items() if one not in latest else ():
            if name in origin:
                changes.append(_again(organisation, name, folder, origin[name].entries()[name]))
            else:
                shown = os.path.relpath(folder, os.path.commonpath([sent.path.parent for sent in uploads]))
                said = f"only in {shown}; the last upload named {one.name} is without it"
                changes.append(Change(organisation, "vanished", name, said))
    sources = {name: one.path.as_posix() for name, one in origin.items()}
    if len(latest) == 1:
        return latest[0].path, changes, sources
    merged = place / organisation
    for one in latest:
        for name in one.entries():
            shutil.rmtree(merged / "results" / name, ignore_errors=True)
        shutil.copytree(
            one.path, merged, symlinks=True, ignore=_special, copy_function=_link, dirs_exist_ok=True
        )
    return merged, changes, sources


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _again(organisation: str, name: str, old: Path, new: Path) -> Change:
    if _content(old) == _content(new):
        return Change(organisation, "sent again", name, f"{new} is equal to {old}")
    return Change(organisation, "replaced", name, f"{new} replaces {old}")


def _content(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.glob("result_*.txt"))
        if kind_of(path) == "file" and os.access(path, os.R_OK)
    }


def _special(folder: str, names: list[str]) -> list[str]:
    """Names pipes, sockets and devices, which a copy would wait for."""
    paths = {name: os.path.join(folder, name) for name in names}
    return [name for name, path in paths.items() if kind_of(path) == SPECIAL and not os.path.isdir(path)]


def _link(source: str, target: str) -> None:
    """Makes a second name of a file; a copy where that cannot be. Nothing writes to it."""
    if os.path.lexists(target):
        os.unlink(target)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
