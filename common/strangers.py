"""Checks what files of strangers say: names, paths, JSON. TensorFlow-free.

docs/security.md lists what is promised of every kind of file, and the tests that hold it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import stat
from collections.abc import Iterator
from typing import Any

from common.errors import UserError

# Names that Windows gives to devices, whatever their suffix.
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_NAME_BYTES = 255  # The longest name that common file systems take.


def is_plain_name(name: object) -> bool:
    """Whether a name is safe as the name of a file in a folder of ours, on any system.

    It is no path (no separator, drive, "." or ".."), no hidden file, no device, and it is printable.
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
    """Whether a path stays in the folder that it counts from; links on the disk are not looked at."""
    text = os.fspath(path)
    parts = re.split(r"[/\\]", text)
    return "\0" not in text and not os.path.isabs(text) and os.path.pardir not in parts


def parsed(text: str | bytes) -> Any:
    """Returns the values of a JSON text.

    Raises:
      ValueError: it is no JSON, or its brackets are nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("brackets nested too deeply") from error


def read_plain(path: pathlib.Path, most: int) -> bytes:
    """Returns the content of a regular file of at most `most` bytes.

    Raises:
      OSError: it cannot be read.
      ValueError: it is a link, a folder, a pipe or a device, or longer.
    """
    if path.is_symlink():
        raise ValueError(f"{path.name} is a link; put the file itself there")
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path.name} is no regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{path.name} has more than {most} bytes")
    return content


@contextlib.contextmanager
def one_line(what: str, fix: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turns whatever a stranger's file makes a library raise into a UserError of one line, but for `passing`.

    Where a file describes a network, any layer can raise anything about it: no list of exceptions is complete.
    """
    try:
        yield
    except (UserError, *passing):
        raise
    except MemoryError as error:
        raise UserError(f"{what}: asks for more memory than there is; {fix}") from error
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")[:200]
        raise UserError(f"{what}: {type(error).__name__}: {reason}; {fix}") from error
