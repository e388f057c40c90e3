"""Answers for a video: labels for its parts over time, and for the whole video."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from common.data import videos

PART = 4.0  # Seconds per part; each part gets its own label.


def answer(network: Any, name: str) -> dict[str, Any]:
    """Returns "classes" for the whole video, and "times": [{from, to, name, score}] for parts of PART seconds.

    Raises BadVideoError if the file is not a video that can be decoded.
    """
    clip = videos.read(name, network.reading.short_side)
    frames, times = clip.frames, clip.times
    return {
        "file": name,
        "seconds": round(times[-1], 3),
        "classes": network.classes(frames)[0],
        "times": [
            {
                "from": round(times[first], 3),
                "to": round(times[last], 3),
                **network.classes(frames[first:last])[0][0],
            }
            for first, last in parts(times, PART)
        ],
    }


def parts(times: Sequence[float], part: float) -> list[tuple[int, int]]:
    """Returns frames (first, last + 1) for parts of about `part` seconds each; `times` ends with the video's end.

    There are at most as many parts as frames: a damaged file may claim any duration.
    """
    count = min(max(1, round(times[-1] / part)), max(1, len(times) - 1))
    ends = np.searchsorted(times[:-1], np.arange(count + 1) * times[-1] / count)
    return [(int(a), int(b)) for a, b in zip(ends, ends[1:]) if b > a]
