"""Real data beside the project: where it lies, unpacked once into a cache outside the tree."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from common.errors import UserError

ROOT = Path(__file__).resolve().parent.parent


def shared_data() -> Path:
    """The folder of the archives: TTT_SHARED/data, by default beside the project."""
    return Path(os.environ.get("TTT_SHARED", ROOT.parent / "shared")) / "data"


def cache() -> Path:
    """Where data is unpacked or generated once: TTT_CACHE, by default in the system's temporary folder."""
    return Path(os.environ.get("TTT_CACHE", Path(tempfile.gettempdir()) / f"timetotrain-{os.getuid()}"))


def unpack(name: str) -> Path:
    """The folder that `name`.tar.xz unpacks to, in `cache()`.

    Raises:
      UserError: the archive is not there.
    """
    archive = shared_data() / f"{name}.tar.xz"
    if not archive.is_file():
        raise UserError(f"{archive} is not there; set TTT_SHARED to the folder that holds data/{name}.tar.xz")
    folder = cache() / name
    if not folder.is_dir():
        cache().mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=cache()))
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(partial, filter="data")
            if not folder.is_dir():
                os.replace(partial / name, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder
