"""Generates the cpu-tiny data set in MNIST's file format: noisy digits made of moved, rotated, stretched strokes.

python -m mnist.tiny DATA_DIR
"""

import dataclasses
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common.data import tiny_data
from mnist import idx

VERSION = 1  # Version of the drawing code: raise it when the same settings give different pictures.
# Corners of a grid (x to the right, y down), then the pairs of corners that each digit's strokes join.
_CORNERS = {"a": (-0.5, -1), "b": (0.5, -1), "c": (-0.5, 0), "d": (0.5, 0), "e": (-0.5, 1), "f": (0.5, 1)}
_STROKES = ("ab bf fe ea", "bf", "ab bd dc ce ef", "ab bd dc df fe", "ac cd bf", "ba ac cd df fe")
_STROKES += ("ba ae ef fd dc", "ab be", "ab bf fe ea cd", "dc ca ab bf fe")


@dataclasses.dataclass(frozen=True)
class Tiny:
    """Number and difficulty of the images. Lengths are fractions of half the image's side; gray values are 0..1.

    Attributes:
      seed: seeds all draws.
      train_images, eval_images: images per set; the second is not a multiple of a batch, so that padding occurs.
      image_size: side, in pixels.
      height: range of half a digit's height.
      offset: maximum distance between the digit's center and the image's center along each axis.
      rotation: angles are drawn from +-rotation, in degrees.
      slant: shear is drawn from +-slant.
      thickness: range of half a stroke's width.
      noise: standard deviation of the noise on each pixel.
    """

    seed: int = 28
    train_images: int = 4000
    eval_images: int = 1037
    image_size: int = 28
    height: tuple[float, float] = (0.5, 0.75)
    offset: float = 0.15
    rotation: float = 15.0
    slant: float = 0.3
    thickness: tuple[float, float] = (0.06, 0.14)
    noise: float = 0.15


TINY = Tiny()


def draw(tiny: Tiny, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Draws a split, "train" or "test": (uint8 [N, S, S], evenly spread labels uint8 [N])."""
    count = tiny.train_images if split == "train" else tiny.eval_images
    rng = np.random.default_rng([tiny.seed, split == "test"])
    labels = rng.permutation(np.arange(count) % 10)
    line = (np.arange(tiny.image_size) + 0.5) / tiny.image_size * 2 - 1
    x, y = (grid[None] for grid in np.meshgrid(line, line))

    def between(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, [count, 1, 1])

    x, y = x - between(-tiny.offset, tiny.offset), y - between(-tiny.offset, tiny.offset)
    angle = np.deg2rad(between(-tiny.rotation, tiny.rotation))
    height = between(*tiny.height)
    u, v = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
    u, v = (u + between(-tiny.slant, tiny.slant) * v) / height, v / height
    distance = np.empty(u.shape)
    for digit, strokes in enumerate(_STROKES):
        images = labels == digit
        distance[images] = _distance(u[images], v[images], strokes.split())
    edge = 2 / tiny.image_size  # One pixel, the width over which a stroke's edge fades.
    image = np.clip((between(*tiny.thickness) - distance * height) / edge + 0.5, 0, 1) * between(0.7, 1)
    image += tiny.noise * rng.standard_normal(image.shape)
    return (image.clip(0, 1) * 255 + 0.5).astype(np.uint8), labels.astype(np.uint8)


def _distance(u: np.ndarray, v: np.ndarray, strokes: Sequence[str]) -> np.ndarray:
    """Computes each point's distance from the nearest stroke."""
    nearest = np.full(u.shape, np.inf)
    for first, last in strokes:
        (x0, y0), (x1, y1) = _CORNERS[first], _CORNERS[last]
        dx, dy = x1 - x0, y1 - y0
        along = np.clip(((u - x0) * dx + (v - y0) * dy) / (dx * dx + dy * dy), 0, 1)
        nearest = np.minimum(nearest, np.hypot(u - x0 - along * dx, v - y0 - along * dy))
    return nearest


def generate(data_dir: str | os.PathLike, tiny: Tiny = TINY) -> None:
    """Writes the four files into `data_dir`; does nothing if the same set is already there.

    Raises UserError if the folder holds other idx files, or cannot be written.
    """

    def write(folder: Path) -> None:
        for split, names in idx.FILES.items():
            for name, array in zip(names, draw(tiny, split)):
                idx.write(folder / f"{name}.gz", array)

    settings = {**dataclasses.asdict(tiny), "version": VERSION}
    tiny_data.make("mnist", data_dir, settings, ["*-ubyte*"], write)


main = functools.partial(tiny_data.main, "mnist", generate, "idx files")


if __name__ == "__main__":
    sys.exit(main())
