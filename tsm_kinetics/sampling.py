"""Draws a clip's frames and their crop from a key, in numpy, without reading the video.

The rules follow mit-han-lab/temporal-shift-module (ops/dataset.py, ops/transforms.py; docs/sources.md, mlperf 2).
"""

import numpy as np

from tsm_kinetics.config import Data

_TRAIN_STREAM = 0x7563  # Makes these draws' key differ from other keys with the same seed.


def generator(seed: int, epoch: int, video: int) -> np.random.Generator:
    """Creates the generator for all draws for one video in one epoch."""
    return np.random.default_rng(np.random.SeedSequence([seed % 2**63, _TRAIN_STREAM, epoch, video]))


def train_frames(count: int, frames: int, data: Data, rng: np.random.Generator) -> np.ndarray:
    """Draws the frame indices, [frames], of a training clip from a video of `count` frames.

    "dense": every (window / frames)-th frame from a random start, uniform over the starts where the window fits but for
    the last; indices wrap modulo `count` if the video is shorter. "uniform": one random frame from each of `frames`
    equal segments of whole frames; a video with fewer frames repeats some.
    """
    if data.sampling == "dense":
        start = int(rng.integers(max(1, count - data.window)))  # Never the last that fits (ops/dataset.py).
        return _dense(count, frames, data, start)
    if count < frames:
        return ((np.arange(frames) + rng.random(frames)) * (count / frames)).astype(np.int64)
    return np.arange(frames) * (count // frames) + rng.integers(count // frames, size=frames)


def eval_frames(count: int, frames: int, data: Data) -> np.ndarray:
    """Lists the frame indices, [clips, frames], of an evaluation's clips; equally spaced, the same every time."""
    clips = data.eval_clips
    if data.sampling == "dense":
        starts = np.linspace(0, max(0, count - data.window), clips, dtype=np.int64)
        return np.stack([_dense(count, frames, data, start) for start in starts])
    # One clip has the middle of each segment.
    places = (np.arange(clips)[:, None] + 0.5) / clips + np.arange(frames)
    return np.minimum(places * count / frames, count - 1).astype(np.int64)


def _dense(count: int, frames: int, data: Data, start: int) -> np.ndarray:
    return (start + np.arange(frames) * (data.window // frames)) % count


def train_window(height: int, width: int, size: int, data: Data, rng: np.random.Generator) -> np.ndarray:
    """Draws (top, left, height, width) of a training crop: GroupMultiScaleCrop.

    Height and width are the short side times equal or neighboring entries of `data.scales`; a side less than 3 pixels
    from `size`, the network's, becomes it. There are 13 positions.
    """
    short = min(height, width)
    sides = [max(1, int(short * scale)) for scale in data.scales]
    sides = [min(size, short) if abs(side - size) < 3 else side for side in sides]
    pairs = [(h, w) for i, h in enumerate(sides) for j, w in enumerate(sides) if abs(i - j) <= 1]
    crop_height, crop_width = pairs[int(rng.integers(len(pairs)))]
    down, right = (height - crop_height) // 4, (width - crop_width) // 4
    # Corners, center, edge midpoints, and centers of the four quarters.
    places = [
        (0, 0), (0, 4), (4, 0), (4, 4), (2, 2), (2, 0), (2, 4), (4, 2), (0, 2), (1, 1), (1, 3), (3, 1),
        (3, 3),
    ]  # fmt: skip
    top, left = places[int(rng.integers(len(places)))]
    return np.array([top * down, left * right, crop_height, crop_width], np.int32)


def train_factors(data: Data, rng: np.random.Generator) -> np.ndarray:
    """Draws the factors (brightness, saturation, contrast) of a training clip; without jitter it draws nothing."""
    if not data.jitter:
        return np.ones(3, np.float32)
    return rng.uniform(1 - data.jitter, 1 + data.jitter, 3).astype(np.float32)


def eval_windows(height: int, width: int, data: Data) -> np.ndarray:
    """Lists windows (top, left, side, side), [crops, 4]: the center, or both ends of the long side and the center.

    A window's side is the short side times eval_size / eval_short_side, so that scaling the window to eval_size scales
    the short side to eval_short_side.
    """
    side = max(1, round(min(height, width) * data.eval_size / data.eval_short_side))
    room = np.array([height - side, width - side])
    center = room // 2
    if data.eval_crops == 1:
        corners = [center]
    else:
        along = int(np.argmax([height, width]))
        corners = []
        for part in (0, 1, 2):
            corner = center.copy()
            corner[along] = room[along] * part // 2
            corners.append(corner)
    return np.array([[*corner, side, side] for corner in corners], np.int32)
