"""Writes matplotlib's figures. TensorFlow-free."""

from __future__ import annotations

import io
import pathlib
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
