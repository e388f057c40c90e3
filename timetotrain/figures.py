"""Writes matplotlib's figures. TensorFlow-free."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from common.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write(path: pathlib.Path, figure: Figure, fix: str = "", **options: Any) -> None:
    """Writes `figure` as a PNG and closes it; `options` go to `Figure.savefig`."""
    from matplotlib import pyplot

    image = io.BytesIO()
    figure.savefig(image, format="png", **options)
    pyplot.close(figure)
    write_atomically(path, image.getvalue(), fix)


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
    write(path, figure)
