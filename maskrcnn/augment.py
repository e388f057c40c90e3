"""Prepares images and objects for Mask R-CNN: scales images into a frame, mirrors, cuts masks to their boxes."""

import tensorflow as tf

from common.data.images import resize, to_uint8
from common.detection import boxes as box_ops
from maskrcnn.config import Config

_FLIP = 1 << 62  # Makes the key of the flip differ from other keys; record numbers stay far below.


def scaled_size(size: tf.Tensor, config: Config) -> tuple[tf.Tensor, tf.Tensor]:
    """Scales a size, int64 [2], to `short_side`, or to `long_side` if that is smaller (G7 dataloader.py).

    Returns (int64 [2], height and width in whole pixels; float32 scalar, the scale).
    """
    short, long = tf.reduce_min(size), tf.reduce_max(size)
    exceeds = long * config.short_side > config.long_side * short
    target = tf.where(exceeds, tf.constant(config.long_side, tf.int64), config.short_side)
    side = tf.where(exceeds, long, short)
    # Integer arithmetic: 480 pixels scaled to 800 are 800, not 799.
    return tf.maximum(size * target // side, 1), tf.cast(target / side, tf.float32)


def framed(image: tf.Tensor, wide: tf.Tensor, config: Config) -> tuple[tf.Tensor, tf.Tensor]:
    """Scales an image, uint8 [h, w, 3], and puts it at the top left of its frame, wide or tall, zero elsewhere.

    Returns (uint8 [H, W, 3], float32 [3]: content height and width in pixels, scale).
    """
    size, scale = scaled_size(tf.shape(image, tf.int64)[:2], config)
    pixels = to_uint8(resize(image, tf.cast(size, tf.int32), config.details.resize))
    frame = tf.where(wide, config.shapes[0], config.shapes[-1])
    missing = tf.cast(frame, tf.int64) - size
    pixels = tf.pad(pixels, [[0, missing[0]], [0, missing[1]], [0, 0]])
    sides = config.shapes[0] if len(config.shapes) == 1 else (None, None)
    return tf.ensure_shape(pixels, [*sides, 3]), tf.concat([tf.cast(size, tf.float32), scale[None]], 0)


def mirrored(
    image: tf.Tensor, boxes: tf.Tensor, masks: tf.Tensor, key: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Mirrors half of the images [h, w, 3] from left to right, as `key`, int64 [2], determines.

    `boxes`, corners [n, 4] as fractions of the image, and `masks` [n, S, S], which fill them, are mirrored too.
    """
    heads = tf.random.stateless_uniform([], key + _FLIP, alg="philox") < 0.5
    return tf.cond(
        heads,
        lambda: (tf.reverse(image, [1]), box_ops.flip_columns(boxes), tf.reverse(masks, [2])),
        lambda: (image, boxes, masks),
    )


def cut_masks(encoded: tf.Tensor, boxes: tf.Tensor, image_size: tf.Tensor, size: int) -> tf.Tensor:
    """Cuts each mask to its box and resamples it: uint8 [n, size, size] of 0 and 1.

    The mask is sampled at the centers of equal parts of the box, with bilinear interpolation between pixel centers.

    Args:
      encoded: string [n], PNGs of the image's size, zero outside the object.
      boxes: [n, 4], corners as fractions of the image.
      image_size: int64 [2], height and width in pixels.
    """
    sides = tf.cast(tf.tile(image_size, [2]), tf.float32)

    def one(inputs: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        png, box = inputs
        mask = tf.io.decode_png(png, channels=1)[..., 0] > 0
        message = ["a mask whose size differs from its image's", tf.shape(mask)]
        same = tf.reduce_all(tf.equal(tf.shape(mask, tf.int64), image_size))
        with tf.control_dependencies([tf.debugging.Assert(same, message)]):
            low = tf.cast(tf.floor(box[:2]), tf.int32)
        high = tf.minimum(tf.cast(tf.math.ceil(box[2:]), tf.int32), tf.cast(image_size, tf.int32))
        low = tf.minimum(low, high - 1)
        inside = tf.cast(mask[low[0] : high[0], low[1] : high[1]], tf.float32)
        rows = _weights(box[0], box[2], low[0], high[0], size)
        columns = _weights(box[1], box[3], low[1], high[1], size)
        cut = rows @ inside @ tf.transpose(columns)
        return tf.cast(cut >= 0.5, tf.uint8)

    spec = tf.TensorSpec([size, size], tf.uint8)
    return tf.map_fn(one, (encoded, boxes * sides), fn_output_signature=spec)


def _weights(low: tf.Tensor, high: tf.Tensor, first: tf.Tensor, last: tf.Tensor, size: int) -> tf.Tensor:
    """Computes the bilinear weights of pixels first..last-1 at the centers of `size` equal parts of [low, high].

    Returns float32 [size, last - first].
    """
    places = low + (tf.range(size, dtype=tf.float32) + 0.5) / size * (high - low) - 0.5
    pixels = tf.cast(tf.range(first, last), tf.float32)
    # The first and last pixels extend beyond their centers.
    places = tf.clip_by_value(places, pixels[0], pixels[-1])
    return tf.maximum(1 - tf.abs(places[:, None] - pixels), 0)
