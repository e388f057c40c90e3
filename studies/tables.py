"""Tables and pictures of a study, each whole or as it was: what took hours to measure meets a full disk at the end."""

from __future__ import annotations

import csv
import io
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from common.results import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIX = "free some space there"


def write_csv(path: pathlib.Path, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table for programs.

    Raises:
      UserError: as `common.results.write_atomically`; so do the other functions.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(heads)
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode(), FIX)


def write_text(path: pathlib.Path, text: str) -> None:
    """A table for people, which is printed too."""
    write_atomically(path, text.encode(), FIX)
    print(text)


def write_rows(folder: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """results.csv and table.md; all rows have the fields of the first one."""
    write_csv(folder / "results.csv", list(rows[0]), [list(row.values()) for row in rows])
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(str(v) for v in row.values()) + " |" for row in rows]
    write_text(folder / "table.md", "\n".join(lines) + "\n")


def write_picture(path: pathlib.Path, figure: Figure, **options: Any) -> None:
    """A PNG; the figure is closed. `options` are those of `Figure.savefig`."""
    from matplotlib import pyplot

    image = io.BytesIO()
    figure.savefig(image, format="png", **options)
    pyplot.close(figure)
    write_atomically(path, image.getvalue(), FIX)


def copy(source: pathlib.Path, target: pathlib.Path) -> None:
    """A log or a picture of a run, as it is."""
    write_atomically(target, source.read_bytes(), FIX)
