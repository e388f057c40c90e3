"""SSD's augmentation: the crop that keeps a drawn overlap with every object, mirroring, colours.

All numbers are drawn from stateless streams, so that an image's augmentation is a function of its key alone.
"""

from __future__ import annotations

import tensorflow as tf

from common.detection import boxes as box_ops
from ssd.config import Data

_FLIP, _COLOUR = 1 << 62, 1 << 61  # Separate the draws; record numbers stay far below.
# Passes until "no crop" is drawn, with probability 1/7, or a crop fits; (6/7)^50 is 0.05 %.
_PASSES = 50


def train(
    image: tf.Tensor, boxes: tf.Tensor, classes: tf.Tensor, key: tf.Tensor, size: int, data: Data
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """One training image.

    Args:
      image: uint8 [H, W, 3].
      boxes: float32 [n, 4] corners in parts of the image.
      classes: int32 [n].
      key: int64 [2] that determines the result.
      size: of the result, in pixels.
      data: the parameters.

    Returns:
      (uint8 [size, size, 3], boxes [m, 4], classes [m]); the objects whose centre is outside of the crop are gone.
    """
    if data.crop:
        window = crop_window(boxes, key, data)
        image, boxes, classes = cropped(image, boxes, classes, window)
    pixels = resize(image, size)
    if data.flip:
        heads = tf.random.stateless_uniform([], key + _FLIP, alg="philox") < 0.5
        pixels = tf.cond(heads, lambda: tf.reverse(pixels, [1]), lambda: pixels)
        boxes = tf.cond(heads, lambda: box_ops.flip_columns(boxes), lambda: boxes)
    return to_uint8(tf.ensure_shape(colours(pixels, key, data), [size, size, 3])), boxes, classes


def crop_window(boxes: tf.Tensor, key: tf.Tensor, data: Data) -> tf.Tensor:
    """The crop, corners [4] in parts of the image (mlperf_facts 2, SSD).

    A pass draws a minimum overlap, or no crop at all, and `crop_attempts` proposals; the first proposal is taken whose
    aspect is allowed, which overlaps every object by more than the minimum and holds the centre of one.
    """
    whole = tf.constant([0.0, 0.0, 1.0, 1.0])
    options = tf.constant(data.crop_overlaps)
    attempts = data.crop_attempts
    centres = box_ops.to_centres(boxes)[:, :2]

    def one_pass(number: tf.Tensor, _: tf.Tensor, __: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        draws = tf.random.stateless_uniform(
            [attempts + 1, 4], key + tf.stack([tf.cast(number, tf.int64) * 2**56, 0]), alg="philox"
        )
        option = tf.cast(draws[0, 0] * (len(data.crop_overlaps) + 1), tf.int32)
        low, high = data.crop_sides
        sides = low + (high - low) * draws[1:, 2:]  # (height, width)
        start = draws[1:, :2] * (1 - sides)
        windows = tf.concat([start, start + sides], -1)
        aspect = sides[:, 1] / sides[:, 0]  # In parts of the image, as the reference has it.
        fits = (aspect > data.crop_aspect[0]) & (aspect < data.crop_aspect[1])
        minimum = tf.gather(options, tf.minimum(option, len(data.crop_overlaps) - 1))
        fits &= tf.reduce_all(box_ops.iou(windows, boxes) > minimum, -1)
        fits &= tf.reduce_any(_inside(centres, windows), -1)
        uncropped = option >= len(data.crop_overlaps)
        chosen = tf.where(uncropped, whole, windows[tf.argmax(tf.cast(fits, tf.int32))])
        found = uncropped | tf.reduce_any(fits)
        return number + 1, tf.where(found, chosen, whole), found

    _, window, _ = tf.while_loop(
        lambda number, _, found: (number < _PASSES) & ~found,
        one_pass,
        (tf.constant(0), whole, tf.constant(False)),
    )
    return window


def cropped(
    image: tf.Tensor, boxes: tf.Tensor, classes: tf.Tensor, window: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The image's pixels inside `window`, and the objects whose centres it holds, cut off at its borders."""
    sides = tf.cast(tf.shape(image)[:2], tf.float32)
    begin = tf.cast(window[:2] * sides, tf.int32)
    end = tf.maximum(tf.cast(tf.round(window[2:] * sides), tf.int32), begin + 1)
    image = tf.slice(image, [begin[0], begin[1], 0], [end[0] - begin[0], end[1] - begin[1], 3])
    # The pixels' window, so that the boxes stay on their objects.
    low, high = tf.cast(begin, tf.float32) / sides, tf.cast(end, tf.float32) / sides
    keep = _inside(box_ops.to_centres(boxes)[:, :2], tf.concat([low, high], 0)[None])[0]
    boxes, classes = tf.boolean_mask(boxes, keep), tf.boolean_mask(classes, keep)
    moved = (boxes - tf.tile(low, [2])) / tf.tile(high - low, [2])
    return image, box_ops.clip(moved), classes


def _inside(points: tf.Tensor, windows: tf.Tensor) -> tf.Tensor:
    """Whether points [n, 2] lie inside of windows [m, 4]: bool [m, n]."""
    after = points[None] > windows[:, None, :2]
    return tf.reduce_all(after & (points[None] < windows[:, None, 2:]), -1)


def colours(pixels: tf.Tensor, key: tf.Tensor, data: Data) -> tf.Tensor:
    """Brightness, contrast, saturation and hue of float32 [H, W, 3], values 0..255, in this order."""
    draw = tf.random.stateless_uniform([4], key + _COLOUR, -1.0, 1.0, alg="philox")
    spread = tf.constant([data.brightness, data.contrast, data.saturation, data.hue])
    change = draw * spread
    image = tf.clip_by_value(pixels / 255 * (1 + change[0]), 0.0, 1.0)
    # Contrast: about the mean of the grey picture, as the reference's library does it.
    grey = tf.reduce_mean(tf.image.rgb_to_grayscale(image))
    image = tf.clip_by_value(grey + (image - grey) * (1 + change[1]), 0.0, 1.0)
    grey = tf.image.rgb_to_grayscale(image)
    image = tf.clip_by_value(grey + (image - grey) * (1 + change[2]), 0.0, 1.0)
    if data.hue:
        image = tf.image.adjust_hue(image, change[3])
    return image * 255


def resize(image: tf.Tensor, size: int) -> tf.Tensor:
    """Bilinear, float32 [size, size, 3]."""
    pixels = tf.raw_ops.ResizeBilinear(
        images=tf.cast(image, tf.float32)[None], size=[size, size], half_pixel_centers=True
    )[0]
    return tf.ensure_shape(pixels, [size, size, 3])


def to_uint8(pixels: tf.Tensor) -> tf.Tensor:
    """Nearest whole values of float32 pixels, kept within 0..255; a quarter of the bytes to batch."""
    return tf.cast(tf.clip_by_value(pixels + 0.5, 0.0, 255.0), tf.uint8)
