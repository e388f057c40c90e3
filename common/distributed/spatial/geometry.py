"""Computes which rows a replica holds and which it needs under spatial partitioning. TensorFlow-free.

An image of H rows lies on k replicas in parts of R = ceil(H / k) rows: position p holds rows p*R ... p*R + R - 1. Rows
from H on do not exist. The layout depends only on H, so all branches of a network line up, and every replica has
arrays of one static shape.
"""

from __future__ import annotations

import dataclasses

from common.errors import UserError

# "same" and "valid" as in TensorFlow, one number of zeros for all sides, or ((top, bottom), (left, right)).
Padding = str | int | tuple[tuple[int, int], tuple[int, int]]


def rows_of(height: int, partitions: int) -> int:
    """Number of rows that each of `partitions` replicas holds of an image of `height` rows."""
    return -(-height // partitions)


def output_size(size: int, kernel: int, stride: int, before: int, after: int) -> int:
    """Number of positions of a window of size `kernel` on `size` elements padded by `before` and `after`."""
    return (size + before + after - kernel) // stride + 1


def resolve(padding: Padding, height: int, width: int, kernel: int, stride: int) -> tuple:
    """Returns a padding as ((top, bottom), (left, right)) for that image size; "same" is TensorFlow's (uneven)."""
    if padding == "valid":
        return (0, 0), (0, 0)
    if padding == "same":
        return _same(height, kernel, stride), _same(width, kernel, stride)
    return ((padding, padding), (padding, padding)) if isinstance(padding, int) else padding


def _same(size: int, kernel: int, stride: int) -> tuple[int, int]:
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


@dataclasses.dataclass(frozen=True)
class Window:
    """The rows that position p needs for its output rows: `length` rows from row p*advance - top on.

    If `advance` differs from the number of rows that a replica holds (19 rows to 10 by stride 2), the needed rows
    drift away from the held ones by `drift` rows per position, and the halo grows accordingly.

    Attributes:
      height: rows of the whole output.
      length: input rows of a replica's window.
      advance: input rows between the windows of neighboring positions.
      top: rows of padding above the image.
      drift: `advance` minus the rows that a replica holds.
      above, below: rows to fetch from the positions before and after; the maximum over all positions.
    """

    height: int
    length: int
    advance: int
    top: int
    drift: int
    above: int
    below: int

    @classmethod
    def for_image(
        cls, height: int, partitions: int, kernel: int, stride: int, top: int, bottom: int
    ) -> Window:
        """Returns the window of an operation with a square `kernel` on an image of `height` rows.

        Raises UserError if not even one window fits into the image.
        """
        out = output_size(height, kernel, stride, top, bottom)
        if out < 1:
            raise UserError(f"images too small: a window of {kernel} rows on {height}; use larger ones")
        rows, out_rows = rows_of(height, partitions), rows_of(out, partitions)
        length = (out_rows - 1) * stride + kernel
        drift = out_rows * stride - rows
        # Positions without output rows need nothing. Over the other positions the need is linear, so the ends decide.
        last = -(-out // out_rows) - 1
        needs = [(top - p * drift, p * drift - top + length - rows) for p in (0, last)]
        above, below = (max(0, *need) for need in zip(*needs))
        return cls(out, length, out_rows * stride, top, drift, above, below)
