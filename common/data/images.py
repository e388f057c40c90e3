"""Resizes pictures, and normalizes RGB pixels by ImageNet's mean and standard deviation."""

import tensorflow as tf

# Per channel, for values 0..255. The same as in G6 resnet/resnet_main.py, REF ssd-v1/ssd/utils.py, G7 Mask R-CNN's
# dataloader.py and TSM's transforms.
MEAN_RGB = (0.485 * 255, 0.456 * 255, 0.406 * 255)
STDDEV_RGB = (0.229 * 255, 0.224 * 255, 0.225 * 255)


def normalize_rgb(pixels: tf.Tensor, dtype: tf.DType, repeats: int = 1) -> tf.Tensor:
    """Returns (pixels - mean) / standard deviation per channel of [..., 3 x repeats], RGB of any dtype, 0..255.

    The arithmetic and the result are float64 if `dtype`, the network's, is, else float32; the caller casts the result
    after all other arithmetic.
    """
    dtype = tf.float64 if dtype == tf.float64 else tf.float32
    offset = tf.constant([-m / s for m, s in zip(MEAN_RGB, STDDEV_RGB)], dtype)
    scale = tf.constant([1 / s for s in STDDEV_RGB], dtype)
    if repeats > 1:
        offset, scale = tf.tile(offset, [repeats]), tf.tile(scale, [repeats])
    return tf.cast(pixels, dtype) * scale + offset


def resize(image: tf.Tensor, size: tf.Tensor | list[int], method: str) -> tf.Tensor:
    """Resizes [H, W, 3] of any dtype to float32 [height, width, 3]; `size` is int32 [2], height and width.

    Bicubic results may leave the pixels' range. Floats are interpolated, because uint8 takes 1.5 times as long.
    `method` is one of `common.config.ranges.RESIZES`.
    """
    if method == "antialiased":
        return tf.image.resize(image, size, antialias=True)
    kernel = tf.raw_ops.ResizeBicubic if method.endswith("bicubic") else tf.raw_ops.ResizeBilinear
    pixels = tf.cast(image, tf.float32)[None]
    return kernel(images=pixels, size=size, half_pixel_centers=not method.startswith("legacy"))[0]


def to_uint8(pixels: tf.Tensor) -> tf.Tensor:
    """Rounds float32 pixels and clips them to 0..255, so that batching moves a quarter of the bytes."""
    return tf.cast(tf.clip_by_value(pixels + 0.5, 0.0, 255.0), tf.uint8)
