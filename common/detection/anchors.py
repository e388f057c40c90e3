"""Makes the anchor boxes of feature pyramids, as numpy float64 (cy, cx, h, w). TensorFlow-free."""

import itertools
import math
from collections.abc import Sequence

import numpy as np

# {anchors per cell: aspect ratios besides the two squares}; each ratio gives a wide and a tall anchor
# (docs/sources.md, mlperf 2, SSD).
_ASPECTS = {4: (2,), 6: (2, 3)}
# (height, width) factors of a pyramid's anchors. G7's Mask R-CNN lists them as (width, height): (1, 1), (1.4, 0.7),
# (0.7, 1.4) (docs/sources.md, mlperf 2).
PYRAMID_ASPECTS = ((1.0, 1.0), (0.7, 1.4), (1.4, 0.7))


def ssd(
    feature_sizes: Sequence[int], scales: Sequence[float], cells: Sequence[float], per_cell: Sequence[int]
) -> np.ndarray:
    """Returns SSD's default boxes [A, 4] as fractions of the image, in the order level, anchor, y, x.

    The anchors of level l are a square of scale s_l, a square of scale sqrt(s_l s_{l+1}), then scale s_l in aspects 2
    and 1/2 and, if there are six, 3 and 1/3; the wide one comes first. Sides and centers are clipped to [0, 1]
    (docs/sources.md, mlperf 2). Raises ValueError if the arguments have different lengths, or a number of anchors is
    neither 4 nor 6.

    Args:
      feature_sizes: cells along a side of each level's feature map.
      scales: s_0 ... s_L, fractions of the image's side; one more than the number of levels.
      cells: image side divided by the spacing of the centers: 300 / 8 = 37.5 for the level with 38 cells.
      per_cell: anchors per cell, 4 or 6.
    """
    if not len(feature_sizes) == len(scales) - 1 == len(cells) == len(per_cell):
        raise ValueError(
            f"{len(feature_sizes)} levels, {len(scales)} scales, {len(cells)} steps, {len(per_cell)} counts of "
            "anchors: give one of each per level, and one scale more"
        )
    levels = []
    for level, (size, number, spacing) in enumerate(zip(feature_sizes, per_cell, cells)):
        if number not in _ASPECTS:
            raise ValueError(f"{number} anchors per cell; known: {sorted(_ASPECTS)}")
        for height, width in _shapes(scales[level], scales[level + 1], _ASPECTS[number]):
            centers = (np.arange(size) + 0.5) / spacing
            cy, cx = np.meshgrid(centers, centers, indexing="ij")
            sides = np.broadcast_to([height, width], [size * size, 2])
            levels.append(np.concatenate([np.stack([cy.ravel(), cx.ravel()], -1), sides], -1))
    return np.clip(np.concatenate(levels), 0.0, 1.0)


def pyramid(
    height: int,
    width: int,
    levels: Sequence[int],
    scale: float = 8.0,
    aspects: Sequence[tuple[float, float]] = PYRAMID_ASPECTS,
) -> np.ndarray:
    """Returns a feature pyramid's anchors [A, 4] in pixels, in the order level, aspect, y, x.

    For 832 x 1344 pixels and levels 2 to 6, A is 279,279.

    Args:
      height, width: image size; level l has ceil(height / 2^l) x ceil(width / 2^l) cells.
      levels: levels of the pyramid.
      scale: an anchor of level l has sides of scale * 2^l pixels, times its aspect.
      aspects: (height, width) factors.
    """
    anchors = []
    for level in levels:
        stride = 2**level
        cy = (np.arange(-(-height // stride)) + 0.5) * stride
        cx = (np.arange(-(-width // stride)) + 0.5) * stride
        sides = scale * stride * np.asarray(aspects)
        grid = np.zeros([len(sides), len(cy), len(cx), 4])
        grid[..., 0], grid[..., 1], grid[..., 2:] = cy[:, None], cx, sides[:, None, None]
        anchors.append(grid.reshape(-1, 4))
    return np.concatenate(anchors)


def rounded_aspects(stride: int) -> list[tuple[float, float]]:
    """Returns (height, width) factors as Detectron rounds them: of `stride` pixels, for areas of stride^2.

    NV maskrcnn_benchmark/modeling/rpn/anchor_generator.py 225-264 (`_ratio_enum`); in the order of PYRAMID_ASPECTS.
    """
    widths = [np.round(np.sqrt(stride**2 / ratio)) for ratio in (1.0, 0.5, 2.0)]
    heights = [np.round(width * ratio) for width, ratio in zip(widths, (1.0, 0.5, 2.0))]
    return [(height / stride, width / stride) for height, width in zip(heights, widths)]


def _shapes(scale: float, following: float, aspects: Sequence[int]) -> list[tuple[float, float]]:
    """Returns (height, width) of each anchor in a cell."""
    between = math.sqrt(scale * following)
    wide = [(scale / math.sqrt(a), scale * math.sqrt(a)) for a in aspects]
    both = itertools.chain.from_iterable(((h, w), (w, h)) for h, w in wide)
    return [(scale, scale), (between, between), *both]
