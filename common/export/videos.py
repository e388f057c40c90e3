"""Answers for a video: labels for its parts over time, and for the whole video."""

from __future__ import annotations

import io
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from common.data.videos import MOST_FRAMES, MOST_PIXELS, opened
from common.errors import UserError

PART = 4.0  # Seconds per part; each part gets its own label.
SHORT_SIDE = 256  # Pixels; larger videos are scaled down, as in the converter for training videos.


def answer(network: Any, name: str, part: float = PART) -> dict[str, Any]:
    """Returns "classes" for the whole video, and "times": [{from, to, name, score}] for parts of `part` seconds.

    Raises:
      UserError: the file is not a video that can be decoded.
    """
    frames, times = read(name)
    whole = network(_array(frames))
    return {
        "file": name,
        "seconds": round(times[-1], 3),
        "classes": _named(whole),
        "times": [
            {
                "from": round(times[first], 3),
                "to": round(times[last], 3),
                **_named(network(_array(frames[first:last])))[0],
            }
            for first, last in parts(times, part)
        ],
    }


def parts(times: Sequence[float], part: float) -> list[tuple[int, int]]:
    """Returns frames (first, last + 1) for parts of about `part` seconds each; `times` ends with the video's end."""
    count = max(1, round(times[-1] / part))
    ends = np.searchsorted(times[:-1], np.arange(count + 1) * times[-1] / count)
    return [(int(a), int(b)) for a, b in zip(ends, ends[1:]) if b > a]


def read(name: str) -> tuple[list[bytes], list[float]]:
    """Decodes a video; returns its frames as JPEG files, and each frame's start in seconds plus the video's end."""
    try:
        import av
    except ImportError as error:
        raise UserError(f"{name}: reading videos needs PyAV; pip install av") from error
    frames, times, span = [], [], Fraction(1, 25)
    try:
        with opened(name) as container:
            if not container.streams.video:
                raise UserError(f"{name}: holds no video; leave it out")
            stream = container.streams.video[0]
            rate = stream.average_rate or stream.guessed_rate
            span = 1 / Fraction(rate) if rate else span
            for frame in container.decode(stream):
                if frame.width * frame.height > MOST_PIXELS or len(frames) >= MOST_FRAMES:
                    raise UserError(
                        f"{name}: its frames are too large or too many; cut it into shorter videos"
                    )
                frames.append(_jpeg(frame))
                times.append(float(frame.time) if frame.time is not None else len(times) * float(span))
    except (av.error.FFmpegError, OSError, ValueError) as error:
        if not frames:
            raise UserError(f"{name}: cannot be decoded ({error}); name a video") from error
    if not frames:
        raise UserError(f"{name}: holds no frame; leave it out")
    begin = times[0]
    return frames, [*(time - begin for time in times), times[-1] - begin + float(span)]


def _jpeg(frame: Any) -> bytes:
    picture = frame.to_image()
    scale = SHORT_SIDE / min(picture.size)
    if scale < 1:
        picture = picture.resize([max(1, round(side * scale)) for side in picture.size])
    encoded = io.BytesIO()
    picture.save(encoded, "JPEG", quality=92)
    return encoded.getvalue()


def _array(frames: Sequence[bytes]) -> np.ndarray:
    return np.array([*frames, b""], object)[:-1]


def _named(found: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    return [
        {"name": name.decode(errors="replace"), "score": round(float(score), 6)}
        for name, score in zip(found["top_names"][0], found["top_scores"][0])
    ]
