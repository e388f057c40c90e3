"""Writes files and folders that are whole or as they were, on a full disk and after a kill too. Free of TensorFlow."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import pathlib
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from common.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIX = "free some space there"
# The checkout, or the installed package; which of them it is.
ROOT = pathlib.Path(__file__).resolve().parents[1]
INSTALLED = __name__ != "common.files"
# numpy's and zipfile's, for a cut or altered file or one of another kind, when it is opened and when an array of it is
# read; NotImplementedError and RuntimeError where the altered bytes are flags of the archive.
NPZ_DAMAGE = (
    *(OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, zlib.error),
    *(NotImplementedError, RuntimeError),
)


@contextlib.contextmanager
def whole(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Where to make a file or a folder that gets its name `path` when the `with` block ends without an exception.

    The place is `path`'s own name in an empty folder `.NAME.<random>.partial` beside it, which is removed at the end;
    processes that write the same file do not meet. What is made there has the permissions that the umask leaves. A
    link stays one: what it points to is replaced. A device or a pipe is its own place.

    Args:
      path: of the file or folder; its parent exists. A folder of that name is replaced only by a folder, and only
        when it is empty.

    Raises:
      OSError: the parent cannot be written, or the disk is full; `path` is as it was, as after any other exception.
    """
    path = pathlib.Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
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


def left_behind(folder: pathlib.Path, pattern: str) -> list[pathlib.Path]:
    """Unfinished files in `folder` whose names match `pattern`: of killed processes, or of one that is writing now."""
    return list(folder.glob(f".{pattern}.*.partial"))


def write_atomically(path: pathlib.Path, data: bytes, fix: str = FIX) -> None:
    """Writes a file that is whole or absent, or as it was.

    Args:
      path: the file; its folder is made.
      data: its content.
      fix: what a person may do where it cannot be written.

    Raises:
      UserError: the folder is not writable, or the disk is full; so do the other functions.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as made:
            made.write_bytes(data)
    except OSError as error:
        raise UserError(f"{path}: cannot write: {error.strerror}; {fix}") from error


def write_csv(
    path: pathlib.Path, heads: Sequence[str], rows: Iterable[Sequence[Any]], fix: str = FIX
) -> None:
    """A table for programs."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(heads)
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode(), fix)


def write_text(path: pathlib.Path, text: str) -> None:
    """A table for people, which is printed too."""
    write_atomically(path, text.encode())
    print(text)


def write_rows(folder: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """results.csv and table.md; all rows have the fields of the first one."""
    write_csv(folder / "results.csv", list(rows[0]), [list(row.values()) for row in rows])
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(str(v) for v in row.values()) + " |" for row in rows]
    write_text(folder / "table.md", "\n".join(lines) + "\n")


def write_picture(path: pathlib.Path, figure: Figure, fix: str = FIX, **options: Any) -> None:
    """A PNG; the figure is closed. `options` are those of `Figure.savefig`."""
    from matplotlib import pyplot

    image = io.BytesIO()
    figure.savefig(image, format="png", **options)
    pyplot.close(figure)
    write_atomically(path, image.getvalue(), fix)


def copy(source: pathlib.Path, target: pathlib.Path) -> None:
    """A log or a picture of a run, as it is."""
    write_atomically(target, source.read_bytes())
