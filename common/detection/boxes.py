"""Converts, compares and encodes boxes: [..., 4] tensors of corners or centers, in any unit.

Corners are (ymin, xmin, ymax, xmax), centers are (cy, cx, h, w). All functions are element-wise, keep the dtype and
compile under XLA.
"""

from collections.abc import Sequence

import tensorflow as tf

# Scales of the encoded (cy, cx, h, w): the inverse of SSD's published variances 0.1 and 0.2
# (docs/sources.md, mlperf 2).
SSD_WEIGHTS = (10.0, 10.0, 5.0, 5.0)
SMALLEST_SIDE = 1e-8  # As in tf-models-official official/vision/ops/box_ops.py (EPSILON).


def to_corners(centers: tf.Tensor, extra: float = 0.0) -> tf.Tensor:
    """(cy, cx, h, w) -> (ymin, xmin, ymax, xmax); the inverse of `to_centers`."""
    middle, size = centers[..., :2], centers[..., 2:]
    return tf.concat([middle - size / 2, middle + size / 2 - extra], -1)


def to_centers(corners: tf.Tensor, extra: float = 0.0) -> tf.Tensor:
    """(ymin, xmin, ymax, xmax) -> (cy, cx, h, w); sides count `extra` more, 1 where a corner is the last pixel."""
    low, high = corners[..., :2], corners[..., 2:] + extra
    return tf.concat([(low + high) / 2, high - low], -1)


def area(boxes: tf.Tensor) -> tf.Tensor:
    """Returns the area of corner boxes, [...]; 0 for an inverted box."""
    size = tf.maximum(boxes[..., 2:] - boxes[..., :2], 0)
    return size[..., 0] * size[..., 1]


def iou(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Returns the intersection over union [..., N, M] of every pair of boxes from `a` [..., N, 4] and `b` [..., M, 4].

    Two empty boxes give 0, so that padding overlaps nothing.
    """
    intersection = tf.maximum(_shared(a, b, 0), 0) * tf.maximum(_shared(a, b, 1), 0)
    union = area(a)[..., :, None] + area(b)[..., None, :] - intersection
    return tf.math.divide_no_nan(intersection, tf.maximum(union, 0))


def overlap(a: tf.Tensor, b: tf.Tensor, threshold: float) -> tf.Tensor:
    """Returns `iou(a, b) >= threshold`, in fewer passes over [..., N, M]; `threshold` must be above 0.

    For disjoint boxes the quotient is not positive; for two empty boxes it is NaN. Neither reaches the threshold.
    """
    intersection = tf.maximum(_shared(a, b, 0), 0) * _shared(a, b, 1)
    return intersection / (area(a)[..., :, None] + area(b)[..., None, :] - intersection) >= threshold


def _shared(a: tf.Tensor, b: tf.Tensor, low: int) -> tf.Tensor:
    """Returns the shared extent of every pair along one axis; negative if the boxes are disjoint.

    Both axes in one tensor would double the memory.
    """
    start = tf.maximum(a[..., :, None, low], b[..., None, :, low])
    return tf.minimum(a[..., :, None, low + 2], b[..., None, :, low + 2]) - start


def clip(boxes: tf.Tensor, height: float | tf.Tensor = 1.0, width: float | tf.Tensor = 1.0) -> tf.Tensor:
    """Clips corners [..., 4] to an image of `height` x `width` in their unit, scalars or tensors like [...]."""
    size = tf.cast(tf.stack([height, width, height, width], -1), boxes.dtype)
    return tf.minimum(tf.maximum(boxes, 0), size)


def encode(
    boxes: tf.Tensor, anchors: tf.Tensor, weights: Sequence[float] = SSD_WEIGHTS, extra: float = 0.0
) -> tf.Tensor:
    """Encodes corners [..., 4] relative to anchors, centers [..., 4], as a network predicts them.

    The result, [..., 4], is the center's offset relative to the anchor's sides, and the logarithms of the side ratios,
    times `weights` of (cy, cx, h, w). Sides are at least SMALLEST_SIDE, so that padding stays finite. `to_centers` has
    `extra`.
    """
    target = to_centers(boxes, extra)
    ratio = tf.maximum(target[..., 2:], SMALLEST_SIDE) / anchors[..., 2:]
    offset = (target[..., :2] - anchors[..., :2]) / anchors[..., 2:]
    return tf.concat([offset, tf.math.log(ratio)], -1) * tf.constant(weights, boxes.dtype)


def decode(
    codes: tf.Tensor,
    anchors: tf.Tensor,
    weights: Sequence[float] = SSD_WEIGHTS,
    max_log_ratio: float | None = None,
    extra: float = 0.0,
) -> tf.Tensor:
    """Decodes a network's predictions [..., 4] to corners [..., 4]; the inverse of `encode`.

    `max_log_ratio` limits the logarithms of the side ratios, to avoid overflow; None sets no limit. `to_corners` has
    `extra`.
    """
    codes = codes / tf.constant(weights, codes.dtype)
    ratio = codes[..., 2:]
    if max_log_ratio is not None:
        ratio = tf.minimum(ratio, max_log_ratio)
    middle = codes[..., :2] * anchors[..., 2:] + anchors[..., :2]
    return to_corners(tf.concat([middle, tf.exp(ratio) * anchors[..., 2:]], -1), extra)


def flip_columns(boxes: tf.Tensor) -> tf.Tensor:
    """Returns corner boxes, as fractions of the image, after the image is mirrored left to right."""
    ymin, xmin, ymax, xmax = tf.unstack(boxes, axis=-1)
    return tf.stack([ymin, 1.0 - xmax, ymax, 1.0 - xmin], -1)
