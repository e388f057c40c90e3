"""Checks the names, paths, JSON and archives of files that others made (docs/security.md). TensorFlow-free."""

import json
import os
import pathlib
import re
import stat
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

# Names that Windows reserves for devices, with any suffix.
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_NAME_BYTES = 255  # Longest file name that common file systems accept.
# Exceptions that numpy and zipfile raise when they open or read an .npz file that is truncated, altered or of another
# kind. Altered archive flags cause NotImplementedError and RuntimeError.
NPZ_DAMAGE = (
    *(OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, zlib.error),
    *(NotImplementedError, RuntimeError),
    tokenize.TokenError,  # numpy reads the header of an array as Python's tokens
)


def is_plain_name(name: object) -> bool:
    """Whether a name is safe for a file in one of our folders, on any operating system.

    A safe name is printable. It is not a path (no separator, drive, "." or ".."), a hidden file or a device.
    """
    return (
        isinstance(name, str)
        and name.isprintable()
        and not re.search(r'[/\\:*?"<>|]', name)
        and not name.startswith(".")
        and name == name.strip(" .")
        and 0 < len(name.encode(errors="replace")) <= _NAME_BYTES
        and not _DEVICES.fullmatch(name)
    )


def stays_inside(path: str | os.PathLike) -> bool:
    """Whether a relative path stays inside its base folder; does not resolve links on the disk."""
    text = os.fspath(path)
    parts = re.split(r"[/\\]", text)
    return "\0" not in text and not os.path.isabs(text) and os.path.pardir not in parts


def parsed(text: str | bytes) -> Any:
    """Parses JSON text. Raises ValueError if it is not JSON, or its brackets are nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("brackets nested too deeply") from error


def read_plain(path: pathlib.Path, most: int) -> bytes:
    """Returns the content of a regular file of at most `most` bytes.

    Raises:
      OSError: it cannot be read.
      ValueError: it is a link, a folder, a pipe or a device, or it is longer than `most`.
    """
    if path.is_symlink():
        raise ValueError(f"{path.name} is a link; put the file itself there")
    # O_NONBLOCK, so that opening a pipe does not wait for a writer.
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise ValueError(f"{path.name} is not a regular file")
        with open(number, "rb", closefd=False) as file:
            content = file.read(most + 1)
    finally:
        os.close(number)
    if len(content) > most:
        raise ValueError(f"{path.name} has more than {most} bytes")
    return content


def extract(archive: tarfile.TarFile, folder: pathlib.Path) -> None:
    """Extracts an archive of files and folders; of Python 3.11 too, whose `filter` came with 3.11.4.

    Raises tarfile.TarError if a member is a link or a device, or its path leaves the folder.
    """

    def checked() -> Iterator[tarfile.TarInfo]:
        for member in archive:
            if not (member.isfile() or member.isdir()) or not stays_inside(member.name):
                raise tarfile.ExtractError(f"{member.name!r} is a link or a device, or leaves the folder")
            yield member

    archive.extraction_filter = getattr(tarfile, "data_filter", None)
    archive.extractall(folder, checked())
