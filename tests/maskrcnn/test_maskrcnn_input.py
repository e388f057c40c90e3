"""Tests the input: batches of one orientation, order, resuming, scaling, masks, padding, bad data, tiny set."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from common.data import tfrecords
from common.detection import coco_eval, coco_index, coco_write, drawing, masks
from common.distributed.replicas.base import Shard
from common.errors import UserError
from maskrcnn import augment, tiny
from maskrcnn import input as pipeline
from maskrcnn.config import Config
from maskrcnn.presets import PRESETS
from tests.maskrcnn import small

SET = dataclasses.replace(
    tiny.TINY, train_images=26, eval_images=9, train_files=3, eval_files=2, crowds=0.5, empty=0.1
)
# Short sides of 96 and 112 pixels become 96.
CONFIG = small.config(
    PRESETS["cpu-tiny"], num_train_examples=26, num_eval_examples=9, eval_batch_size=4, short_side=96,
    long_side=128, gt_mask_size=56,
)  # fmt: skip


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tiny.generate(folder, SET)
    return folder


def batches(dataset, count):
    return [{name: x.numpy() for name, x in batch.items()} for batch in dataset.take(count)]


def content_of(data_dir, split):
    return json.loads((data_dir / drawing.SPLITS[split]).read_text())


def test_batches_are_a_function_of_seed_and_step_and_each_image_comes_once_an_epoch(data_dir):
    whole = batches(pipeline.train_input(CONFIG, data_dir, Shard(), 4), 20)
    again = batches(pipeline.train_input(CONFIG, data_dir, Shard(), 4, start_step=9), 5)
    for a, b in zip(whole[9:], again):
        assert all(np.array_equal(a[name], b[name]) for name in a)
    other = pipeline.train_input(dataclasses.replace(CONFIG, seed=1), data_dir, Shard(), 4)
    assert not np.array_equal(whole[0]["image_id"], batches(other, 1)[0]["image_id"])
    ids = np.concatenate([b["image_id"] for b in whole]).tolist()
    counts = [ids.count(i["id"]) for i in content_of(data_dir, "train")["images"]]
    assert len(counts) == 26 and min(counts) >= 2 and max(counts) <= 4


def test_a_step_has_one_orientation_on_all_replicas(data_dir):
    shards = [pipeline.train_input(CONFIG, data_dir, Shard(i, 2), 2) for i in range(2)]
    one = batches(pipeline.train_input(CONFIG, data_dir, Shard(), 4), 12)
    parts = [batches(shard, 12) for shard in shards]
    shapes = set()
    for whole, *both in zip(one, *parts):
        assert len({b["image"].shape[1:3] for b in (whole, *both)}) == 1
        shapes.add(whole["image"].shape[1:3])
        np.testing.assert_array_equal(whole["image_id"], np.concatenate([b["image_id"] for b in both]))
    assert shapes == set(CONFIG.shapes) == {(96, 128), (128, 96)}


def test_batches_have_the_element_spec_of_the_synthetic_ones(data_dir):
    for config in (CONFIG, dataclasses.replace(CONFIG, short_side=128)):
        spec = pipeline.synthetic(config, 4).element_spec
        assert pipeline.train_input(config, data_dir, Shard(), 4).element_spec == spec
        assert pipeline.eval_input(config, data_dir, Shard(), 4, 4).element_spec == spec
        sizes = {b["image"].shape[1:3] for b in batches(pipeline.synthetic(config, 1), 4)}
        assert sizes == set(config.shapes)


@pytest.mark.parametrize("count", [1, 2])
def test_evaluation_has_every_image_once_and_padding_of_weight_zero(data_dir, count):
    steps = -(-CONFIG.examples_per_evaluation // 4)
    actual = [
        batches(pipeline.eval_input(CONFIG, data_dir, Shard(i, count), 4 // count, steps), 99)
        for i in range(count)
    ]
    for together in zip(*actual, strict=True):
        assert len({b["image"].shape for b in together}) == 1
    flat = [b for shard in actual for b in shard]
    ids, weights = (np.concatenate([b[name] for b in flat]) for name in ("image_id", "weight"))
    expected = {i["id"] for i in content_of(data_dir, "val")["images"]}
    assert sorted(ids[weights > 0].tolist()) == sorted(expected) and len(ids) == 4 * steps
    assert (ids[weights == 0] == -1).all() and (weights == 0).any()


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((480, 640), (800, 1066)),
        ((640, 480), (1066, 800)),
        ((427, 640), (800, 1199)),
        ((300, 640), (624, 1333)),  # The long side limits the scale.
        ((500, 500), (800, 800)),
        ((1, 4000), (1, 1333)),
    ],
)
def test_scaled_to_the_short_side_unless_the_long_one_exceeds(size, expected):
    config = Config()
    sides, scale = augment.scaled_size(tf.constant(size, tf.int64), config)
    assert tuple(sides.numpy()) == expected
    assert float(scale) == pytest.approx(min(800 / min(size), 1333 / max(size)), rel=1e-6)
    frame = next(s for s in config.shapes if (s[1] > s[0]) == (size[1] > size[0]))
    assert expected[0] <= frame[0] and expected[1] <= frame[1]


def test_the_frame_holds_the_image_at_the_top_left_and_zeros(data_dir):
    pixels = np.full([60, 100, 3], 255, np.uint8)
    image, info = augment.framed(tf.constant(pixels), tf.constant(True), CONFIG)
    assert image.shape == (96, 128, 3) and info.numpy().tolist() == pytest.approx([76, 128, 1.28])
    assert (image[:76, :128].numpy() == 255).all() and not image[76:].numpy().any()
    batch = {"image": image[None], "image_info": info[None]}
    normal = pipeline.normalized(batch, tf.float64)["image"].numpy()[0]
    white = (1 - np.array([0.485, 0.456, 0.406])) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(normal[:76], np.broadcast_to(white, [76, 128, 3]), rtol=1e-8)
    assert not normal[76:].any()


def test_masks_and_boxes_lie_on_their_objects(data_dir):
    """Pasted back into the frame, a mask equals the annotation's; masks of flipped images are flipped."""
    content = content_of(data_dir, "train")
    images = {i["id"]: i for i in content["images"]}
    by_image = coco_write.by_image(content)
    mirrored = set()
    for batch in batches(pipeline.train_input(CONFIG, data_dir, Shard(), 4), 12):
        for row, number in enumerate(batch["image_id"].tolist()):
            height, width = images[number]["height"], images[number]["width"]
            items = [a for a in by_image[number] if not a["iscrowd"]]
            classes = batch["classes"][row]
            assert classes[classes > 0].tolist() == [a["category_id"] for a in items]
            high, wide, scale = batch["image_info"][row]
            assert scale == pytest.approx(high / height, rel=0.02)
            for column, item in enumerate(items):
                box = batch["boxes"][row, column] / scale
                whole = masks.decode(item["segmentation"], height, width)
                pasted = masks.paste(batch["masks"][row, column : column + 1], box[None], height, width)[
                    ..., 0
                ]
                plain, turned = ((pasted & m).sum() / (pasted | m).sum() for m in (whole, whole[:, ::-1]))
                assert max(plain, turned) > 0.93
                mirrored.add(bool(turned > plain))
            assert not batch["masks"][row, len(items) :].any() and not batch["boxes"][row, len(items) :].any()
    assert mirrored == {True, False}


def test_a_cut_mask_is_the_mask_at_the_centers_of_equal_parts():
    rng = np.random.default_rng(2)
    whole = np.zeros([40, 50], np.uint8)
    whole[8:30, 10:42] = rng.integers(0, 2, [11, 16]).repeat(2, 0).repeat(2, 1)
    png = tf.io.encode_png(whole[..., None])
    box = np.array([8 / 40, 10 / 50, 30 / 40, 42 / 50], np.float32)
    (actual,) = augment.cut_masks(
        tf.stack([png]), tf.constant(box[None]), tf.constant([40, 50], tf.int64), 11
    ).numpy()
    rows = 8 + (np.arange(11) + 0.5) * 2
    columns = 10 + (np.arange(11) + 0.5) / 11 * 32

    def at(y, x):
        i, j = y - 0.5, x - 0.5
        a, b = i - np.floor(i), j - np.floor(j)
        i, j = int(i), int(j)
        part = whole[i : i + 2, j : j + 2].astype(float)
        return (np.array([1 - a, a]) @ part @ np.array([1 - b, b])) >= 0.5

    expected = np.array([[at(y, x) for x in columns] for y in rows])
    np.testing.assert_array_equal(actual, expected)


def test_empty_images_and_crowds_are_treated_as_published(data_dir):
    """Crowds are not objects; images without annotations are trained on unless the configuration omits them."""
    content = content_of(data_dir, "train")
    full = {a["image_id"] for a in content["annotations"]}
    assert len(full) < 26 and any(a["iscrowd"] for a in content["annotations"])
    index = coco_index.read(tfrecords.list_files(data_dir, "train-*", ""))
    assert len(pipeline.training_numbers(CONFIG, index)) == 26
    changed = dataclasses.replace(CONFIG, data=dataclasses.replace(CONFIG.data, skip_empty=True))
    assert set(index.image_id[pipeline.training_numbers(changed, index)].tolist()) == full
    ids = [
        b
        for batch in batches(pipeline.train_input(changed, data_dir, Shard(), 4), 6)
        for b in batch["image_id"]
    ]
    assert set(ids) <= full


# -- bad data -------------------------------------------------------------------------------------------------------


def broken(tmp_path, change, masks_too=True):
    """A folder of both splits from the same five images, after `change(content, encoded)`."""
    content, encoded = drawing.annotations(dataclasses.replace(SET, train_images=5, empty=0.0), "train")
    truth = json.dumps(content)
    change(content, encoded)
    dropped = []
    serialized = list(
        coco_write.examples(content, lambda image: encoded[image["id"]], masks=masks_too, dropped=dropped)
    )
    for split in ("train", "val"):
        tfrecords.write(tmp_path / f"{tfrecords.shard_name(split, 0, 1)}.tfrecord", serialized)
    (tmp_path / "instances_val2017.json").write_text(truth)
    config = dataclasses.replace(CONFIG, num_train_examples=5, num_eval_examples=5)
    return config, content, dropped


def test_a_sound_folder_passes(tmp_path):
    config, _, dropped = broken(tmp_path, lambda content, encoded: None)
    pipeline.check(config, tmp_path)
    assert not dropped and "every record is sound" in str(pipeline.diagnose(config, tmp_path))
    assert (tmp_path / "train.index.npz").is_file(), "the next start reads no records"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"num_train_examples": 4},
            "5 train images in the records, config.num_train_examples=4; .* set config",
        ),
        ({"num_eval_examples": 99}, "5 eval images in the records, config.num_eval_examples=99"),
        ({"num_classes": 11}, "category 11, config.num_classes=11 .* set config.num_classes=12"),
    ],
)
def test_counts_are_compared_with_the_configuration(tmp_path, fields, message):
    config, _, _ = broken(tmp_path, lambda content, encoded: None)
    with pytest.raises(UserError, match=message):
        pipeline.check(dataclasses.replace(config, **fields), tmp_path)


def test_records_without_masks_are_one_line(tmp_path):
    config, content, _ = broken(tmp_path, lambda content, encoded: None, masks_too=False)
    first = content["annotations"][0]["image_id"]
    with pytest.raises(UserError, match=f"image {first} has objects without a mask, .* MASKS=1"):
        pipeline.check(config, tmp_path)


def test_objects_without_an_area_are_counted_and_an_evaluation_refuses_them(tmp_path, capsys):
    config, content, _ = broken(tmp_path, lambda content, encoded: None)
    path = tmp_path / "train-00000-of-00001.tfrecord"
    serialized = [tf.train.Example.FromString(r) for r in tfrecords.read(path)]
    for side in ("ymin", "ymax"):
        serialized[2].features.feature[f"image/object/bbox/{side}"].float_list.value[0] = 0.5
    tfrecords.write(path, [example.SerializeToString() for example in serialized])
    pipeline.check(config, tmp_path)
    image = content["images"][2]["id"]
    message = capsys.readouterr().err
    assert f"1 training objects whose box has no area are left out, in image {image} for one" in message
    bad = next(a for a in content["annotations"] if a["image_id"] == image)
    bad["bbox"][3] = 0
    (tmp_path / "instances_val2017.json").write_text(json.dumps(content))
    coco_eval.ground_truth.cache_clear()  # A run caches the file.
    with pytest.raises(UserError, match=f"image {image}, annotation {bad['id']}: box .* has no area"):
        pipeline.check(config, tmp_path)


def test_a_truncated_image_is_named(tmp_path):
    def change(content, encoded):
        number = content["images"][1]["id"]
        encoded[number] = encoded[number][:400]

    config, content, _ = broken(tmp_path, change)
    with pytest.raises(tf.errors.InvalidArgumentError):
        batches(pipeline.train_input(config, tmp_path, Shard(), 4), 4)
    assert f"image {content['images'][1]['id']}: image/encoded is not a JPEG" in str(
        pipeline.diagnose(config, tmp_path)
    )


def test_an_image_of_another_size_than_its_record_says_is_named(tmp_path):
    def change(content, encoded):
        first, other = (
            content["images"][0],
            next(i for i in content["images"] if i["height"] != content["images"][0]["height"]),
        )
        encoded[first["id"]] = encoded[other["id"]]

    config, content, _ = broken(tmp_path, change)
    assert f"image {content['images'][0]['id']}: it has " in str(pipeline.diagnose(config, tmp_path))


def test_other_images_than_the_annotation_file_s_are_named(tmp_path):
    def change(content, encoded):
        encoded[77] = encoded[content["images"][0]["id"]]
        content["images"][0]["id"] = 77

    config, _, _ = broken(tmp_path, change)
    with pytest.raises(UserError, match="image 77, for one, is not in it"):
        pipeline.check(config, tmp_path)


def test_a_changed_file_is_indexed_anew(tmp_path):
    config, _, _ = broken(tmp_path, lambda content, encoded: None)
    files = tfrecords.list_files(tmp_path, "train-*", "")
    index = coco_index.read(files)
    readers = [coco_index.Reader(index, cache) for cache in (False, True)]
    for reader in [*readers, readers[1]]:  # The second time out of memory.
        numbers = tf.data.Dataset.range(5).map(reader)
        assert list(numbers.as_numpy_iterator()) == list(tfrecords.read(files[0]))
    tfrecords.write(files[0], list(tfrecords.read(files[0]))[:3])
    assert len(coco_index.read(files)) == 3
    assert readers[1](tf.constant(4, tf.int64)) != b""
    with pytest.raises(tf.errors.InvalidArgumentError, match="changed since it was indexed"):
        readers[0](tf.constant(4, tf.int64))
    with open(files[0], "r+b") as file:
        file.seek(int(index.offset[1]) + 5)
        file.write(b"?!")
    assert readers[0](tf.constant(0, tf.int64)) == next(tfrecords.read(files[0]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="is damaged"):
        readers[0](tf.constant(1, tf.int64))


@pytest.mark.parametrize("part", [0.0, 0.3, 0.99])
def test_a_truncated_index_is_made_anew(tmp_path, part):
    broken(tmp_path, lambda content, encoded: None)
    files = tfrecords.list_files(tmp_path, "train-*", "")
    first, path = coco_index.read(files), tmp_path / "train.index.npz"
    sound = path.read_bytes()
    path.write_bytes(sound[: int(part * len(sound))])
    coco_index._read.cache_clear()  # A new process starts with an empty cache.
    again = coco_index.read(files)
    assert again is not first and again.offset.tolist() == first.offset.tolist()
    with np.load(path) as stored:
        assert stored["image_id_of"].tolist() == first.image_id.tolist()


@pytest.mark.parametrize("damaged", ["offset_of", "state_of_files"])
def test_an_index_with_a_damaged_array_is_made_anew(tmp_path, damaged):
    broken(tmp_path, lambda content, encoded: None)
    files = tfrecords.list_files(tmp_path, "train-*", "")
    first, index_file = coco_index.read(files), tmp_path / "train.index.npz"
    content = bytearray(index_file.read_bytes())
    content[content.index(f"{damaged}.npy".encode()) + 150] ^= 0xFF
    index_file.write_bytes(content)
    coco_index._read.cache_clear()
    assert coco_index.read(files).offset.tolist() == first.offset.tolist()


# -- the order ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("examples", "batch"), [(100, 8), (13, 8), (5, 16), (64, 1)])
def test_grouping_gives_each_example_once_an_epoch_and_can_be_entered_anywhere(examples, batch):
    groups = (np.random.default_rng(examples).random(examples) < 0.7).astype(int)
    grouping = coco_index.Grouping(groups, batch, seed=3)
    stream = grouping.batches(Shard())
    whole = [next(stream) for _ in range(max(60, 4 * examples // batch))]
    pairs_so_far = set()
    for actual in whole:
        assert (groups[actual.examples] == actual.group).all() and len(actual.examples) == batch
        pairs = set(zip(actual.epochs.tolist(), actual.examples.tolist()))
        assert len(pairs) == batch and not pairs & pairs_so_far
        pairs_so_far |= pairs
    done = {e for e, _ in pairs_so_far if e < min(whole[-1].epochs.min(), whole[-2].epochs.min()) - 1}
    assert done
    for epoch in done:
        assert {x for e, x in pairs_so_far if e == epoch} == set(range(examples))
    for start in (1, 17, 50):
        again = grouping.batches(Shard(), start)
        for expected in whole[start : start + 8]:
            actual = next(again)
            assert np.array_equal(actual.examples, expected.examples) and actual.group == expected.group


def test_the_network_sees_zeros_beyond_a_picture_s_content():
    batch = {"image": tf.fill([1, 4, 6, 3], tf.constant(255, tf.uint8))}
    image = pipeline.normalized({**batch, "image_info": tf.constant([[3.0, 5.0, 1.0]])})["image"][0].numpy()
    assert (image[:3, :5] > 0).all() and not image[3:].any() and not image[:, 5:].any()
