"""Range checks for configuration fields, each with a one-line error. TensorFlow-free.

A field's path is its name after `--config.`: "width" or "data.max_boxes".
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from common.errors import UserError, near

# Interpolations of common/data/images.py, `resize`. Centers of pixels lie at half coordinates, as in TensorFlow 2 and
# PyTorch, or "legacy", at whole ones, as in TensorFlow 1. "antialiased" shrinks by a triangle as wide as the scale, as
# Pillow's BILINEAR and DALI's INTERP_TRIANGULAR.
RESIZES = ("antialiased", "bicubic", "bilinear", "legacy_bicubic", "legacy_bilinear")


def at_least(config: Any, least: int, *paths: str) -> None:
    """Raises UserError if one of the fields is below `least`."""
    _check(config, paths, lambda value: value >= least, f"at least {least}")


def positive(config: Any, *paths: str) -> None:
    """Raises UserError if one of the fields is not a finite number above 0."""
    _check(config, paths, lambda value: 0 < value < math.inf, "positive")


def interval(config: Any, *paths: str) -> None:
    """Raises UserError if one of the fields is not a range LOW,HIGH of positive numbers."""
    must = "two numbers above 0, the lower one first"
    _check(config, paths, lambda value: len(value) == 2 and 0 < value[0] <= value[1] < math.inf, must)


def fraction(config: Any, *paths: str) -> None:
    """Raises UserError if one of the fields, such as a dropout rate, is not in [0, 1)."""
    _check(config, paths, lambda value: 0 <= value < 1, "at least 0 and below 1")


def within(config: Any, low: float, high: float, *paths: str) -> None:
    """Raises UserError if one of the fields, or of its numbers, is not in [low, high]."""

    def holds(value: Any) -> bool:
        return all(low <= x <= high for x in (value if isinstance(value, tuple) else (value,)))

    _check(config, paths, holds, f"from {low:g} to {high:g}")


def _check(config: Any, paths: Sequence[str], holds: Callable[[Any], bool], must: str) -> None:
    """Raises UserError if `holds` is false for one of the fields, as every comparison with nan is."""
    for path in paths:
        if not holds(value := _get(config, path)):
            raise UserError(f"config.{path}={value}: must be {must}")


def one_of(config: Any, path: str, values: Sequence[str]) -> None:
    """Raises UserError, with the nearest of `values`, if the field has another value."""
    if (value := _get(config, path)) not in values:
        listed = f"unknown{near(str(value), values)}; known: {', '.join(values)}"
        raise UserError(f"config.{path}={value!r}: {listed}")


def _get(config: Any, path: str) -> Any:
    return operator.attrgetter(path)(config)
