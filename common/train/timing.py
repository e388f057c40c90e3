"""Gives a run its times: seconds since 1970 by a clock that nobody sets during the run. TensorFlow-free.

The wall clock is read once, when this module is imported. Later times are that reading plus the monotonic clock's
advance, so a step of the wall clock (by hand, or by a time server) changes no duration and no score.
"""

import time

import numpy as np

# A smaller difference is a time server's usual correction; this project's choice.
JUMP_SECONDS = 1.0


def _offset() -> float:
    """Returns the wall clock less the monotonic clock; the smallest of a few readings, which has the least delay."""
    return min(-time.monotonic() + time.time() for _ in range(5))


_BEGAN = _offset()


def now() -> float:
    """Returns the present time in seconds since 1970; it never goes back."""
    return _BEGAN + time.monotonic()


def jump() -> float:
    """Returns by how many seconds the wall clock was set since the process began; 0 below `JUMP_SECONDS`."""
    seconds = _offset() - _BEGAN
    return seconds if abs(seconds) >= JUMP_SECONDS else 0.0


def mapped(times: np.ndarray, offset: float, first: float, last: float) -> np.ndarray:
    """Converts readings of the wall clock, in order, to times of `now`.

    Args:
      times: the readings, [n].
      offset: `now` less the wall clock, after the last reading.
      first, last: bounds of the times. They hold even if the wall clock was set in between; then the times that
        exceed them are moved to the nearest bound.
    """
    return np.maximum.accumulate(np.clip(times + offset, first, last)) if times.size else times
