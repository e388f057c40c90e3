"""Files that are whole or as they were: what took hours to measure meets a full disk at the end. TensorFlow-free."""

from __future__ import annotations

import contextlib
import csv
import io
import pathlib
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
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


def write_atomically(path: pathlib.Path, data: bytes, fix: str = FIX) -> None:
    """Writes a file that is whole or absent, or as it was.

    Args:
      path: the file; its folder is made.
      data: its content.
      fix: what a person may do where it cannot be written.

    Raises:
      UserError: the folder is not writable, or the disk is full; so do the other functions.
    """
    temporary = path.with_suffix(path.suffix + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
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
