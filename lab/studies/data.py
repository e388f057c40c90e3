"""Finds the real data sets beside the project, and unpacks them once into a cache outside the tree."""

import lzma
import os
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from common import untrusted
from common.errors import UserError
from common.files import whole

ROOT = Path(__file__).resolve().parents[2]


def shared_data() -> Path:
    """Returns the folder of the data sets: TTT_SHARED/data, by default beside the project."""
    return Path(os.environ.get("TTT_SHARED", ROOT.parent / "shared")) / "data"


def cache() -> Path:
    """Returns the folder for unpacked and generated data: TTT_CACHE, by default in the system's temporary folder."""
    return Path(os.environ.get("TTT_CACHE", Path(tempfile.gettempdir()) / f"timetotrain-{os.getuid()}"))


def unpack(name: str) -> Path:
    """Returns the folder `name` of `cache()`: the unpacked `name`.tar.xz, or a link to the data sets' folder `name`.

    It links the folder, because studies write derived data next to it.

    Raises UserError if neither exists, or the archive is damaged.
    """
    archive, ready, folder = shared_data() / f"{name}.tar.xz", shared_data() / name, cache() / name
    if ready.is_dir() and not folder.is_dir():
        cache().mkdir(parents=True, exist_ok=True)
        folder.unlink(missing_ok=True)  # A link to a folder that no longer exists.
        folder.symlink_to(ready.resolve())
    if not archive.is_file() and not ready.is_dir():
        raise UserError(
            f"{archive} is not there; set TTT_SHARED to the folder that holds data/{name}.tar.xz or data/{name} "
            "(docs/studies.md says what is in it)"
        )

    def fill(place: Path) -> None:
        try:
            with tarfile.open(archive) as tar:
                untrusted.extract(tar, place.parent)
            if not place.is_dir():
                raise tarfile.TarError(f"no folder {name} in it")
        except (tarfile.TarError, EOFError, lzma.LZMAError) as error:
            raise UserError(f"{archive}: cannot unpack it: {error}; get it again") from error

    return filled(folder, fill)


def unzip(archive: Path, names: Sequence[str], folder: Path) -> Path:
    """Unpacks `names` once into `folder`, and returns `folder`.

    Raises UserError if the archive is missing or damaged, or lacks one of the names.
    """

    def fill(place: Path) -> None:
        try:
            with zipfile.ZipFile(archive) as content:
                content.extractall(place, names)
        except (FileNotFoundError, zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
            raise UserError(f"{archive}: cannot unpack {', '.join(names)}: {error}; get it again") from error

    return filled(folder, fill)


def filled(folder: Path, fill: Callable[[Path], object]) -> Path:
    """Returns `folder`; fills it first if it does not exist. It appears under its name only when complete.

    Args:
      folder: the path of the folder.
      fill: makes the folder at the path it is given: same name as `folder`, in an empty parent folder.
    """
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            with whole(folder) as place:
                fill(place)
        except OSError:
            if not folder.is_dir():  # Otherwise another study made it first.
                raise
    return folder
