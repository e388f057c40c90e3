"""Draws the pictures of the studies."""

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from timetotrain import figures


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
