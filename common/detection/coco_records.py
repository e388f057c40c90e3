"""Reads COCO images and their objects from TFRecords, in the layout of tf-models' create_coco_tf_record.

There is one record per image: image/encoded, image/source_id (the COCO image id in decimal digits), image/height,
image/width. Per object it has image/object/bbox/{ymin,xmin,ymax,xmax} as fractions of the image,
image/object/class/label (the original category id), image/object/is_crowd and, if masks were converted,
image/object/mask (PNG).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from common.config.schema import RunConfig
from common.data import record_counts, record_stream, tfrecords
from common.distributed.replicas.base import Shard
from common.errors import UserError

Objects = Mapping[str, tf.Tensor]

_SIDES = ("ymin", "xmin", "ymax", "xmax")
FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string, default_value=""),
    "image/source_id": tf.io.FixedLenFeature([], tf.string, default_value=""),
    "image/object/class/label": tf.io.VarLenFeature(tf.int64),
    "image/object/is_crowd": tf.io.VarLenFeature(tf.int64),
    "image/height": tf.io.FixedLenFeature([], tf.int64, default_value=0),
    "image/width": tf.io.FixedLenFeature([], tf.int64, default_value=0),
    **{f"image/object/bbox/{side}": tf.io.VarLenFeature(tf.float32) for side in _SIDES},
}
MASKS = {"image/object/mask": tf.io.VarLenFeature(tf.string)}


@dataclasses.dataclass(frozen=True)
class Categories:
    """An annotation file's categories: id `ids[i]` is the network's class `classes[i]`; class 0 is the background."""

    ids: tuple[int, ...]
    classes: tuple[int, ...]

    @classmethod
    def read(cls, annotations: str | os.PathLike, num_classes: int, by_id: bool = False) -> Categories:
        """Reads the annotation file. Classes count from 1 without gaps; with `by_id` they are the ids themselves.

        Raises UserError if the file is missing or damaged, or its categories do not fit `num_classes`.
        """
        ids = _category_ids(os.fspath(annotations))
        if by_id and max(ids) >= num_classes:
            raise UserError(
                f"{annotations}: category {max(ids)}, config.num_classes={num_classes} makes room for ids below it; "
                f"set config.num_classes={max(ids) + 1}"
            )
        if not by_id and len(ids) + 1 != num_classes:
            raise UserError(
                f"{annotations}: {len(ids)} categories, config.num_classes={num_classes} makes room for "
                f"{num_classes - 1} and the background; set config.num_classes={len(ids) + 1}"
            )
        return cls(ids, ids if by_id else tuple(range(1, len(ids) + 1)))

    def to_class(self, labels: tf.Tensor) -> tf.Tensor:
        """Maps original ids (any shape) to int32 classes; an unknown id becomes -1."""
        table = np.full(max(self.ids) + 2, -1, np.int32)
        table[list(self.ids)] = self.classes
        inside = (labels >= 0) & (labels <= max(self.ids))
        return tf.gather(table, tf.where(inside, labels, max(self.ids) + 1))

    def classes_of(self, objects: Objects) -> tf.Tensor:
        """Returns a record's classes; an unknown id ends the stream with an error that names the image."""
        classes = self.to_class(objects["labels"])
        message = ["category is not in the annotation file", "image", objects["image_id"]]
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(classes > 0), message)]):
            return tf.identity(classes)


def categories(config: Any, data_dir: str | os.PathLike, by_id: bool = False) -> Categories:
    """Returns the categories of the evaluated images; see `Categories.read`."""
    return Categories.read(annotation_file(config, data_dir), config.num_classes, by_id)


def annotation_file(config: Any, data_dir: str | os.PathLike) -> str:
    """Returns the path of the COCO file of the evaluated images."""
    return os.path.join(os.fspath(data_dir), config.data.annotations)


def splits(config: Any, data_dir: str | os.PathLike, fix: str) -> tuple[list[str], list[str]]:
    """Returns (training files, evaluation files); raises UserError with `fix` if there are none."""
    patterns = config.data.train_pattern, config.data.eval_pattern
    train, held_out = (tfrecords.list_files(data_dir, pattern, fix) for pattern in patterns)
    return train, held_out


def decoded(encoded: tf.Tensor) -> tf.Tensor:
    """Decodes to uint8 [H, W, 3]; converts grayscale JPEG, and PNG, to RGB."""
    return tf.ensure_shape(tf.io.decode_jpeg(encoded, channels=3), [None, None, 3])


def labels(config: Any, data_dir: str | os.PathLike | None, by_id: bool = False) -> tuple[str, ...]:
    """Returns the names of the network's classes, "background" first; () without an annotation file.

    `Categories.read` defines the class numbers; with `by_id`, an id without a category has the name "". Raises
    UserError if the annotation file is damaged.
    """
    annotations = annotation_file(config, data_dir) if data_dir else ""
    if not annotations or not tf.io.gfile.exists(annotations):
        return ()
    ids = _category_ids(annotations)
    with tf.io.gfile.GFile(annotations) as file:
        names = {int(c["id"]): str(c.get("name", c["id"])) for c in json.load(file)["categories"]}
    order = range(1, max(ids) + 1) if by_id else ids
    return ("background", *(names.get(number, "") for number in order))


@functools.lru_cache(maxsize=8)
def _category_ids(annotations: str) -> tuple[int, ...]:
    try:
        with tf.io.gfile.GFile(annotations) as file:
            content = json.load(file)
        ids = tuple(sorted(category["id"] for category in content["categories"]))
    except tf.errors.OpError as error:
        raise UserError(_unreadable(annotations)) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{annotations} is not a COCO annotation file ({type(error).__name__}: {error}); download it again"
        ) from error
    if not ids or ids[0] < 1:
        raise UserError(f"{annotations}: categories {list(ids[:3])}: needs some, of ids from 1 on")
    return ids


def parse(serialized: tf.Tensor, masks: bool = False) -> Objects:
    """Parses one record; leaves out boxes without an area, like tf-models' converter.

    Returns {"encoded": string, "image_id": int64, "size": int64 [2], the record's height and width, "boxes": float32
    [n, 4], corners as fractions of the image, "labels": int64 [n], original ids, "crowd": bool [n]}. With `masks` also
    "masks": string [n], PNG.
    """
    raw = tf.io.parse_single_example(serialized, {**FEATURES, **(MASKS if masks else {})})
    boxes = tf.stack([tf.sparse.to_dense(raw[f"image/object/bbox/{side}"]) for side in _SIDES], -1)
    labels = tf.sparse.to_dense(raw["image/object/class/label"])
    crowd = tf.sparse.to_dense(raw["image/object/is_crowd"]) > 0
    # Some converters omit the feature if no object is a crowd.
    crowd = tf.pad(crowd, [[0, tf.maximum(tf.shape(labels)[0] - tf.shape(crowd)[0], 0)]])
    real = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    objects = {
        "encoded": raw["image/encoded"],
        "image_id": tf.strings.to_number(raw["image/source_id"], tf.int64),
        "size": tf.stack([raw["image/height"], raw["image/width"]]),
        "boxes": tf.boolean_mask(boxes, real),
        "labels": tf.boolean_mask(labels, real),
        "crowd": tf.boolean_mask(crowd, real),
    }
    if masks:
        objects["masks"] = tf.boolean_mask(tf.sparse.to_dense(raw["image/object/mask"]), real)
    return objects


def check_there(annotations: str | os.PathLike) -> None:
    """Raises UserError if there is no annotation file, without opening it; imports the evaluation's modules."""
    from common.detection import coco_eval  # noqa: F401 (before the clock, not on it)

    if not tf.io.gfile.exists(os.fspath(annotations)):
        raise UserError(_unreadable(annotations))


def _unreadable(annotations: str | os.PathLike) -> str:
    return f"annotation file {annotations} cannot be read; fill the folder with init_datasets.sh"


def check_totals(train: Sequence[str], held_out: Sequence[str], config: RunConfig, read: bool = True) -> None:
    """Raises UserError for records of too few training images, or of another number of evaluation images.

    With `read`, it counts records in files without a note; not before the clock starts or in an object store.
    """
    for split, files in (("train", train), ("eval", held_out)):
        counts = record_counts.known_or_read(files, read)
        total, expected = sum(counts or ()), getattr(config, f"num_{split}_examples")
        # Some records have no objects, so the record count is only an upper bound on the training images.
        if counts is not None and not (split == "train" and total >= expected):
            check_count(split, total, expected)


def check_count(split: str, count: int, configured: int) -> None:
    """Raises UserError if a split's number of images differs from the configuration."""
    if count != configured:
        raise UserError(
            f"{count} {split} images in the records, config.num_{split}_examples={configured}; complete the data, or "
            f"set config.num_{split}_examples={count}"
        )


def check_evaluation(
    annotations: str | os.PathLike, image_ids: Sequence[int] | None, configured: int, masks: bool = False
) -> None:
    """Checks before a run that evaluation is possible.

    Raises UserError if the annotation file has an object that cannot be evaluated, with `masks` also a mask, or its
    images differ from `image_ids` of the held-out records, None if unknown, or from `configured`, the configuration's
    number; the message names an image.
    """
    from common.detection import coco_eval

    if image_ids is not None:
        check_count("eval", len(image_ids), configured)
    try:
        annotated = set(coco_eval.ground_truth(os.fspath(annotations)).imgs)
        if masks:
            coco_eval.check_masks(os.fspath(annotations))
    except ValueError as error:
        raise UserError(f"{error}; an evaluation needs it right: get a good copy") from error
    if all(item.get("iscrowd") for item in coco_eval.ground_truth(os.fspath(annotations)).anns.values()):
        raise UserError(f"{annotations}: no object to find; an evaluation needs one at least")
    if len(annotated) != configured:
        raise UserError(
            f"{annotations}: {len(annotated)} images, config.num_eval_examples={configured}; it must be the file of "
            f"the evaluated images, or set config.num_eval_examples={len(annotated)}"
        )
    if image_ids is not None and set(image_ids) != annotated:
        example = min(set(image_ids) ^ annotated)
        where = "the records" if example in annotated else "it"
        fix = "convert the images again"
        raise UserError(f"{annotations}: image {example}, for one, is not in {where}; {fix}")


def complaint(
    serialized: bytes, categories: Categories, masks: bool = False, sized: bool = False
) -> str | None:
    """Returns a record's fault, with the image named, or None; for `tfrecords.diagnose`.

    With `masks`, objects need masks of the image's size; with `sized`, the record's height and width must match it.
    """
    try:
        objects = parse(tf.constant(serialized))
    except (tf.errors.InvalidArgumentError, tf.errors.OpError):
        return "not a tf.train.Example with image/encoded, image/source_id and objects of equally many boxes"
    image = int(objects["image_id"])
    if masks:
        try:
            objects = parse(tf.constant(serialized), masks=True)
        except tf.errors.InvalidArgumentError:
            return f"image {image}: not every object has a mask; convert the images again with MASKS=1"
    classes = categories.to_class(objects["labels"]).numpy()
    if (classes < 0).any():
        unknown = int(objects["labels"].numpy()[classes < 0][0])
        return f"image {image}: category {unknown} is not in the annotation file"
    boxes = objects["boxes"].numpy()
    if not np.isfinite(boxes).all() or (boxes < -1e-3).any() or (boxes > 1 + 1e-3).any():
        return f"image {image}: a box lies outside of the image"
    try:
        size = tf.io.decode_jpeg(objects["encoded"], channels=3).shape[:2]
    except tf.errors.InvalidArgumentError:
        return f"image {image}: image/encoded is not a JPEG or PNG image"
    if sized and objects["size"].numpy().tolist() != list(size):
        return (
            f"image {image}: it has {list(size)} pixels, the record says {objects['size'].numpy().tolist()}"
        )
    return _mask_complaint(objects, list(size)) if masks else None


def _mask_complaint(objects: Objects, size: list[int]) -> str | None:
    image = int(objects["image_id"])
    for png in objects["masks"]:
        try:
            shape = tf.io.decode_png(png, channels=1).shape[:2]
        except tf.errors.InvalidArgumentError:
            return f"image {image}: a mask is not a PNG image"
        if list(shape) != size:
            return f"image {image}: a mask of {list(shape)} pixels, the image has {size}"
    return None


def training_stream(
    files: Sequence[str],
    shard: Shard,
    seed: int,
    shuffle_buffer: int,
    start: int,
    transform: Callable[[tf.Tensor], Objects],
    cache: bool,
) -> tf.data.Dataset:
    """Yields (epoch, file, record, transformed) as `record_stream.endless`, of images with objects.

    Of COCO 2017's 118,287 images, 1,021 have none.

    Args:
      start: number of images with objects to skip, so that the stream continues where an earlier one ended. Counting
        them takes one pass over this shard's records, without decoding images.
      transform: (serialized) -> a dict with "boxes".
      files, shard, seed, shuffle_buffer, cache: see `record_stream.endless`.

    Raises UserError if no image of this shard has objects.
    """

    def transformed(file: tf.Tensor, record: tf.Tensor, serialized: tf.Tensor) -> Objects:
        return transform(serialized)

    def has_objects(*entry: Any) -> tf.Tensor:
        return tf.shape(entry[-1]["boxes"])[0] > 0

    def stream(first: int) -> tf.data.Dataset:
        every = record_stream.endless(files, shard, seed, shuffle_buffer, first, transformed, cache)
        return every.filter(has_objects)

    counted = record_stream.once(files, shard, transformed).filter(has_objects)
    counted = counted if start else counted.take(1)
    per_epoch = int(counted.reduce(tf.constant(0, tf.int64), lambda n, *_: n + 1))
    if not per_epoch:  # An endless stream without records would block forever.
        raise UserError(
            f"{files[0]} and the like: no image with objects for process {shard.index} of {shard.count}; use fewer "
            "processes"
        )
    if not start:
        return stream(0)
    epochs, rest = divmod(start, per_epoch)
    return stream(epochs * record_stream.size(files, shard)).skip(rest)
