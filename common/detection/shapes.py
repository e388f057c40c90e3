"""Checks the boxes, polygons and run lengths of annotations before pycocotools, a C library, computes with them.

TensorFlow-free.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

_MARGIN = 1.0  # A polygon may leave the picture by this many times the picture's own size.
# Pixels along a polygon's outline. pycocotools allocates in proportion to it; no object of a picture has as many.
_MOST_OUTLINE = 1_000_000
_MOST = 1e15  # Of a coordinate; products of larger ones could overflow.
_OFFSET = 48  # The first character of COCO's compressed run lengths (maskApi.c, rleToString).
_MOST_PLACES = 7  # Characters of a number in them: 35 bits, more than any picture has pixels.


class BadShapeError(ValueError):
    """Raised for an annotation that cannot be used; the message gives the reason."""


def key_of(value: Any) -> str | None:
    """Returns an id as text, the same for 7, 7.0 and "7"; None if it is not an id."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, float):
        return str(int(value)) if math.isfinite(value) and value == int(value) else None
    return str(value).strip() or None


def numbers(values: Any, count: int | None = None) -> list[float]:
    """Returns finite numbers below _MOST; texts of numbers count.

    Raises BadShapeError if it is not a list, has another length than `count`, or holds something else.
    """
    if not isinstance(values, list) or count is not None and len(values) != count:
        raise BadShapeError(f"{quote(values)} is not a list of {count or ''} numbers".replace("  ", " "))
    try:
        floats = [float(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        floats = [math.nan]
    if not all(abs(value) < _MOST for value in floats):
        raise BadShapeError(f"{quote(values)} holds something that is not a finite number below {_MOST:g}")
    return floats


def polygons(shape: Any, height: int, width: int) -> list[list[float]]:
    """Returns an object's polygons [x, y, x, y, ...]; leaves out polygons of under three points.

    Takes a list of polygons, one polygon, or one list of points [x, y]; a polygon may also be a list of points. Raises
    BadShapeError if a coordinate is not a finite number, lacks its partner or is far outside, or no polygon is left.
    """
    if not isinstance(shape, list):
        raise BadShapeError(f"segmentation is {quote(shape)}")
    if shape and not any(isinstance(part, list | dict) for part in shape):
        shape = [shape]
    elif len(shape) > 2 and all(isinstance(part, list) and len(part) == 2 for part in shape):
        shape = [[value for point in shape for value in point]]
    outlines = []
    for part in shape:
        if isinstance(part, dict):
            raise BadShapeError(f"{quote(part)} among several parts; give run lengths or polygons, not both")
        if (
            isinstance(part, list)
            and part
            and all(isinstance(point, list) and len(point) == 2 for point in part)
        ):
            part = [value for point in part for value in point]
        values = numbers(part)
        if len(values) % 2:
            raise BadShapeError(f"a polygon of {len(values)} coordinates, of which one lacks its partner")
        points, size = np.array(values).reshape(-1, 2), np.array([width, height])
        if ((points < -_MARGIN * size) | (points > (1 + _MARGIN) * size)).any():
            raise BadShapeError("a polygon that leaves the picture by more than the picture's own size")
        outline = np.abs(points - np.roll(points, 1, axis=0)).max(1, initial=0).sum()
        if outline > _MOST_OUTLINE:
            raise BadShapeError(f"a polygon whose outline is {outline:.3g} pixels long")
        if len(points) >= 3:
            outlines.append(points.ravel().tolist())
    if not outlines:
        raise BadShapeError("its polygons have fewer than three points within the picture")
    return outlines


def run_lengths(shape: Mapping[str, Any], height: int, width: int) -> dict[str, Any]:
    """Returns COCO's run lengths, numbers or compressed text, after a check.

    Raises:
      BadShapeError: the size is not the picture's, or a length is not whole, is negative, or they do not sum to it.
    """
    size, counts = shape.get("size"), shape.get("counts")
    if not isinstance(size, list) or not size or numbers(size) != [height, width]:
        raise BadShapeError(f"a mask of size {quote(size)} in a picture of {[height, width]}")
    lengths = _uncompressed(counts) if isinstance(counts, str | bytes) else counts
    if not isinstance(lengths, list) or not all(_whole(one) for one in lengths):
        raise BadShapeError(f"run lengths {quote(counts)} are not whole numbers from 0 on")
    if sum(map(int, lengths)) != height * width:
        raise BadShapeError(
            f"run lengths sum to {sum(map(int, lengths))}, a picture of {height}x{width} has {height * width} pixels"
        )
    same = counts if isinstance(counts, str | bytes) else [int(one) for one in lengths]
    return {"size": [height, width], "counts": same}


def _whole(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value < 1 << 40
        and value == int(value)
    )


def _uncompressed(text: str | bytes) -> list[int]:
    """Decodes compressed run lengths (maskApi.c, rleFrString): numbers in base 32, from the third on differences."""
    raw = text.encode(errors="replace") if isinstance(text, str) else text
    codes = np.frombuffer(raw, np.uint8).astype(np.int64) - _OFFSET
    if not len(codes) or codes.min() < 0 or codes.max() > 63 or codes[-1] & 32:
        raise BadShapeError(f"run lengths {quote(text)} are not COCO's compressed text")
    starts = np.concatenate([[0], np.flatnonzero((codes & 32) == 0)[:-1] + 1])
    lengths = np.diff([*starts, len(codes)])
    if lengths.max() > _MOST_PLACES:
        raise BadShapeError(f"run lengths {quote(text)} are not COCO's compressed text")
    places = np.arange(len(codes)) - np.repeat(starts, lengths)
    values = np.add.reduceat((codes & 31) << (5 * places), starts)
    last = codes[starts + lengths - 1]
    values = np.where(last & 16, values - (1 << (5 * lengths)), values)
    sums = values.copy()
    sums[1::2] = np.cumsum(values[1::2])
    sums[2::2] = np.cumsum(values[2::2])
    return sums.tolist()


def checked(shape: Any, height: int, width: int) -> list[list[float]] | dict[str, Any]:
    """Returns an object's polygons or run lengths in a form that pycocotools reads safely.

    Raises BadShapeError if it has none, or they are not sound.
    """
    if not shape:
        raise BadShapeError("it has no segmentation")
    if isinstance(shape, list) and len(shape) == 1 and isinstance(shape[0], dict):
        shape = shape[0]
    if isinstance(shape, dict):
        return run_lengths(shape, height, width)
    return polygons(shape, height, width)


def encoded(shape: list[list[float]] | Mapping[str, Any], height: int, width: int) -> dict[str, Any]:
    """Returns sound polygons or run lengths as compressed run lengths of pycocotools."""
    if isinstance(shape, list):
        return coco_mask.merge(coco_mask.frPyObjects(shape, height, width))
    if isinstance(shape["counts"], list):
        return coco_mask.frPyObjects(dict(shape), height, width)
    return dict(shape)


def quote(value: Any) -> str:
    """Returns a value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
