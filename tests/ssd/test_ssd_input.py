"""Tests the path from records to batches: order, resuming, crops, padding, bad data; the generated set."""

import dataclasses
import io
import json

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from common.detection import boxes as box_ops
from common.detection import drawing
from common.distributed.replicas.base import Shard
from common.errors import UserError
from ssd import augment, tiny
from ssd import input as pipeline
from ssd.config import Config, Data
from ssd.presets import PRESETS
from tests.benchmarks import one_batch_a_step

SET = dataclasses.replace(tiny.TINY, train_images=24, eval_images=9, train_files=3, eval_files=2, crowds=0.5)
CONFIG = dataclasses.replace(PRESETS["cpu-tiny"], image_size=64)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tiny.generate(folder, SET)
    return folder


def batches(dataset, count):
    return [{name: x.numpy() for name, x in batch.items()} for batch in dataset.take(count)]


def same(a, b):
    return all(np.array_equal(a[name], b[name]) for name in a)


def test_batches_are_a_function_of_seed_and_step(data_dir):
    whole = batches(pipeline.train_input(CONFIG, data_dir, Shard(), 4), 14)
    again = batches(pipeline.train_input(one_batch_a_step(CONFIG, 4), data_dir, Shard(), 4, start_step=9), 5)
    assert all(same(a, b) for a, b in zip(whole[9:], again, strict=True))
    other = dataclasses.replace(CONFIG, seed=1)
    assert not same(whole[0], batches(pipeline.train_input(other, data_dir, Shard(), 4), 1)[0])
    full = {
        a["image_id"] for a in json.loads((data_dir / "instances_train2017.json").read_text())["annotations"]
    }
    ids = np.concatenate([b["image_id"] for b in whole])[: len(full)]
    assert set(ids.tolist()) == full, "an epoch is every image that holds an object"


def test_batches_have_the_element_spec_of_the_synthetic_ones(data_dir):
    spec = pipeline.synthetic(CONFIG, 4).element_spec
    assert pipeline.train_input(CONFIG, data_dir, Shard(), 4).element_spec == spec
    assert pipeline.eval_input(CONFIG, data_dir, Shard(), 4).element_spec == spec


@pytest.mark.parametrize("count", [1, 2])
def test_evaluation_has_every_image_once_and_padding_of_weight_zero(data_dir, count):
    actual = [
        b
        for i in range(count)
        for b in batches(
            pipeline.eval_input(one_batch_a_step(CONFIG, 4, count), data_dir, Shard(i, count), 4), 99
        )
    ]
    ids, weights = (np.concatenate([b[name] for b in actual]) for name in ("image_id", "weight"))
    expected = {i["id"] for i in json.loads((data_dir / "instances_val2017.json").read_text())["images"]}
    assert sorted(ids[weights > 0].tolist()) == sorted(expected) and len(ids) % (4 * count) == 0
    assert (ids[weights == 0] == -1).all() and (weights == 0).any()


def test_the_plain_image_is_only_resized(monkeypatch):
    monkeypatch.setattr(Data, "brightness", 0.0)
    monkeypatch.setattr(Data, "hue", 0.0)
    image = tf.constant(np.random.default_rng(0).integers(0, 256, [40, 30, 3], np.uint8))
    monkeypatch.setattr(augment, "crop_window", lambda *_: tf.constant([0.0, 0.0, 1.0, 1.0]))
    plain = Config(image_size=24, data=Data(flip=False, contrast=0.0))
    boxes, classes = tf.constant([[0.1, 0.2, 0.5, 0.6]]), tf.constant([3])
    key = tf.constant([0, 1], tf.int64)
    actual, same_boxes, same_classes = augment.train(image, boxes, classes, key, plain)
    # No augmentation changes the image, but rounding twice may change a value by one.
    expected = pipeline.whole(image, plain).numpy()
    np.testing.assert_allclose(actual.numpy().astype(int), expected, atol=1)
    np.testing.assert_array_equal(same_boxes, boxes)
    np.testing.assert_array_equal(same_classes, classes)


def test_a_crop_is_one_that_the_paper_allows():
    """Sides, aspect, an overlap of every object above one of the drawn minima, the center of one object inside."""
    boxes = tf.constant([[0.1, 0.1, 0.6, 0.7], [0.3, 0.4, 0.9, 0.95]])
    draw = tf.function(lambda key: augment.crop_window(boxes, key, Config()), autograph=False)
    windows = np.stack([draw(tf.constant([7, i], tf.int64)) for i in range(300)])
    whole = (windows == [0, 0, 1, 1]).all(1)
    assert 0.1 < whole.mean() < 0.5
    height, width = (windows[~whole, 2:] - windows[~whole, :2]).T
    assert height.min() >= 0.3 and width.min() >= 0.3 and (windows >= 0).all() and (windows <= 1).all()
    assert (width / height > 0.5).all() and (width / height < 2).all()
    overlap = box_ops.iou(tf.constant(windows[~whole]), boxes).numpy()
    assert overlap.min() > 0 and len(np.unique(windows[~whole], axis=0)) == (~whole).sum()
    centers = box_ops.to_centers(boxes).numpy()[:, :2]
    inside = (centers[None] > windows[:, None, :2]) & (centers[None] < windows[:, None, 2:])
    assert inside.all(-1).any(-1).all()


OBJECTS = np.array([[0.05, 0.05, 0.3, 0.25], [0.35, 0.45, 0.9, 0.95], [0.4, 0.1, 0.5, 0.9]], np.float32)


def overlaps(window, boxes):
    shared = np.minimum(window[2:], boxes[:, 2:]) - np.maximum(window[:2], boxes[:, :2])
    shared = np.maximum(shared, 0).prod(1)
    return shared / ((boxes[:, 2:] - boxes[:, :2]).prod(1) + (window[2:] - window[:2]).prod() - shared)


def first_window(key, config):
    """NV ssd/pytorch/utils.py 160-212, SSDCropping, and G6 dataloader.py 118-188, ssd_crop, with our draws."""
    centers = (OBJECTS[:, :2] + OBJECTS[:, 2:]) / 2
    data, minima = config.data, config.details.crop_overlaps
    for number in range(50):
        shifted = tf.constant([key[0] + number * 2**56, key[1]], tf.int64)
        shape = [data.crop_attempts + 1, 4]
        draws = tf.random.stateless_uniform(shape, shifted, alg="philox").numpy()
        option = int(draws[0, 0] * 7)
        if option == 6:
            break
        minimum = -np.inf if minima[option] < 0 else minima[option]
        for draw in draws[1:]:
            sides = np.float32(0.3) + np.float32(0.7) * draw[2:]
            window = np.concatenate([draw[:2] * (1 - sides), draw[:2] * (1 - sides) + sides])
            if not data.crop_aspect[0] < sides[1] / sides[0] < data.crop_aspect[1]:
                continue
            inside = (centers > window[:2]) & (centers < window[2:])
            if (overlaps(window, OBJECTS) > minimum).all() and inside.all(1).any():
                return window
    return np.array([0, 0, 1, 1])


@pytest.mark.parametrize("name", ["tpu-v4-16", "dgx-1"])
def test_a_crop_is_the_first_that_the_row_s_source_would_take(name):
    """Google's code needs a touch of every object, NVIDIA's has an option without a requirement."""
    config = PRESETS[name]
    draw = tf.function(lambda key: augment.crop_window(tf.constant(OBJECTS), key, config), autograph=False)
    missed = []
    for number in range(150):
        window = draw(tf.constant([11, number], tf.int64)).numpy()
        np.testing.assert_allclose(window, first_window((11, number), config), atol=1e-6)
        missed.append(overlaps(window, OBJECTS).min() == 0)
    assert any(missed) == (name == "dgx-1")


def test_a_crop_s_limits_are_open(monkeypatch):
    """A proposal of just the least aspect is refused, and a center on the border is outside."""
    config, boxes = PRESETS["dgx-1"], tf.constant(OBJECTS)
    for number in range(99):
        key = tf.constant([5, number], tf.int64)
        first = augment.crop_window(boxes, key, config).numpy()
        draws = tf.random.stateless_uniform([2, 4], key, alg="philox").numpy()
        height, width = np.float32(0.3) + np.float32(0.7) * draws[1, 2:]
        if np.allclose(first[2:] - first[:2], [height, width]):
            break  # The first proposal of the first pass is taken.
    for limits in ((float(width / height), 9.0), (0.01, float(width / height))):
        monkeypatch.setattr(Data, "crop_aspect", limits)
        other = augment.crop_window(boxes, key, config).numpy()
        assert (other != first).any()
    window = tf.constant([0.25, 0.25, 0.75, 0.75])
    edges = tf.constant([[0.0, 0.25, 0.5, 0.5], [0.5, 0.25, 1.0, 0.5], [0.25, 0.0, 0.5, 0.5]])
    assert augment.within(edges, tf.constant([1, 2, 3]), window)[1].shape == [0]


def test_cropped_objects_stay_on_their_pixels():
    """On a white object on black, the new box holds exactly the white pixels."""
    pixels = np.zeros([50, 80, 3], np.uint8)
    pixels[20:40, 24:64] = 255
    boxes = tf.constant([[0.4, 0.3, 0.8, 0.8], [0.0, 0.0, 0.1, 0.1]])
    window = tf.constant([0.3, 0.2, 1.0, 0.9])
    image, moved, classes = augment.cropped(tf.constant(pixels), boxes, tf.constant([4, 5]), window)
    assert classes.numpy().tolist() == [4], "the object whose center is outside is gone"
    height, width = image.shape[:2]
    ymin, xmin, ymax, xmax = np.round(moved[0].numpy() * [height, width, height, width]).astype(int)
    inside = np.zeros([height, width], bool)
    inside[ymin:ymax, xmin:xmax] = True
    np.testing.assert_array_equal(image.numpy()[..., 0] == 255, inside)


def test_normalize_is_mean_and_deviation_per_channel():
    image = tf.constant(np.random.default_rng(1).integers(0, 256, [1, 4, 5, 3], np.uint8))
    expected = (image.numpy() / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(pipeline.normalize(image, tf.float64), expected, rtol=1e-8, atol=1e-12)


def test_missing_files_and_other_categories_are_one_line(tmp_path, data_dir):
    with pytest.raises(UserError, match="init_datasets.sh"):
        pipeline.check(CONFIG, tmp_path)
    with pytest.raises(UserError, match="4 categories, config.num_classes=81"):
        pipeline.check(dataclasses.replace(CONFIG, num_classes=81), data_dir)


def test_a_damaged_image_is_named(tmp_path):
    content, encoded = drawing.annotations(dataclasses.replace(SET, train_images=3, eval_images=2), "train")
    from common.data import tfrecords
    from common.detection import coco_write

    broken = content["images"][1]["id"]
    encoded[broken] = encoded[broken][:400]
    serialized = coco_write.examples(content, lambda image: encoded[image["id"]])
    for split in ("train", "val"):
        serialized = list(serialized)
        tfrecords.write(tmp_path / f"{tfrecords.shard_name(split, 0, 1)}.tfrecord", serialized)
    (tmp_path / "instances_val2017.json").write_text(json.dumps(content))
    assert f"image {broken}" in str(pipeline.diagnose(CONFIG, tmp_path))


# -- the generated set ----------------------------------------------------------------------------------------------


def test_boxes_and_masks_of_the_generated_set_agree():
    content, encoded = drawing.annotations(dataclasses.replace(SET, train_images=12), "train")
    sizes = {i["id"]: (i["height"], i["width"]) for i in content["images"]}
    for number, jpeg in encoded.items():
        with Image.open(io.BytesIO(jpeg)) as picture:
            assert picture.size[::-1] == sizes[number]
    assert {a["category_id"] for a in content["annotations"]} <= set(drawing.CATEGORIES)
    for number in range(12):
        _, figures = drawing.draw(SET, "train", number)
        total = sum((mask.astype(int) for _, mask in figures), np.zeros(1, int))
        assert total.max() <= 1, "visible masks do not overlap"
        items = [a for a in content["annotations"] if a["image_id"] == 1000 + 3 * number]
        assert len(items) == len(figures)
        for item, (category, mask) in zip(items, figures):
            rows, columns = mask.nonzero()
            x, y = columns.min(), rows.min()
            assert item["bbox"] == [x, y, columns.max() + 1 - x, rows.max() + 1 - y]
            assert (item["category_id"], item["area"]) == (category, mask.sum())
