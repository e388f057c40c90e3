"""Reads ImageNet TFRecords into batches: decodes images, crops at random for training and centrally for evaluation.

The files have the layout of the TPU reference and tf-models: train-00000-of-01024 and validation-00000-of-00128, with
image/encoded and image/class/label. Other features are ignored. A batch is {"image": uint8 [b, S, S, 3], "label":
int32 [b], "weight": float32 [b]}; `normalize` runs on the device.
"""

import os

import tensorflow as tf

from common.data import padding, pipeline, record_counts, record_stream, tfrecords
from common.data.images import normalize_rgb, resize, to_uint8
from common.distributed.replicas.base import Shard
from common.errors import UserError
from resnet.config import Config

FIX = "set DATA_DIR to a folder of ImageNet TFRecords, or make one with resnet/init_datasets.sh or `timetotrain data`"

FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string, default_value=""),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64, default_value=-1),
}
_FLIP_STREAM = 1 << 62  # Makes the flip's key differ from the crop's key; record numbers stay far below.


def train_input(
    config: Config, data_dir: str | os.PathLike, shard: Shard, batch_size: int, start_step: int = 0
) -> tf.data.Dataset:
    """Yields one process's augmented training batches without end.

    Augmentation depends only on (config.seed, epoch, file, record); the order also depends on the shard. Neither
    depends on the cache or on threads. A stream that starts at `start_step` yields what an uninterrupted one yields
    from there on. Raises UserError if there are no files.
    """
    per_step = shard.batches_per_step(config.global_batch_size, batch_size)
    data = config.data
    files = tfrecords.list_files(data_dir, data.train_pattern, FIX)
    names = tf.constant(files)
    first_key = tf.constant(config.seed % 2**32 * 2**24, tf.int64)  # Room for 2^24 epochs between two seeds.

    def parse(file: tf.Tensor, record: tf.Tensor, serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        encoded, label = _parse(config, names, file, record, serialized)
        return (_decode(encoded) if data.cache == "decoded" else encoded), label

    def augment(epoch: tf.Tensor, file: tf.Tensor, record: tf.Tensor, parsed: tuple) -> dict[str, tf.Tensor]:
        image, label = parsed
        key = tf.stack([first_key + epoch, file * 2**40 + record])
        return {
            "image": _random_crop(image, key, config),
            "label": label,
            "weight": tf.constant(1.0),
        }

    stream = record_stream.endless(
        files,
        shard,
        config.seed,
        data.shuffle_buffer,
        start=start_step * per_step * batch_size,
        transform=parse,
        cache=data.cache != "none",
    )
    images = pipeline.prepared(stream, augment)
    return pipeline.ahead(images.batch(batch_size, drop_remainder=True))


def eval_input(config: Config, data_dir: str | os.PathLike, shard: Shard, batch_size: int) -> tf.data.Dataset:
    """Makes one pass over this shard's validation images, padded so that all shards yield equally many batches.

    Padding has label -1, which an argmax never equals, and weight 0. Raises UserError if there are no files, or one
    ends inside a record.
    """
    data = config.data
    files = tfrecords.list_files(data_dir, data.eval_pattern, FIX)
    names = tf.constant(files)
    counts = record_counts.counts(files)
    sizes = [
        sum(part.size(counts[part.file]) for part in record_stream.assign(len(files), Shard(i, shard.count)))
        for i in range(shard.count)
    ]

    def parse(file: tf.Tensor, record: tf.Tensor, serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return _parse(config, names, file, record, serialized)

    def crop(file: tf.Tensor, record: tf.Tensor, parsed: tuple) -> dict[str, tf.Tensor]:
        encoded, label = parsed
        return {"image": central_crop(encoded, config), "label": label}

    stream = record_stream.once(files, shard, parse, cache=data.cache == "encoded")
    images = pipeline.prepared(stream, crop)
    if data.cache == "decoded":  # The crop never changes, so keep its result.
        images = images.cache()
    black = {"image": tf.zeros([config.image_size, config.image_size, 3], tf.uint8), "label": -1}
    per_step = shard.batches_per_step(config.eval_batch_size, batch_size)
    batches = padding.num_batches(sizes, batch_size, per_step)
    return pipeline.ahead(padding.pad(images, black, batch_size, batches))


def synthetic(config: Config, batch_size: int) -> tf.data.Dataset:
    """Repeats one batch of seeded noise with both inputs' element_spec; used to compile and time a step."""
    shape = [batch_size, config.image_size, config.image_size, 3]
    key = tf.constant([config.seed, 0], tf.int64)
    pixels = tf.random.stateless_uniform(shape, key, maxval=256, dtype=tf.int32, alg="philox")
    batch = {
        "image": tf.cast(pixels, tf.uint8),
        "label": tf.range(batch_size, dtype=tf.int32) % config.num_classes,
        "weight": tf.ones([batch_size]),
    }
    return tf.data.Dataset.from_tensors(batch).repeat()


def normalize(image: tf.Tensor, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Computes (image - mean) / standard deviation per channel, on the device.

    Args:
      image: [b, H, W, 3], or [b, H/2, W/2, 12] after space-to-depth, whose channels repeat RGB four times;
        values 0..255 of any dtype.
      dtype: type of the result; the arithmetic is float32 where it has fewer bits.

    Returns:
      The shape of `image`, `dtype`.
    """
    shape, static = tf.shape(image), image.shape
    # Whole rows of pixels: broadcasting over a last dimension of 3 takes 7 times as long on a CPU.
    width = static[2] * static[3]
    rows = normalize_rgb(tf.reshape(image, [-1, width]), dtype, width // 3)
    return tf.ensure_shape(tf.reshape(tf.cast(rows, dtype), shape), static)


def check_files(config: Config, data_dir: str | os.PathLike) -> None:
    """Raises UserError if a split has no files or a note has the wrong number of images; opens no data file."""
    check(config, data_dir, read=False)


def check(config: Config, data_dir: str | os.PathLike, read: bool = True) -> None:
    """Raises UserError if a split has no files, or not the configured number of images.

    Without `read`, only a note's numbers are compared.
    """
    for split in ("train", "eval"):
        files = tfrecords.list_files(data_dir, getattr(config.data, f"{split}_pattern"), FIX)
        field = f"num_{split}_examples"
        record_counts.check_totals(files, getattr(config, field), field, read)


def diagnose(config: Config, data_dir: str | os.PathLike) -> UserError:
    """Reads all files again after the input has failed, and names the file and record at fault.

    The loop calls it when an iterator raises tf.errors.DataLossError or InvalidArgumentError. It takes as long as
    decoding the data set once.
    """

    def check(serialized: bytes) -> str | None:
        try:
            parsed = tf.io.parse_single_example(serialized, FEATURES)
        except tf.errors.InvalidArgumentError:
            return "not a tf.train.Example with image/encoded and image/class/label"
        complaint = _label_complaint(config, int(parsed["image/class/label"]))
        if complaint:
            return complaint
        try:
            _decode(parsed["image/encoded"])
        except tf.errors.InvalidArgumentError:
            return "image/encoded is not a JPEG or PNG image"
        return None

    patterns = (config.data.train_pattern, config.data.eval_pattern)
    files = (file for pattern in patterns for file in tfrecords.list_files(data_dir, pattern, FIX))
    return tfrecords.explain(data_dir, lambda: tfrecords.diagnose(files, check))


def _label_complaint(config: Config, label: int) -> str | None:
    first = config.data.label_offset
    last = first + config.num_classes - 1
    if first <= label <= last:
        return None
    return f"image/class/label is {label}, must be {first}..{last} (config.num_classes={config.num_classes})"


def _parse(
    config: Config, names: tf.Tensor, file: tf.Tensor, record: tf.Tensor, serialized: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Parses (encoded image, label from 0); a label out of range ends the stream with an error naming the record."""
    parsed = tf.io.parse_single_example(serialized, FEATURES)
    label = tf.cast(parsed["image/class/label"], tf.int32) - config.data.label_offset
    fine = (label >= 0) & (label < config.num_classes)
    message = [
        "label out of range",
        names[file],
        "record",
        record,
        "image/class/label",
        parsed["image/class/label"],
    ]
    with tf.control_dependencies([tf.debugging.Assert(fine, message)]):
        return parsed["image/encoded"], tf.identity(label)


def _decode(encoded: tf.Tensor) -> tf.Tensor:
    """Decodes to uint8 [H, W, 3]; converts grayscale and CMYK JPEG, and PNG, to RGB."""
    image = tf.io.decode_jpeg(encoded, channels=3)  # Reads PNG too (decode_image_op.cc).
    return tf.ensure_shape(image, [None, None, 3])


def _size(encoded: tf.Tensor) -> tf.Tensor:
    """Reads the size of an encoded image, int32 [3]: height, width, channels."""
    return tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: tf.image.extract_jpeg_shape(encoded),
        lambda: tf.shape(_decode(encoded)),
    )


def _cut(image: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    """Cuts the window (top, left, height, width) out of an encoded or decoded image: uint8 [h, w, 3]."""
    if image.dtype == tf.uint8:
        return _slice(image, window)
    return tf.cond(
        tf.io.is_jpeg(image), lambda: _decode_window(image, window), lambda: _slice(_decode(image), window)
    )


def _decode_window(encoded: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    """Decodes only a window of a JPEG; the pixels equal those from decoding the whole image.

    The function decodes one more column on either side. Otherwise the first and last columns would lack a neighbor for
    chroma interpolation, and differ from the whole image by up to 40 of 255.
    """
    top, left, height, width = tf.unstack(window)
    first = tf.maximum(left - 1, 0)
    last = tf.minimum(left + width + 1, tf.image.extract_jpeg_shape(encoded)[1])
    wide = tf.image.decode_and_crop_jpeg(encoded, tf.stack([top, first, height, last - first]), channels=3)
    return wide[:, left - first : left - first + width]


def _slice(image: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    return tf.slice(image, [window[0], window[1], 0], [window[2], window[3], 3])


def _random_crop(image: tf.Tensor, key: tf.Tensor, config: Config) -> tf.Tensor:
    """Crops at random as G6 resnet/imagenet_input.py does, resizes, and mirrors half the time; uint8 [size, size, 3].

    Args:
      image: encoded (string) or decoded (uint8 [H, W, 3]).
      key: int64 [2] that determines the result.
    """
    size, data, details = config.image_size, config.data, config.details
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        _size(image) if image.dtype == tf.string else tf.shape(image),
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        key,
        min_object_covered=details.min_object_covered,
        aspect_ratio_range=details.aspect_range,
        area_range=data.area_range,
        max_attempts=details.max_attempts,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([begin[:2], extent[:2]], 0)
    result = to_uint8(resize(_cut(image, window), [size, size], data.resize))
    if not data.flip:
        return result
    heads = tf.random.stateless_uniform([], key + _FLIP_STREAM, alg="philox") < 0.5
    return tf.ensure_shape(tf.cond(heads, lambda: tf.reverse(result, [1]), lambda: result), [size, size, 3])


def central_crop(encoded: tf.Tensor, config: Config) -> tf.Tensor:
    """Cuts out the central square (side: `crop_fraction` of the short side) and resizes it: uint8 [size, size, 3]."""
    size, shape = config.image_size, _size(encoded)
    short = tf.cast(tf.minimum(shape[0], shape[1]), tf.float32)
    side = tf.maximum(1, tf.cast(short * config.crop_fraction, tf.int32))
    top, left = (shape[0] - side + 1) // 2, (shape[1] - side + 1) // 2
    square = _cut(encoded, tf.stack([top, left, side, side]))
    return tf.ensure_shape(to_uint8(resize(square, [size, size], config.data.resize)), [size, size, 3])
