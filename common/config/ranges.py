"""Range checks for configuration fields, each with a one-line error. TensorFlow-free.

A field's path is its name after `--config.`: "width" or "data.max_boxes".
"""

import math
import operator
from collections.abc import Sequence
from typing import Any

from common.errors import UserError, near

# Interpolations of common/data/images.py, `resize`. Centres of pixels lie at half coordinates, as in TensorFlow 2 and
# PyTorch, or "legacy", at whole ones, as in TensorFlow 1. "antialiased" shrinks by a triangle as wide as the scale, as
# Pillow's BILINEAR and DALI's INTERP_TRIANGULAR.
RESIZES = ("antialiased", "bicubic", "bilinear", "legacy_bicubic", "legacy_bilinear")


def at_least(config: Any, least: int, *paths: str) -> None:
    """Raises UserError if one of the fields is below `least`."""
    for path in paths:
        # `not (value >= least)`, so that nan fails.
        if not (value := _get(config, path)) >= least:
            raise UserError(f"config.{path}={value}: must be at least {least}")


def positive(config: Any, *paths: str) -> None:
    """Raises UserError if one of the fields is not a finite number above 0."""
    for path in paths:
        if not 0 < (value := _get(config, path)) < math.inf:
            raise UserError(f"config.{path}={value}: must be positive")


def interval(config: Any, *paths: str) -> None:
    """Raises UserError if one of the fields is not a range LOW,HIGH of positive numbers."""
    for path in paths:
        value = _get(config, path)
        if len(value) != 2 or not 0 < value[0] <= value[1] < math.inf:
            raise UserError(f"config.{path}={value}: must be two numbers above 0, the lower one first")


def fraction(config: Any, *paths: str) -> None:
    """Raises UserError if one of the fields, such as a dropout rate, is not in [0, 1)."""
    for path in paths:
        if not 0 <= (value := _get(config, path)) < 1:
            raise UserError(f"config.{path}={value}: must be at least 0 and below 1")


def part(config: Any, *paths: str) -> None:
    """Raises UserError if one of the fields is not in (0, 1]."""
    for path in paths:
        if not 0 < (value := _get(config, path)) <= 1:
            raise UserError(f"config.{path}={value}: must be above 0 and at most 1")


def within(config: Any, low: float, high: float, *paths: str) -> None:
    """Raises UserError if one of the fields, or of its numbers, is not in [low, high]."""
    for path in paths:
        value = _get(config, path)
        if not all(low <= x <= high for x in (value if isinstance(value, tuple) else (value,))):
            raise UserError(f"config.{path}={value}: must be from {low:g} to {high:g}")


def one_of(config: Any, path: str, known: Sequence[str]) -> None:
    """Raises UserError, with the nearest `known` value, if the field's value is not known."""
    if (value := _get(config, path)) not in known:
        raise UserError(
            f"config.{path}={value!r}: unknown{near(str(value), known)}; known: {', '.join(known)}"
        )


def _get(config: Any, path: str) -> Any:
    return operator.attrgetter(path)(config)
