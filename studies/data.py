"""Real data beside the project: where it lies, unpacked once into a cache outside the tree."""

from __future__ import annotations

import lzma
import os
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from common.errors import UserError
from common.files import whole

ROOT = Path(__file__).resolve().parent.parent


def shared_data() -> Path:
    """The folder of the data sets: TTT_SHARED/data, by default beside the project."""
    return Path(os.environ.get("TTT_SHARED", ROOT.parent / "shared")) / "data"


def cache() -> Path:
    """Where data is unpacked or generated once: TTT_CACHE, by default in the system's temporary folder."""
    return Path(os.environ.get("TTT_CACHE", Path(tempfile.gettempdir()) / f"timetotrain-{os.getuid()}"))


def unpack(name: str) -> Path:
    """The folder `name` of `cache()`: what `name`.tar.xz unpacks to, or a link to the folder of that name beside it.

    A link, because studies write what they make of a data set beside it.

    Raises:
      UserError: there is neither, or the archive is damaged.
    """
    archive, ready, folder = shared_data() / f"{name}.tar.xz", shared_data() / name, cache() / name
    if ready.is_dir() and not folder.is_dir():
        cache().mkdir(parents=True, exist_ok=True)
        folder.unlink(missing_ok=True)  # A link to a folder that has gone.
        folder.symlink_to(ready.resolve())
    if not archive.is_file() and not ready.is_dir():
        raise UserError(
            f"{archive} is not there; set TTT_SHARED to the folder that holds data/{name}.tar.xz or data/{name} "
            "(docs/data.md says what is in it)"
        )

    def fill(made: Path) -> None:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(made.parent, filter="data")
            if not made.is_dir():
                raise tarfile.TarError(f"no folder {name} in it")
        except (tarfile.TarError, EOFError, lzma.LZMAError) as error:
            raise UserError(f"{archive}: cannot unpack it: {error}; get it again") from error

    return filled(folder, fill)


def unzip(archive: Path, names: Sequence[str], folder: Path) -> Path:
    """`folder`, to which `names` are unpacked once.

    Raises:
      UserError: the archive is not there, is damaged, or lacks one of them.
    """

    def fill(made: Path) -> None:
        try:
            with zipfile.ZipFile(archive) as content:
                content.extractall(made, names)
        except (FileNotFoundError, zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
            raise UserError(f"{archive}: cannot unpack {', '.join(names)}: {error}; get it again") from error

    return filled(folder, fill)


def filled(folder: Path, fill: Callable[[Path], object]) -> Path:
    """`folder`, which is made where it is not there: under its name it is whole.

    Args:
      folder: its place.
      fill: makes it at the path that it is given, whose name is `folder`'s and whose parent is an empty folder.
    """
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            with whole(folder) as made:
                fill(made)
        except OSError:
            if not folder.is_dir():  # Else another study was first.
                raise
    return folder
