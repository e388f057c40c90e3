"""Finds the archives of real data that studies and tests use; nothing of them is ever part of this repository."""

from __future__ import annotations

import os
import pathlib
import tarfile

from common.errors import UserError

ROOT = pathlib.Path(__file__).resolve().parent.parent


def archive(name: str) -> pathlib.Path:
    """The archive `name` in $TTT_SHARED/data, or beside the project.

    Raises:
      UserError: it is not there.
    """
    folder = pathlib.Path(os.environ.get("TTT_SHARED", ROOT.parent / "shared")) / "data"
    path = folder / name
    if not path.is_file():
        raise UserError(f"{path}: no such archive; set TTT_SHARED to the folder that holds data/{name}")
    return path


def unpacked(name: str) -> pathlib.Path:
    """A folder with the content of the archive `name`, unpacked once into $TTT_CACHE (~/.cache/timetotrain)."""
    source = archive(name)
    cache = pathlib.Path(os.environ.get("TTT_CACHE", pathlib.Path.home() / ".cache" / "timetotrain"))
    target = cache / name.split(".")[0]
    if not target.is_dir():
        partial = target.with_suffix(f".partial{os.getpid()}")
        partial.mkdir(parents=True)
        with tarfile.open(source) as tar:
            tar.extractall(partial, filter="data")
        partial.rename(target)
    return target
