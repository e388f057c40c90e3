"""Generates the data set of cpu-tiny: textured figures, in the layout of ImageNet's TFRecords.

A class is a pair (shape, texture): a figure of one shape, filled with one texture, on a background with a faint
texture. Every shape comes with every texture. Colors, place, size, angle, texture phase and period are random, so
neither color nor shape nor texture alone identifies the class. Figures and textures are their own mirror images up to
a rotation, so a flip keeps the class.

    python -m resnet.tiny DATA_DIR
"""

import dataclasses
import functools
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from common.data import record_counts, tfrecords, tiny_data

SHAPES = ("circle", "square", "triangle", "cross")
TEXTURES = ("stripes", "checks", "dots")
NUM_CLASSES = len(SHAPES) * len(TEXTURES)
SPLITS = ("train", "validation")
VERSION = 1  # Version of the drawing code: raise it when the same settings give different pictures.
_CHUNK = 100  # Images per drawing call.
# Step between the classes of consecutive images; shares no factor with NUM_CLASSES, so that all classes occur.
_STRIDE = 5


@dataclasses.dataclass(frozen=True)
class Tiny:
    """Number, size and difficulty of the images. Lengths are fractions of the image's side; gray values are 0..1.

    Attributes:
      seed: seeds all draws.
      image_size: side of the stored JPEG, in pixels.
      train_images, eval_images: images per set; the second is not a multiple of a batch, so that padding occurs.
      train_files, eval_files: number of shards.
      jpeg_quality: quality setting of the JPEG encoder.
      radius: range of half the figure's extent.
      offset: maximum distance between the figure's center and the image's center.
      rotation: angles are drawn from +-rotation, in degrees.
      period: range of the texture's period.
      contrast: range of the gray difference between a texture's two colors.
      ground_contrast: range of the background texture's contrast; 0 makes it plain.
      noise: standard deviation of the noise on each value.
    """

    seed: int = 20
    image_size: int = 40
    train_images: int = 4000
    eval_images: int = 2037
    train_files: int = 8
    eval_files: int = 4
    jpeg_quality: int = 92
    radius: tuple[float, float] = (0.30, 0.42)
    offset: float = 0.05
    rotation: float = 20.0
    period: tuple[float, float] = (0.18, 0.26)
    contrast: tuple[float, float] = (0.50, 0.75)
    ground_contrast: tuple[float, float] = (0.0, 0.12)
    noise: float = 0.03


TINY = Tiny()


def draw(tiny: Tiny, split: str, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws images `first` .. `first + count - 1` of a split, "train" or "validation"; `first` seeds the draw.

    Returns (uint8 [count, S, S, 3], int64 [count] classes from 0, evenly spread).
    """
    rng = np.random.default_rng([tiny.seed, SPLITS.index(split), first])

    def between(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, [count, 1, 1]).astype(np.float32)

    labels = np.arange(first, first + count) * _STRIDE % NUM_CLASSES
    shapes, textures = np.divmod(labels, len(TEXTURES))
    u, v = _frame(tiny, rng, count)
    inside = _figure(shapes, u, v, between(*tiny.radius))
    period = between(*tiny.period)
    figure = _texture(textures, u / period + between(0, 1), v / period + between(0, 1))
    gu, gv = _turned(u, v, between(0, 2 * np.pi))
    others = rng.integers(len(TEXTURES), size=count)
    ground = _texture(others, gu / period + between(0, 1), gv / period + between(0, 1))
    cover, filled = _averaged(inside), _averaged(inside & figure)
    texture = filled / np.maximum(cover, 1e-6)
    image = _painted(rng, _averaged(ground), between(*tiny.ground_contrast))
    image += cover[..., None] * (_painted(rng, texture, between(*tiny.contrast)) - image)
    image += tiny.noise * rng.standard_normal(image.shape, np.float32)
    return (image.clip(0, 1) * 255 + 0.5).astype(np.uint8), labels.astype(np.int64)


def _averaged(mask: np.ndarray) -> np.ndarray:
    """Averages 2x2 blocks, bool [n, P, P] -> float32 [n, S, S]: the fraction of each pixel that is True."""
    rows = mask[:, 0::2].astype(np.float32) + mask[:, 1::2]
    return (rows[:, :, 0::2] + rows[:, :, 1::2]) / 4


def _turned(u: np.ndarray, v: np.ndarray, angle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.cos(angle) * u + np.sin(angle) * v, np.cos(angle) * v - np.sin(angle) * u


def _frame(tiny: Tiny, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Computes pixel coordinates in the figure's moved and rotated frame, in image sides: 2 x [n, P, P]."""
    pixels = tiny.image_size * 2  # Drawn larger and averaged, for smooth edges.
    line = (np.arange(pixels, dtype=np.float32) + 0.5) / pixels - 0.5
    shift = rng.uniform(-tiny.offset, tiny.offset, [2, count, 1, 1]).astype(np.float32)
    angle = np.deg2rad(rng.uniform(-tiny.rotation, tiny.rotation, [count, 1, 1])).astype(np.float32)
    x, y = np.broadcast_arrays(line[None, None, :] - shift[0], line[None, :, None] - shift[1])
    return _turned(x, y, angle)


def _figure(shapes: np.ndarray, u: np.ndarray, v: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """Marks the pixels inside the figure: bool [n, P, P]. All shapes have similar areas, so area gives no hint."""
    u, v = u / radius, v / radius
    inside = np.empty(u.shape, bool)
    for number, shape in enumerate(SHAPES):
        images = shapes == number
        a, b = u[images], v[images]
        if shape == "circle":
            inside[images] = a**2 + b**2 < 0.87**2
        elif shape == "square":
            inside[images] = np.maximum(abs(a), abs(b)) < 0.77
        elif shape == "triangle":  # Equilateral; its sides are 0.675 from the center.
            inside[images] = np.maximum(b, 0.75**0.5 * abs(a) - b / 2) < 0.675
        else:  # A cross of two bars.
            inside[images] = (np.minimum(abs(a), abs(b)) < 0.36) & (np.maximum(abs(a), abs(b)) < 1.0)
    return inside


def _texture(textures: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Chooses one of two colors at each (u, v), in texture periods: bool [n, P, P]."""
    wave_u, wave_v = np.cos(2 * np.pi * u), np.cos(2 * np.pi * v)
    kinds = {"stripes": wave_u > 0, "checks": wave_u * wave_v > 0, "dots": wave_u + wave_v > 0.8}
    return np.select(
        [(textures == i)[:, None, None] for i in range(len(TEXTURES))], [kinds[t] for t in TEXTURES]
    )


def _painted(rng: np.random.Generator, texture: np.ndarray, contrast: np.ndarray) -> np.ndarray:
    """Paints a texture, 0..1 [n, S, S], in two random colors that differ by `contrast` in gray: [n, S, S, 3]."""
    count = len(texture)
    hue = rng.uniform(-0.15, 0.15, [count, 2, 3])
    hue -= hue.mean(-1, keepdims=True)
    half = contrast[:, 0, 0] / 2
    middle = rng.uniform(0.1 + half, 0.9 - half)
    sign = rng.choice([-1, 1], count)
    gray = np.stack([middle - sign * half, middle + sign * half], -1)
    first, second = np.moveaxis(gray[..., None] + hue, 1, 0)[:, :, None, None, :].astype(np.float32)
    return first + texture[..., None] * (second - first)


def examples(tiny: Tiny, split: str) -> Iterator[bytes]:
    """Yields the split's serialized examples, with the features of ImageNet's converters; labels count from 1."""
    total = tiny.train_images if split == "train" else tiny.eval_images
    for first in range(0, total, _CHUNK):
        images, labels = draw(tiny, split, first, min(_CHUNK, total - first))
        for number, (image, label) in enumerate(zip(images, labels), first):
            encoded = io.BytesIO()
            Image.fromarray(image).save(encoded, "JPEG", quality=tiny.jpeg_quality)
            shape, texture = divmod(int(label), len(TEXTURES))
            yield tfrecords.example(
                {
                    "image/encoded": encoded.getvalue(),
                    "image/format": "JPEG",
                    "image/colorspace": "RGB",
                    "image/channels": 3,
                    "image/height": tiny.image_size,
                    "image/width": tiny.image_size,
                    "image/filename": f"{split}_{number:05d}.JPEG",
                    "image/class/label": int(label) + 1,
                    "image/class/synset": f"{SHAPES[shape]}_{TEXTURES[texture]}",
                    "image/class/text": f"{TEXTURES[texture]} {SHAPES[shape]}",
                }
            )


def generate(data_dir: str | os.PathLike, tiny: Tiny = TINY) -> None:
    """Writes train-* and validation-* into `data_dir`; does nothing if the same set is already there.

    Raises UserError if the folder holds other TFRecords, or cannot be written.
    """

    def write(folder: Path) -> None:
        files = ("train", tiny.train_files), ("validation", tiny.eval_files)
        for split, total in files:
            serialized = list(examples(tiny, split))
            for i in range(total):
                tfrecords.write(folder / tfrecords.shard_name(split, i, total), serialized[i::total])
        record_counts.write(folder, tfrecords.shard_names(files))

    settings = {**dataclasses.asdict(tiny), "version": VERSION}
    patterns = [*(f"{split}-*-of-*" for split in SPLITS), record_counts.NAME]
    tiny_data.make("resnet", data_dir, settings, patterns, write)


main = functools.partial(tiny_data.main, "resnet", generate, "TFRecords")


if __name__ == "__main__":
    sys.exit(main())
