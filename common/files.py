"""Writes files and folders atomically: complete or unchanged, even on a full disk or after a kill. TensorFlow-free."""

import contextlib
import csv
import errno
import fcntl
import hashlib
import io
import os
import pathlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence

from common.errors import UserError

FIX = "free space there"
_BLOCK = 1 << 20  # Bytes read at a time.
# Root of the checkout or installed package, and whether it is an installed package.
ROOT = pathlib.Path(__file__).resolve().parents[1]
INSTALLED = __name__ != "common.files"


@contextlib.contextmanager
def whole(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yields a temporary path, and renames it to `path` if the `with` block ends without an exception.

    The temporary path has `path`'s name, in a new folder `.NAME.<random>.partial` beside it. The function removes that
    folder at the end. So processes that write the same file do not interfere. Permissions follow the umask. If `path`
    is a symbolic link, the link stays and its target is replaced. A device or a pipe is written directly. Raises
    OSError if the parent cannot be written, or the disk is full. `path` is unchanged, as after any other exception.

    Args:
      path: the file or folder to write; its parent exists. Only a folder replaces an existing folder, and only an empty
        one.
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
        partial = pathlib.Path(folder, path.name)
        yield partial
        os.replace(partial, path)


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
    """Holds a lock on `folder`, so that only one process at a time updates a file in it.

    Raises OSError if there is no such folder.
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

    Raises OSError if a file cannot be read.
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

    Raises UserError if it cannot be written; the message names `flag`. No folder is left behind.
    """
    absent = [place for place in (*reversed(folder.parents), folder) if not os.path.exists(place)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        remove_empty(absent)
        raise UserError(f"{flag}={folder}: cannot write: {error.strerror}; {write_fix(error)}") from error
    return absent


def remove_empty(folders: Sequence[pathlib.Path]) -> None:
    """Removes those of `folders`, the outermost first, that are empty."""
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()


def write_atomically(path: pathlib.Path, data: bytes, fix: str = "") -> None:
    """Writes a file atomically: after an error or a kill, it is absent or unchanged.

    Raises UserError if the folder is not writable, or the disk is full. The functions below raise this too.

    Args:
      path: the file; its folder is created.
      fix: what the error message tells the user to do; by default, what helps against the error.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as partial:
            partial.write_bytes(data)
    except OSError as error:
        raise UserError(f"{path}: cannot write: {error.strerror}; {fix or write_fix(error)}") from error


def write_csv(
    path: pathlib.Path, heads: Sequence[str], rows: Iterable[Iterable], fix: str = "", line_end: str = "\r\n"
) -> None:
    """Writes a CSV file with the header `heads`; half of a surrogate pair, which has no UTF-8 form, is escaped."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=line_end)
    writer.writerow(heads)
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode(errors="backslashreplace"), fix)


def markdown_table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table in Markdown."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a text for people and prints it."""
    write_atomically(path, text.encode())
    print(text)


def copy(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies a file's content, such as a run's log or picture."""
    write_atomically(target, source.read_bytes())
