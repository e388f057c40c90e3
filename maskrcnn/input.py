"""Reads COCO TFRecords with masks into batches; all images of a batch have the same orientation.

A batch is {"image": uint8 [b, H, W, 3], "image_info": float32 [b, 3] (content height and width in pixels, and scale),
"boxes": float32 [b, G, 4] corners in pixels of the frame, "classes": int32 [b, G], 0 for no object, "masks": uint8
[b, G, S, S] of 0 and 1, each filling its box, "image_id": int64 [b], "weight": float32 [b]}. (H, W) is one of
`config.shapes` and the same on all replicas in a step (common/detection/coco_index.py). `normalized` runs on the
device. Evaluation batches have no objects, because the annotation file holds the ground truth.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from common.config.run_length import RunLength
from common.data import pipeline, record_counts, tfrecords
from common.data.images import normalize_rgb
from common.detection import coco_index, coco_records, notes
from common.detection.coco_index import Index
from common.distributed import process
from common.distributed.replicas.base import Shard
from common.errors import UserError
from common.train.task import Batch
from maskrcnn import augment
from maskrcnn.config import Config

FIX = "set DATA_DIR to a folder of COCO TFRecords with masks; maskrcnn/init_datasets.sh or `timetotrain data` makes one"


def train_input(
    config: Config, data_dir: str | os.PathLike, shard: Shard, batch_size: int, start_step: int = 0
) -> tf.data.Dataset:
    """Yields one process's training batches for the run; every epoch has every image once, in a new order.

    Mirroring depends only on (config.seed, epoch, image number); the order depends only on config.seed. A stream that
    starts at `start_step` yields what an uninterrupted one yields from there on. Raises UserError if there are no
    files, or the categories do not fit the configuration.
    """
    index = coco_index.read(tfrecords.list_files(data_dir, config.data.train_pattern, FIX))
    categories = coco_records.categories(config, data_dir, by_id=True)
    numbers = training_numbers(config, index)
    grouping = coco_index.Grouping(groups(config, index)[numbers], config.global_batch_size, config.seed)
    first_key = tf.constant(config.seed % 2**32 * 2**24, tf.int64)  # Room for 2^24 epochs between two seeds.

    def prepared(epoch: tf.Tensor, number: tf.Tensor, wide: tf.Tensor, serialized: tf.Tensor) -> dict:
        record = _parse(serialized, categories, config.max_instances)
        image, boxes = _decode(record["encoded"], record["size"]), record["boxes"]
        masks = augment.cut_masks(record["masks"], boxes, record["size"], config.sizes.gt_mask_size)
        if config.data.flip:
            key = tf.stack([first_key + epoch, number])
            image, boxes, masks = augment.mirrored(image, boxes, masks, key)
        pixels, info = augment.framed(image, wide, config)
        objects = boxes * tf.tile(info[:2], [2]), record["classes"], masks
        return _example(pixels, info, *objects, record["image_id"], 1.0, config)

    planned = grouping.ahead(shard, start_step, max(RunLength.of(config).train_steps, start_step + 1))
    plan = [dataclasses.replace(batch, examples=numbers[batch.examples]) for batch in planned]
    return _batches(config, index, plan, prepared, batch_size)


def eval_input(
    config: Config, data_dir: str | os.PathLike, shard: Shard, batch_size: int, steps: int
) -> tf.data.Dataset:
    """Makes one pass over the validation images in `steps` steps of `eval_batch_size`; padding has id -1, weight 0.

    `steps` is the clock's number per evaluation, enough for both orientations.
    """
    index = coco_index.read(tfrecords.list_files(data_dir, config.data.eval_pattern, FIX))

    def prepared(_: tf.Tensor, number: tf.Tensor, wide: tf.Tensor, serialized: tf.Tensor) -> dict:
        def real() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            record = coco_records.parse(serialized)
            framed = augment.framed(_decode(record["encoded"], record["size"]), wide, config)
            return *framed, record["image_id"]

        def padding() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            black = tf.zeros([1, 1, 3], tf.uint8)
            return *augment.framed(black, wide, config), tf.constant(-1, tf.int64)

        pixels, info, image_id = tf.cond(number >= 0, real, padding)
        weight, size = tf.cast(number >= 0, tf.float32), config.sizes.gt_mask_size
        none = tf.zeros([0, 4]), tf.zeros([0], tf.int32), tf.zeros([0, size, size], tf.uint8)
        return _example(pixels, info, *none, image_id, weight, config)

    plan = list(coco_index.passes(groups(config, index), config.eval_batch_size, shard, steps))
    per_step = shard.batches_per_step(config.eval_batch_size, batch_size)
    batches = _batches(config, index, plan, prepared, batch_size)
    return batches.apply(tf.data.experimental.assert_cardinality(steps * per_step))


def synthetic(config: Config, batch_size: int) -> tf.data.Dataset:
    """Repeats batches of seeded noise that alternate between orientations, with both inputs' element_spec."""
    key = tf.constant([config.seed, 0], tf.int64)
    count, size = config.max_instances, config.sizes.gt_mask_size
    classes = tf.where(tf.range(count) < 5, tf.range(count) % (config.num_classes - 1) + 1, 0)
    corner = tf.random.stateless_uniform([batch_size, count, 2], key, maxval=0.6, alg="philox")
    side = tf.random.stateless_uniform([batch_size, count, 2], key + 1, 0.1, 0.4, alg="philox")

    def batch(shape: tuple[int, int]) -> tf.data.Dataset:
        pixels = tf.random.stateless_uniform(
            [batch_size, *shape, 3], key, maxval=256, dtype=tf.int32, alg="philox"
        )
        boxes = tf.concat([corner, corner + side], -1) * tf.constant([*shape, *shape], tf.float32)
        info = tf.constant([*map(float, shape), 1.0])
        return tf.data.Dataset.from_tensors(
            {
                "image": tf.cast(pixels, tf.uint8),
                "image_info": tf.tile(info[None], [batch_size, 1]),
                "boxes": tf.where(classes[:, None] > 0, boxes, 0.0),
                "classes": tf.tile(classes[None], [batch_size, 1]),
                "masks": tf.ones([batch_size, count, size, size], tf.uint8),
                "image_id": tf.range(batch_size, dtype=tf.int64),
                "weight": tf.ones([batch_size]),
            }
        )

    return functools.reduce(tf.data.Dataset.concatenate, map(batch, config.shapes)).repeat()


def normalized(batch: Batch, dtype: tf.DType = tf.float32) -> Batch:
    """Replaces images by (image - mean) / standard deviation per channel, 0 outside the content; on the device."""
    image = normalize_rgb(batch["image"], dtype)
    rows, columns = (tf.range(n, dtype=tf.float32) for n in image.shape[1:3])
    high, wide = batch["image_info"][:, 0, None], batch["image_info"][:, 1, None]
    inside = (rows < high)[:, :, None] & (columns < wide)[:, None]
    image = tf.where(inside[..., None], image, tf.zeros_like(image))
    return {**batch, "image": tf.cast(image, dtype)}


def groups(config: Config, index: Index) -> np.ndarray:
    """Returns the frame of each image, int [n]: 1 for wide, 0 for tall; all 0 if there is only one frame."""
    return index.wide.astype(int) if len(config.shapes) > 1 else np.zeros(len(index), int)


def training_numbers(config: Config, index: Index) -> np.ndarray:
    """Lists the numbers of the training images; with `data.skip_empty`, only of images with an annotation."""
    return np.flatnonzero(index.objects > 0) if config.data.skip_empty else np.arange(len(index))


def check_files(config: Config, data_dir: str | os.PathLike) -> None:
    """Checks file names, and a note's record counts, without opening a data file.

    Raises UserError if files are missing, or a note has too few training images or the wrong number of evaluated ones.
    """
    train, held_out = coco_records.splits(config, data_dir, FIX)
    coco_records.check_there(coco_records.annotation_file(config, data_dir))
    # Without notes, the index supplies the numbers later, on the clock.
    if all(record_counts.noted(files) for files in (train, held_out)):
        coco_records.check_totals(train, held_out, config, read=False)
    for files in (train, held_out):
        if "://" not in files[0] and not coco_index.is_kept(files):
            process.print_once(
                f"{files[0]} and the like have no index: the run reads them all on the clock; make it before: "
                f"{notes.command(data_dir)}"
            )


def check(config: Config, data_dir: str | os.PathLike) -> None:
    """Checks the index of all records against the configuration; if there is no index, reads the records to make one.

    Raises UserError if there are no files or no masks, the number of images or the categories do not fit the
    configuration, or the annotations cannot be evaluated.
    """
    train, held_out = map(coco_index.read, coco_records.splits(config, data_dir, FIX))
    coco_records.categories(config, data_dir, by_id=True)
    coco_records.check_count("train", len(training_numbers(config, train)), config.num_train_examples)
    coco_records.check_evaluation(
        coco_records.annotation_file(config, data_dir),
        held_out.image_id.tolist(),
        config.num_eval_examples,
        masks=True,
    )
    bare = np.flatnonzero(train.masks < train.objects + train.no_area)
    if len(bare):
        raise UserError(
            f"{train.files[train.file[bare[0]]]}: image {train.image_id[bare[0]]} has objects without a mask, like "
            f"{len(bare)} images of {len(train)}; convert them with MASKS=1 ./maskrcnn/init_datasets.sh"
        )
    if train.no_area.any():
        first = int(np.flatnonzero(train.no_area)[0])
        process.print_once(
            f"{int(train.no_area.sum())} training objects whose box has no area are left out, in image "
            f"{train.image_id[first]} for one"
        )


def diagnose(config: Config, data_dir: str | os.PathLike) -> UserError:
    """Reads all files after the input has failed, and names the file, record and image at fault."""

    def find() -> UserError | None:
        categories = coco_records.categories(config, data_dir, by_id=True)
        for files, masks in zip(coco_records.splits(config, data_dir, FIX), (True, False)):
            damage = tfrecords.diagnose(
                files,
                functools.partial(coco_records.complaint, categories=categories, masks=masks, sized=True),
            )
            if damage:
                return damage
        return None

    return tfrecords.explain(data_dir, find)


def _batches(
    config: Config, index: Index, plan: Sequence[coco_index.Batch], prepared: Callable, batch_size: int
) -> tf.data.Dataset:
    """Reads the examples of a plan, maps `prepared` over them and batches the results.

    `prepared` accepts an example's (epoch, number, wide, serialized); a number below 0 is padding, serialized as b"".
    TensorFlow's own operations read the records, so that TPU hosts can run the pipeline.
    """
    data = config.data
    reader = coco_index.Reader(index, data.cache == "encoded")

    def read(epoch: tf.Tensor, number: tf.Tensor, wide: tf.Tensor) -> dict[str, tf.Tensor]:
        serialized = tf.cond(number >= 0, lambda: reader(number), lambda: tf.constant(b""))
        return prepared(epoch, number, wide, serialized)

    rows = (
        np.concatenate([batch.epochs for batch in plan]).astype(np.int64),
        np.concatenate([batch.examples for batch in plan]).astype(np.int64),
        np.repeat([batch.group > 0 for batch in plan], [len(batch.examples) for batch in plan]),
    )
    images = pipeline.prepared(tf.data.Dataset.from_tensor_slices(rows), read)
    # Deterministic, because an image that overtakes another could land in a batch of the other orientation.
    return pipeline.ahead(images.batch(batch_size, drop_remainder=True))


def _parse(serialized: tf.Tensor, categories: coco_records.Categories, most: int) -> dict[str, tf.Tensor]:
    """Parses a record's first `most` objects that are not crowds."""
    objects = coco_records.parse(serialized, masks=True)
    single = tf.where(~objects["crowd"])[:most, 0]
    return {
        "encoded": objects["encoded"],
        "size": objects["size"],
        "image_id": objects["image_id"],
        "boxes": tf.clip_by_value(tf.gather(objects["boxes"], single), 0.0, 1.0),
        "classes": tf.gather(categories.classes_of(objects), single),
        "masks": tf.gather(objects["masks"], single),
    }


def _decode(encoded: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Decodes to uint8 [h, w, 3] and checks the record's height and width."""
    image = coco_records.decoded(encoded)
    same = tf.reduce_all(tf.equal(tf.shape(image, tf.int64)[:2], size))
    with tf.control_dependencies([tf.debugging.Assert(same, ["not the size that the record says", size])]):
        return tf.identity(image)


def _example(
    image: tf.Tensor,
    info: tf.Tensor,
    boxes: tf.Tensor,
    classes: tf.Tensor,
    masks: tf.Tensor,
    image_id: tf.Tensor,
    weight: tf.Tensor | float,
    config: Config,
) -> Mapping[str, tf.Tensor]:
    """Makes the batch entries of one image; pads its objects with zeros to `max_instances`."""
    count, size = config.max_instances, config.sizes.gt_mask_size
    missing = [[0, count - tf.shape(classes)[0]]]
    return {
        "image": image,
        "image_info": tf.ensure_shape(info, [3]),
        "boxes": tf.ensure_shape(tf.pad(boxes, [*missing, [0, 0]]), [count, 4]),
        "classes": tf.ensure_shape(tf.pad(classes, missing), [count]),
        "masks": tf.ensure_shape(tf.pad(masks, [*missing, [0, 0], [0, 0]]), [count, size, size]),
        "image_id": tf.cast(image_id, tf.int64),
        "weight": tf.cast(weight, tf.float32),
    }
