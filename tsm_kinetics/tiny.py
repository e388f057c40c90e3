"""Generates the cpu-tiny data set: mp4 files of soft blobs that move left, right, up or down.

A class is a direction. Blobs of random position, size and color move together and wrap around at the edges. So every
frame of every class has the same distribution, and neither a single frame nor an unordered set of frames distinguishes
left from right. The videos are encoded, decoded and converted like any other.

    python -m tsm_kinetics.tiny DATA_DIR
"""

import dataclasses
import functools
import os
import sys
from pathlib import Path

import numpy as np

from common.data import tiny_data, videos
from tsm_kinetics import convert

CLASSES = ("down", "left", "right", "up")  # Alphabetical, the converter's order.
_DIRECTIONS = {"down": (1, 0), "left": (0, -1), "right": (0, 1), "up": (-1, 0)}
VERSION = 1  # Version of the drawing code: raise it when the same settings give different videos.


@dataclasses.dataclass(frozen=True)
class Tiny:
    """Number, size and difficulty of the videos. Lengths are in pixels; gray values are 0..1.

    Attributes:
      seed: seeds all draws.
      size: side of a frame.
      frames: frames per video.
      train_videos, eval_videos: videos per set; the second is not a multiple of a batch, so that padding occurs.
      train_files, eval_files: number of shards.
      blobs: blobs per frame.
      radius: range of a blob's standard deviation.
      speed: range of pixels per frame.
      noise: standard deviation of the noise on each value, fresh in every frame.
    """

    seed: int = 8
    size: int = 36
    frames: int = 12
    train_videos: int = 640
    eval_videos: int = 203
    train_files: int = 4
    eval_files: int = 2
    blobs: int = 4
    radius: tuple[float, float] = (2.0, 4.0)
    speed: tuple[float, float] = (2.0, 4.0)
    noise: float = 0.05


TINY = Tiny()


def draw(tiny: Tiny, split: str, number: int) -> tuple[str, np.ndarray]:
    """Draws one video of a split, "train" or "validation": (class, uint8 [T, S, S, 3])."""
    rng = np.random.default_rng([tiny.seed, split == "validation", number])
    name = CLASSES[number % len(CLASSES)]
    velocity = np.array(_DIRECTIONS[name]) * rng.uniform(*tiny.speed)
    places = rng.uniform(0, tiny.size, [tiny.blobs, 2])
    radius = rng.uniform(*tiny.radius, [tiny.blobs, 1, 1])
    colors = rng.uniform(-0.4, 0.4, [tiny.blobs, 3])
    grid = np.arange(tiny.size)
    frames = np.empty([tiny.frames, tiny.size, tiny.size, 3])
    for time in range(tiny.frames):
        at = places + velocity * time
        # Distances on the torus.
        y, x = ((grid - at[:, axis, None] + tiny.size / 2) % tiny.size - tiny.size / 2 for axis in (0, 1))
        blobs = np.exp(-(y[:, :, None] ** 2 + x[:, None, :] ** 2) / (2 * radius**2))
        frames[time] = 0.5 + np.einsum("nyx,nc->yxc", blobs, colors)
    frames += tiny.noise * rng.standard_normal(frames.shape)
    return name, (frames.clip(0, 1) * 255 + 0.5).astype(np.uint8)


def generate(data_dir: str | os.PathLike, tiny: Tiny = TINY) -> None:
    """Fills `data_dir` with the videos and their shards; does nothing if the same set is already there.

    Raises UserError if the folder holds other data, or cannot be written.
    """

    def write(folder: Path) -> None:
        clips = folder / "videos"
        splits = {}
        for split, count, files in (
            ("train", tiny.train_videos, tiny.train_files),
            ("validation", tiny.eval_videos, tiny.eval_files),
        ):
            for number in range(count):
                name, frames = draw(tiny, split, number)
                target = clips / split / name / f"{split}_{number:05d}.mp4"
                target.parent.mkdir(parents=True, exist_ok=True)
                videos.write(target, frames)
            splits[split] = convert.items(clips / split), files
        convert.convert(folder, splits)

    settings = {**dataclasses.asdict(tiny), "version": VERSION}
    tiny_data.make("tsm_kinetics", data_dir, settings, ["*"], write)


main = functools.partial(tiny_data.main, "tsm_kinetics", generate, "videos and the TFRecords")


if __name__ == "__main__":
    sys.exit(main())
