"""Augments SSD's training images: a random crop that overlaps every object enough, mirroring, color changes.

All draws are stateless, so an image's augmentation depends only on its key.
"""

import tensorflow as tf

from common.data.images import resize, to_uint8
from common.detection import boxes as box_ops
from ssd.config import Config

_FLIP, _COLOR = 1 << 62, 1 << 61  # Make the keys of the draws differ; record numbers stay far below.
# Maximum passes of `crop_window`. Each pass draws "no crop", which ends the search, with probability 1/7 or more;
# (6/7)^50 is 0.05 %.
_PASSES = 50


def train(
    image: tf.Tensor, boxes: tf.Tensor, classes: tf.Tensor, key: tf.Tensor, config: Config
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Augments a training image, uint8 [H, W, 3], and its objects, as `key`, int64 [2], determines.

    `boxes` are float32 [n, 4], corners as fractions of the image, `classes` int32 [n]. Returns (uint8 [S, S, 3], boxes
    [m, 4], classes [m]), without objects whose center is outside the crop.
    """
    window, size, method = crop_window(boxes, key, config), config.image_size, config.details.resize
    if method == "legacy_bilinear":  # G6 ssd/dataloader.py, ssd_crop: no window is rounded to pixels.
        boxes, classes = within(boxes, classes, window)
        whole = tf.cast(image, tf.float32)[None]
        pixels = tf.image.crop_and_resize(whole, window[None], [0], [size, size])[0]
    else:
        image, boxes, classes = cropped(image, boxes, classes, window)
        pixels = resize(image, [size, size], method)
    if config.data.flip:
        heads = tf.random.stateless_uniform([], key + _FLIP, alg="philox") < 0.5
        pixels = tf.cond(heads, lambda: tf.reverse(pixels, [1]), lambda: pixels)
        boxes = tf.cond(heads, lambda: box_ops.flip_columns(boxes), lambda: boxes)
    return to_uint8(tf.ensure_shape(colors(pixels, key, config), [size, size, 3])), boxes, classes


def crop_window(boxes: tf.Tensor, key: tf.Tensor, config: Config) -> tf.Tensor:
    """Draws the crop: corners [4] as fractions of the image (docs/sources.md, mlperf 2, SSD).

    Each pass draws a minimum overlap, or "no crop at all", and `crop_attempts` proposals. It uses the first proposal
    that has an allowed aspect, overlaps every object by more than the minimum and contains the center of at least one
    object.
    """
    whole = tf.constant([0.0, 0.0, 1.0, 1.0])
    data, overlaps = config.data, config.details.crop_overlaps
    options, attempts = tf.constant(overlaps), data.crop_attempts
    centers = box_ops.to_centers(boxes)[:, :2]

    def one_pass(number: tf.Tensor, _: tf.Tensor, __: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        draws = tf.random.stateless_uniform(
            [attempts + 1, 4], key + tf.stack([tf.cast(number, tf.int64) * 2**56, 0]), alg="philox"
        )
        option = tf.cast(draws[0, 0] * (len(overlaps) + 1), tf.int32)
        low, high = data.crop_sides
        sides = low + (high - low) * draws[1:, 2:]  # (height, width)
        start = draws[1:, :2] * (1 - sides)
        windows = tf.concat([start, start + sides], -1)
        aspect = sides[:, 1] / sides[:, 0]  # As in the reference, of sides as fractions of the image.
        fits = (aspect > data.crop_aspect[0]) & (aspect < data.crop_aspect[1])
        minimum = tf.gather(options, tf.minimum(option, len(overlaps) - 1))
        fits &= tf.reduce_all(box_ops.iou(windows, boxes) > minimum, -1)
        fits &= tf.reduce_any(_inside(centers, windows), -1)
        uncropped = option >= len(overlaps)
        candidate = tf.where(uncropped, whole, windows[tf.argmax(tf.cast(fits, tf.int32))])
        done = uncropped | tf.reduce_any(fits)
        return number + 1, tf.where(done, candidate, whole), done

    _, window, _ = tf.while_loop(
        lambda number, _, done: (number < _PASSES) & ~done,
        one_pass,
        (tf.constant(0), whole, tf.constant(False)),
    )
    return window


def cropped(
    image: tf.Tensor, boxes: tf.Tensor, classes: tf.Tensor, window: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Crops an image to `window`, keeps the objects whose centers lie inside and clips their boxes to its borders."""
    sides = tf.cast(tf.shape(image)[:2], tf.float32)
    begin = tf.cast(window[:2] * sides, tf.int32)
    end = tf.maximum(tf.cast(tf.round(window[2:] * sides), tf.int32), begin + 1)
    image = tf.slice(image, [begin[0], begin[1], 0], [end[0] - begin[0], end[1] - begin[1], 3])
    # Uses the window rounded to pixels, so that boxes stay on their objects.
    low, high = tf.cast(begin, tf.float32) / sides, tf.cast(end, tf.float32) / sides
    return image, *within(boxes, classes, tf.concat([low, high], 0))


def within(boxes: tf.Tensor, classes: tf.Tensor, window: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Keeps the objects whose centers lie inside a window; their boxes become fractions of it, clipped."""
    keep = _inside(box_ops.to_centers(boxes)[:, :2], window[None])[0]
    boxes, classes = tf.boolean_mask(boxes, keep), tf.boolean_mask(classes, keep)
    return box_ops.clip((boxes - tf.tile(window[:2], [2])) / tf.tile(window[2:] - window[:2], [2])), classes


def _inside(points: tf.Tensor, windows: tf.Tensor) -> tf.Tensor:
    """Tests whether points [n, 2] lie inside windows [m, 4]: bool [m, n]."""
    after = points[None] > windows[:, None, :2]
    return tf.reduce_all(after & (points[None] < windows[:, None, 2:]), -1)


def colors(pixels: tf.Tensor, key: tf.Tensor, config: Config) -> tf.Tensor:
    """Changes brightness, contrast, saturation and hue of float32 [H, W, 3], values 0..255, in this order."""
    data = config.data
    draw = tf.random.stateless_uniform([4], key + _COLOR, -1.0, 1.0, alg="philox")
    limits = tf.constant([data.brightness, data.contrast, data.contrast, data.hue])
    change = draw * limits
    # G6 ssd/dataloader.py, color_jitter: a summand, then each channel's own mean.
    if config.details.colors == "tensorflow":
        image = tf.image.adjust_contrast(pixels / 255 + change[0], 1 + change[1])
        return tf.image.adjust_hue(tf.image.adjust_saturation(image, 1 + change[2]), change[3]) * 255
    image = tf.clip_by_value(pixels / 255 * (1 + change[0]), 0.0, 1.0)
    # Contrast is scaled about the mean of the gray image, as in the reference's library.
    gray = tf.reduce_mean(tf.image.rgb_to_grayscale(image))
    image = tf.clip_by_value(gray + (image - gray) * (1 + change[1]), 0.0, 1.0)
    gray = tf.image.rgb_to_grayscale(image)
    image = tf.clip_by_value(gray + (image - gray) * (1 + change[2]), 0.0, 1.0)
    if data.hue:
        image = tf.image.adjust_hue(image, change[3])
    return image * 255
