"""Reads COCO TFRecords into SSD's batches: augmented for training, only resized for evaluation.

A batch is {"image": uint8 [b, S, S, 3], "boxes": float32 [b, G, 4] corners as fractions of the image, "classes": int32
[b, G], 0 for no object, "image_id": int64 [b], "weight": float32 [b]}. Matching and `normalize` run on the device.
Evaluation batches have no objects, because the annotation file holds the ground truth.
"""

import itertools
import os
from collections.abc import Mapping

import tensorflow as tf

from common.data import padding, pipeline, record_stream, tfrecords
from common.data.images import normalize_rgb, resize, to_uint8
from common.detection import coco_records
from common.distributed.replicas.base import Shard
from common.errors import UserError
from ssd import augment
from ssd.config import Config, Data

FIX = (
    "set DATA_DIR to a folder of COCO TFRecords, or make one with ssd/init_datasets.sh or `timetotrain data`"
)


def train_input(
    config: Config, data_dir: str | os.PathLike, shard: Shard, batch_size: int, start_step: int = 0
) -> tf.data.Dataset:
    """Yields one process's augmented training batches without end; skips images without object or crowd.

    Augmentation depends only on (config.seed, epoch, file, record); the order also depends on the shard. A stream that
    starts at `start_step` yields what an uninterrupted one yields from there on. Raises UserError if there are no
    files, or the number of categories differs from the configuration's.
    """
    per_step = shard.batches_per_step(config.global_batch_size, batch_size)
    data = config.data
    files = tfrecords.list_files(data_dir, data.train_pattern, FIX)
    categories = coco_records.categories(config, data_dir)
    first_key = tf.constant(config.seed % 2**32 * 2**24, tf.int64)  # Room for 2^24 epochs between two seeds.

    def augmented(epoch: tf.Tensor, file: tf.Tensor, record: tf.Tensor, example: Mapping) -> dict:
        key = tf.stack([first_key + epoch, file * 2**40 + record])
        objects = example["boxes"], example["classes"]
        image, boxes, classes = augment.train(coco_records.decoded(example["encoded"]), *objects, key, config)
        return {**_padded(image, boxes, classes, example["image_id"], data), "weight": tf.constant(1.0)}

    stream = coco_records.training_stream(
        files,
        shard,
        config.seed,
        data.shuffle_buffer,
        start_step * per_step * batch_size,
        transform=lambda serialized: _parse(serialized, categories),
        cache=data.cache == "encoded",
    )
    images = pipeline.prepared(stream, augmented)
    return pipeline.ahead(images.batch(batch_size, drop_remainder=True))


def eval_input(config: Config, data_dir: str | os.PathLike, shard: Shard, batch_size: int) -> tf.data.Dataset:
    """Makes one pass over this shard's validation images, padded so that all shards yield equally many batches.

    Images are only resized. Images without objects are included. Padding has image id -1 and weight 0. Raises UserError
    if there are no files, or one ends inside a record.
    """
    data = config.data
    files = tfrecords.list_files(data_dir, data.eval_pattern, FIX)
    sizes = [record_stream.size(files, Shard(i, shard.count)) for i in range(shard.count)]

    def parse(file: tf.Tensor, record: tf.Tensor, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        objects = coco_records.parse(serialized)
        return {"encoded": objects["encoded"], "image_id": objects["image_id"]}

    def resized(file: tf.Tensor, record: tf.Tensor, objects: Mapping) -> dict[str, tf.Tensor]:
        image = whole(coco_records.decoded(objects["encoded"]), config)
        none = tf.zeros([0, 4]), tf.zeros([0], tf.int32)
        return _padded(image, *none, objects["image_id"], data)

    stream = record_stream.once(files, shard, parse, cache=data.cache == "encoded")
    images = pipeline.prepared(stream, resized)
    side = config.image_size
    black = _padded(tf.zeros([side, side, 3], tf.uint8), tf.zeros([0, 4]), tf.zeros([0], tf.int32), -1, data)
    per_step = shard.batches_per_step(config.eval_batch_size, batch_size)
    batches = padding.num_batches(sizes, batch_size, per_step)
    return pipeline.ahead(padding.pad(images, black, batch_size, batches))


def synthetic(config: Config, batch_size: int) -> tf.data.Dataset:
    """Repeats one batch of seeded noise with both inputs' element_spec; used to compile and time a step."""
    key = tf.constant([config.seed, 0], tf.int64)
    shape = [batch_size, config.image_size, config.image_size, 3]
    pixels = tf.random.stateless_uniform(shape, key, maxval=256, dtype=tf.int32, alg="philox")
    count = config.data.max_boxes
    corner = tf.random.stateless_uniform([batch_size, count, 2], key, maxval=0.6, alg="philox")
    number = tf.range(count)
    classes = tf.where(number < 5, number % (config.num_classes - 1) + 1, 0)
    boxes = tf.where(classes[:, None] > 0, tf.concat([corner, corner + 0.3], -1), 0.0)
    batch = {
        "image": tf.cast(pixels, tf.uint8),
        "boxes": boxes,
        "classes": tf.tile(classes[None], [batch_size, 1]),
        "image_id": tf.range(batch_size, dtype=tf.int64),
        "weight": tf.ones([batch_size]),
    }
    return tf.data.Dataset.from_tensors(batch).repeat()


def normalize(image: tf.Tensor, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Computes (image - mean) / standard deviation per channel of [b, H, W, 3], values 0..255, on the device."""
    return tf.cast(normalize_rgb(image, dtype), dtype)


def check_files(config: Config, data_dir: str | os.PathLike) -> None:
    """Checks file names, and a note's record counts, without opening a data file.

    Raises UserError if files are missing, or a note has too few training images or the wrong number of evaluated ones.
    """
    train, held_out = coco_records.splits(config, data_dir, FIX)
    coco_records.check_there(coco_records.annotation_file(config, data_dir))
    coco_records.check_totals(train, held_out, config, read=False)


def check(config: Config, data_dir: str | os.PathLike) -> None:
    """Checks the data against the configuration without reading images.

    Raises UserError if there are no files, the number of categories or of evaluated images differs from the
    configuration's, there are too few training images, or the annotations cannot be evaluated.
    """
    train, held_out = coco_records.splits(config, data_dir, FIX)
    annotations = coco_records.annotation_file(config, data_dir)
    coco_records.Categories.read(annotations, config.num_classes)
    coco_records.check_totals(train, held_out, config)
    coco_records.check_evaluation(annotations, None, config.num_eval_examples)


def diagnose(config: Config, data_dir: str | os.PathLike) -> UserError:
    """Reads all files after the input has failed, and names the file, record and image at fault."""

    def find() -> UserError | None:
        categories = coco_records.categories(config, data_dir)
        return tfrecords.diagnose(
            itertools.chain(*coco_records.splits(config, data_dir, FIX)),
            lambda record: coco_records.complaint(record, categories),
        )

    return tfrecords.explain(data_dir, find)


def _parse(serialized: tf.Tensor, categories: coco_records.Categories) -> dict[str, tf.Tensor]:
    """Parses a record."""
    objects = coco_records.parse(serialized)
    return {
        "encoded": objects["encoded"],
        "image_id": objects["image_id"],
        "boxes": tf.clip_by_value(objects["boxes"], 0.0, 1.0),
        "classes": categories.classes_of(objects),
    }


def whole(image: tf.Tensor, config: Config) -> tf.Tensor:
    """Resizes an evaluated picture, [H, W, 3], to the network's: uint8 [S, S, 3]."""
    size = config.image_size
    return tf.ensure_shape(to_uint8(resize(image, [size, size], config.details.resize)), [size, size, 3])


def _padded(
    image: tf.Tensor, boxes: tf.Tensor, classes: tf.Tensor, image_id: tf.Tensor | int, data: Data
) -> dict[str, tf.Tensor]:
    """Makes the batch entries of one image: the first `max_boxes` objects, padded with zeros."""
    boxes, classes = boxes[: data.max_boxes], classes[: data.max_boxes]
    missing = data.max_boxes - tf.shape(classes)[0]
    return {
        "image": image,
        "boxes": tf.ensure_shape(tf.pad(boxes, [[0, missing], [0, 0]]), [data.max_boxes, 4]),
        "classes": tf.ensure_shape(tf.pad(classes, [[0, missing]]), [data.max_boxes]),
        "image_id": tf.cast(image_id, tf.int64),
    }
