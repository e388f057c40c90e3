"""Writes files and folders atomically: complete or unchanged, even on a full disk or after a kill. TensorFlow-free.

It also checks the names, paths and JSON that untrusted files contain (docs/security.md).
"""

from __future__ import annotations

import contextlib
import csv
import errno
import fcntl
import hashlib
import io
import json
import os
import pathlib
import re
import stat
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from common.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIX = "free space there"
_BLOCK = 1 << 20  # Bytes read at a time.
# Root of the checkout or installed package, and whether it is an installed package.
ROOT = pathlib.Path(__file__).resolve().parents[1]
INSTALLED = __name__ != "common.files"
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
    """Parses JSON text.

    Raises:
      ValueError: it is not JSON, or its brackets are nested too deeply.
    """
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
            raise ValueError(f"{path.name} is no regular file")
        with open(number, "rb", closefd=False) as file:
            content = file.read(most + 1)
    finally:
        os.close(number)
    if len(content) > most:
        raise ValueError(f"{path.name} has more than {most} bytes")
    return content


@contextlib.contextmanager
def whole(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yields a temporary path, and renames it to `path` if the `with` block ends without an exception.

    The temporary path has `path`'s name, in a new folder `.NAME.<random>.partial` beside it. The function removes that
    folder at the end. So processes that write the same file do not interfere. Permissions follow the umask. If `path`
    is a symbolic link, the link stays and its target is replaced. A device or a pipe is written directly.

    Args:
      path: the file or folder to write; its parent exists. Only a folder replaces an existing folder, and only an empty
        one.

    Raises:
      OSError: the parent cannot be written, or the disk is full. `path` is unchanged, as after any other exception.
    """
    path = pathlib.Path(path)
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        yield path
        return
    if path.is_symlink():
        path = pathlib.Path(os.path.realpath(path))
    with tempfile.TemporaryDirectory(
        prefix=f".{path.name}.", suffix=".partial", dir=path.parent, ignore_cleanup_errors=True
    ) as folder:
        made = pathlib.Path(folder, path.name)
        yield made
        os.replace(made, path)


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
    """Holds a lock on `folder`, so that only one process at a time updates a file in it.

    Raises:
      OSError: there is no such folder.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def check_there(path: str | os.PathLike, fix: str) -> None:
    """Raises UserError, with `fix` at its end, if the file does not exist; does not open it."""
    if not os.path.isfile(path):
        raise UserError(f"cannot read {path}: no such file; {fix}")


def sha256(*paths: str | os.PathLike) -> str:
    """Returns the SHA-256 of the concatenated contents of files, in hexadecimal.

    Raises:
      OSError: a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()


def left_behind(folder: pathlib.Path, pattern: str) -> list[pathlib.Path]:
    """Lists unfinished files in `folder` whose final names match `pattern`: left by a kill, or being written now."""
    return list(folder.glob(f".{pattern}.*.partial"))


def write_fix(error: OSError) -> str:
    """Returns how to help when a folder cannot be written: free space, or another folder."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return FIX if full else "name a folder that you can write to"


def try_to_write(folder: pathlib.Path, flag: str) -> list[pathlib.Path]:
    """Makes a folder and tries to write into it; returns the folders that it made, the outermost first.

    Raises:
      UserError: it cannot be written; the message names `flag`. No folder is left behind.
    """
    made = [place for place in (*reversed(folder.parents), folder) if not os.path.exists(place)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        remove_empty(made)
        raise UserError(f"{flag}={folder}: cannot write: {error.strerror}; {write_fix(error)}") from error
    return made


def remove_empty(folders: Sequence[pathlib.Path]) -> None:
    """Removes those of `folders`, the outermost first, that are empty."""
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()


def write_atomically(path: pathlib.Path, data: bytes, fix: str = "") -> None:
    """Writes a file atomically: after an error or a kill, it is absent or unchanged.

    Args:
      path: the file; its folder is created.
      data: its content.
      fix: what the error message tells the user to do; by default, what helps against the error.

    Raises:
      UserError: the folder is not writable, or the disk is full. The functions below raise this too.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as made:
            made.write_bytes(data)
    except OSError as error:
        raise UserError(f"{path}: cannot write: {error.strerror}; {fix or write_fix(error)}") from error


def write_csv(
    path: pathlib.Path,
    heads: Sequence[str],
    rows: Iterable[Sequence[Any]],
    fix: str = "",
    line_end: str = "\r\n",
) -> None:
    """Writes a CSV file with the header `heads`."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=line_end)
    writer.writerow(heads)
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode(), fix)


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a text for people and prints it."""
    write_atomically(path, text.encode())
    print(text)


def write_rows(folder: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes `rows` to results.csv in `folder` and prints them as a table; all rows have the same fields."""
    write_csv(folder / "results.csv", list(rows[0]), [list(row.values()) for row in rows])
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(str(v) for v in row.values()) + " |" for row in rows]
    print("\n".join(lines) + "\n")


def write_picture(path: pathlib.Path, figure: Figure, fix: str = "", **options: Any) -> None:
    """Writes `figure` as a PNG and closes it; `options` go to `Figure.savefig`."""
    from matplotlib import pyplot

    image = io.BytesIO()
    figure.savefig(image, format="png", **options)
    pyplot.close(figure)
    write_atomically(path, image.getvalue(), fix)


def copy(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies a file's content, such as a run's log or picture."""
    write_atomically(target, source.read_bytes())
