"""Samples boxes from feature pyramids (ROIAlign) and from objects' masks, as grids of fixed size.

See "Mask R-CNN" section 3 and "Feature Pyramid Networks" section 4.2. tf-models-official's
`multilevel_crop_and_resize` uses one sample per bin and keeps every sample for its gradient. `roi_align` averages any
number of samples, as the reference does (two each way). At a time, it holds the samples of only LINES lines of every
bin, forward and backward.
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from common.detection import boxes as box_ops
from common.layers import products

# A box with sides of CANONICAL_SIZE pixels belongs to pyramid level CANONICAL_LEVEL (FPN, equation 1).
CANONICAL_SIZE, CANONICAL_LEVEL = 224.0, 4
# Sample lines per bin computed at once. With two samples per side there are 4 lines. On a CPU, 2 at once take 0.8 of
# the time of one by one; all 4 at once take 0.7, but twice the memory.
LINES = 2
# An image's cells are padded to a multiple of the rows in a TPU's tile of 16-bit numbers. Otherwise, images after the
# first would begin inside a tile; the TPU would then move single rows, and its compiler would take minutes.
_TILE = 16


def level_of(boxes: tf.Tensor, min_level: int, max_level: int) -> tf.Tensor:
    """Returns floor(log2(sqrt(area) / 224)) + 4, clipped to [min_level, max_level], int32 [...], for corners in pixels.

    It compares areas, so that the level of a box with sides of exactly 224 pixels does not depend on rounding.
    """
    levels = np.arange(min_level + 1, max_level + 1)
    areas = tf.constant((CANONICAL_SIZE * 2.0 ** (levels - CANONICAL_LEVEL)) ** 2, boxes.dtype)
    return min_level + tf.reduce_sum(tf.cast(box_ops.area(boxes)[..., None] >= areas, tf.int32), -1)


def roi_align(features: Mapping[int, tf.Tensor], boxes: tf.Tensor, size: int, sampling: int = 2) -> tf.Tensor:
    """Samples each box from its pyramid level as a grid of bins: [b, n, size, size, C] in the features' dtype.

    A bin is the mean of `sampling` x `sampling` evenly spaced bilinear samples. Feature (y, x) of level l is at pixel
    (y, x) * 2^l, without a shift of half a pixel. Outside the map, the border value continues, as in the reference.

    Args:
      features: {level l: [b, ceil(H / 2^l), ceil(W / 2^l), C]}, consecutive levels.
      boxes: corners [b, n, 4] in pixels; no gradient flows to them. Sums use their dtype.
      size: bins per side: 7 for the box head, 14 for the mask head (docs/sources.md, mlperf 2).
      sampling: samples per side of a bin; tf-models-official uses 1.
    """
    boxes = tf.stop_gradient(boxes)
    low, high = min(features), max(features)
    shapes = [features[level].shape for level in range(low, high + 1)]
    channels, cells = shapes[0][-1], [shape[1] * shape[2] for shape in shapes]
    flat = [tf.reshape(features[low + i], [-1, count, channels]) for i, count in enumerate(cells)]
    every = sum(cells)
    if every % _TILE:  # No bin reads these.
        spare = _TILE - every % _TILE
        flat.append(tf.zeros([tf.shape(flat[0])[0], spare, channels], flat[0].dtype))
        every += spare
    rows = tf.reshape(tf.concat(flat, 1), [-1, channels])

    place = level_of(boxes, low, high) - low  # [b, n]

    def at_level(values: list[int], dtype: tf.DType) -> tf.Tensor:
        return tf.gather(tf.constant(values, dtype), place)

    scaled = boxes / at_level([2 ** (low + i) for i in range(len(cells))], boxes.dtype)[..., None]
    starts, lengths = scaled[..., :2], scaled[..., 2:] - scaled[..., :2]
    last_y = at_level([shape[1] - 1 for shape in shapes], boxes.dtype)
    last_x = at_level([shape[2] - 1 for shape in shapes], boxes.dtype)
    y, weight_y = _samples(starts[..., 0], lengths[..., 0], last_y, size, sampling)
    x, weight_x = _samples(starts[..., 1], lengths[..., 1], last_x, size, sampling)
    first = np.cumsum([0, *cells[:-1]]).tolist()
    image = tf.range(tf.shape(boxes)[0])[:, None] * every + at_level(first, tf.int32)
    y = y * at_level([shape[2] for shape in shapes], tf.int32)[..., None, None] + image[..., None, None]
    return _bins(rows, y, x, weight_y, weight_x)


def _samples(
    start: tf.Tensor, length: tf.Tensor, last: tf.Tensor, size: int, sampling: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the cells that each bin reads along one axis, and their weights; each [b, n, size, 2 * sampling]."""
    steps = (np.arange(size * sampling) + 0.5) / (size * sampling)
    position = start[..., None] + length[..., None] * tf.constant(steps, start.dtype)
    last = last[..., None]
    position = tf.clip_by_value(position, tf.zeros_like(last), last)
    before = tf.floor(position)
    part = position - before
    shape = [*tf.unstack(tf.shape(start)), size, 2 * sampling]
    index = tf.reshape(tf.stack([before, tf.minimum(before + 1, last)], -1), shape)
    return tf.cast(index, tf.int32), tf.reshape(tf.stack([1 - part, part], -1) / sampling, shape)


# All tensors are arguments, because tf.custom_gradient searches captured tensors for variables.
@tf.custom_gradient
def _bins(rows: tf.Tensor, y: tf.Tensor, x: tf.Tensor, weight_y: tf.Tensor, weight_x: tf.Tensor):
    """Returns weighted sums of `rows`, [r, C]: bin (i, j) of box n is the sum over a, b of
    weight_y[n, i, a] * weight_x[n, j, b] * rows[y[n, i, a] + x[n, j, b]].
    """
    lines, channels = y.shape[-1], rows.shape[-1]

    def terms(after: tf.Tensor, a: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns row indices and weights of LINES lines from `a` on, each [b, n, size, size, LINES * 2 * sampling].

        Both depend on `after`, so that only one such part is in memory.
        """
        these = slice(a, a + LINES)
        with tf.control_dependencies([after]):
            index = y[..., :, None, these, None] + x[..., None, :, None, :]
        weight = weight_y[..., :, None, these, None] * weight_x[..., None, :, None, :]
        shape = tf.concat([tf.shape(index)[:-2], [-1]], 0)
        return tf.reshape(index, shape), tf.reshape(weight, shape)

    total = tf.zeros([*tf.unstack(tf.shape(y)[:-1]), x.shape[-2], channels], weight_y.dtype)
    for a in range(0, lines, LINES):
        index, weight = terms(total, a)
        total += tf.einsum("...k,...kc->...c", weight, tf.cast(tf.gather(rows, index), weight.dtype))

    def gradient(upstream: tf.Tensor):
        upstream = tf.cast(upstream, weight_y.dtype)
        slope = tf.zeros(tf.shape(rows), weight_y.dtype)
        for a in range(0, lines, LINES):
            index, weight = terms(slope, a)
            parts = tf.reshape(weight[..., None] * upstream[..., None, :], [-1, channels])
            slope += tf.math.unsorted_segment_sum(parts, tf.reshape(index, [-1]), tf.shape(rows)[0])
        return tf.cast(slope, rows.dtype), None, None, None, None

    return tf.cast(total, rows.dtype), gradient


def crop_masks(masks: tf.Tensor, inside: tf.Tensor, boxes: tf.Tensor, size: int) -> tf.Tensor:
    """Crops masks [..., S, S] of any dtype to boxes, sampled bilinearly at the cell centers of a grid.

    Each mask fills its object's box `inside`, corners [..., 4]; an empty one gives zeros. `boxes` have the same unit.
    Returns [..., size, size] in the boxes' dtype; 0 outside `inside`.
    """
    number = masks.shape[-1]

    def weights(axis: int) -> tf.Tensor:
        """Returns bilinear weights [..., size, S]: hat functions around each sample's place in the mask."""
        steps = tf.constant((np.arange(size) + 0.5) / size, boxes.dtype)
        low, length = boxes[..., axis, None], (boxes[..., axis + 2] - boxes[..., axis])[..., None]
        start, extent = inside[..., axis, None], (inside[..., axis + 2] - inside[..., axis])[..., None]
        place = tf.math.divide_no_nan(low + length * steps - start, extent) * number - 0.5
        hats = tf.nn.relu(1 - tf.abs(place[..., None] - tf.range(number, dtype=boxes.dtype)))
        return tf.where(extent[..., None] > 0, hats, tf.zeros_like(hats))

    # Targets compare the result with 0.5: weights that a device rounds would turn pixels on an object's edge.
    across, down = (tf.reshape(weights(axis), [-1, size, number]) for axis in (1, 0))
    rows = products.exact(down, tf.reshape(tf.cast(masks, boxes.dtype), [-1, number, number]))
    cropped = products.exact(rows, across, transpose_b=True)
    return tf.reshape(cropped, tf.concat([tf.shape(boxes)[:-1], [size, size]], 0))
