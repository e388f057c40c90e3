"""Writes what the studies report: tables in Markdown, which they print, and pictures."""

import contextlib
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from timetotrain import figures


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Returns a Markdown table."""
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (head, ("---",) * len(head), *rows))


@contextlib.contextmanager
def picture(path: pathlib.Path, **labels: str) -> Iterator[Any]:
    """Yields the axes of a picture, with `labels` (xlabel, ylabel, title, yscale); writes a PNG with a legend."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), dpi=120)
    yield axes
    axes.set(**labels)
    axes.legend()
    figure.tight_layout()
    figures.write(path, figure)
