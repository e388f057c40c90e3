"""Tests ResNet's input: one stream for every cache, from any step; the published crops; pictures of every kind."""

import dataclasses
import io
import itertools

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from common.data import images, record_stream, tfrecords
from common.distributed.replicas.base import Shard
from common.errors import UserError
from lab.studies.data import unpack
from resnet import input as resnet_input
from resnet.config import Config, Data
from tests.benchmarks import one_batch_a_step

CLASSES = 7
TRAIN, EVAL = 53, 37
ALL = Shard(0, 1)


def picture(number: int, size: tuple[int, int], mode: str = "RGB", kind: str = "JPEG") -> bytes:
    rng = np.random.default_rng(number)
    coarse = (
        Image.fromarray(rng.integers(0, 256, [8, 8, 3], np.uint8)).resize(size, Image.BICUBIC).convert(mode)
    )
    encoded = io.BytesIO()
    coarse.save(encoded, kind)
    return encoded.getvalue()


def example(number: int, **kind: str) -> bytes:
    size = (40 + number % 5 * 7, 40 + number % 3 * 11)
    features = {"image/encoded": picture(number, size, **kind), "image/class/label": number % CLASSES + 1}
    return tfrecords.example(
        features | {"image/filename": f"{number}.JPEG", "image/object/bbox/xmin": [0.25]}
    )


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imagenet")
    for split, total, files in (("train", TRAIN, 4), ("validation", EVAL, 3)):
        serialized = [example(i) for i in range(total)]
        for i in range(files):
            tfrecords.write(folder / tfrecords.shard_name(split, i, files), serialized[i::files])
    return folder


def config(cache="none", **fields) -> Config:
    data = Data(cache=cache, shuffle_buffer=16, **fields.pop("data", {}))
    base = Config(
        seed=5, image_size=24, num_classes=CLASSES, global_batch_size=8, eval_batch_size=8, data=data
    )
    return dataclasses.replace(base, **fields)


def train(folder, n, configuration=None, shard=ALL, batch=8, start=0):
    configuration = one_batch_a_step(configuration or config(), batch, shard.count)
    dataset = resnet_input.train_input(configuration, folder, shard, batch, start)
    return [{k: v.numpy() for k, v in b.items()} for b in itertools.islice(dataset, n)]


def same(first, second):
    return len(first) == len(second) and all(
        (a[key] == b[key]).all() for a, b in zip(first, second) for key in ("image", "label", "weight")
    )


def test_batches_have_the_shape_that_synthetic_has(data_dir):
    spec = resnet_input.train_input(config(), data_dir, Shard(), 8).element_spec
    assert spec == resnet_input.eval_input(config(), data_dir, Shard(), 8).element_spec
    assert spec == resnet_input.synthetic(config(), 8).element_spec
    assert spec["image"] == tf.TensorSpec([8, 24, 24, 3], tf.uint8)


def test_two_streams_of_a_seed_are_equal_and_of_two_seeds_are_not(data_dir):
    first = train(data_dir, 10)
    assert same(first, train(data_dir, 10))
    assert not same(first, train(data_dir, 10, config(seed=6)))


def test_each_epoch_sees_every_example_once_and_augments_it_anew(data_dir):
    stream = train(data_dir, 2 * TRAIN, batch=1)
    epochs = [stream[:TRAIN], stream[TRAIN:]]
    expected = sorted(i % CLASSES for i in range(TRAIN))
    assert all(sorted(int(b["label"][0]) for b in epoch) == expected for epoch in epochs)
    pictures = {b["image"].tobytes() for b in stream}
    assert len(pictures) == 2 * TRAIN


@pytest.mark.parametrize("cache", ["encoded", "decoded"])
def test_a_cache_changes_nothing(data_dir, cache):
    assert same(train(data_dir, 20), train(data_dir, 20, config(cache)))


@pytest.mark.parametrize(
    ("cache", "start"), [("none", 1), ("none", 25), ("encoded", 6), ("encoded", 25), ("decoded", 7)]
)
def test_resumed_stream_is_bitwise_the_uninterrupted_one(data_dir, cache, start):
    whole = train(data_dir, start + 12, config(cache))
    assert same(train(data_dir, 12, config(cache), start=start), whole[start:])


@pytest.mark.parametrize("num_shards", [2, 6])
def test_shards_partition_an_epoch(data_dir, num_shards):
    everything = {b["image"].tobytes() for b in train(data_dir, TRAIN, batch=1)}
    pictures = []
    for index in range(num_shards):
        shard = Shard(index, num_shards)
        size = record_stream.size(tfrecords.list_files(data_dir, "train-*", ""), shard)
        pictures += [b["image"].tobytes() for b in train(data_dir, size, shard=shard, batch=1)]
    # Augmentation is keyed by the example, so that every reader gets the same pictures.
    assert len(pictures) == TRAIN
    assert set(pictures) == everything


@pytest.mark.parametrize(("num_shards", "cache"), [(1, "none"), (2, "decoded"), (3, "encoded"), (5, "none")])
def test_evaluation_counts_each_example_once(data_dir, num_shards, cache):
    labels, lengths = [], set()
    for index in range(num_shards):
        dataset = resnet_input.eval_input(
            one_batch_a_step(config(cache), 4, num_shards), data_dir, Shard(index, num_shards), 4
        )
        first, again = ([{k: v.numpy() for k, v in b.items()} for b in dataset] for _ in range(2))
        assert same(first, again)
        lengths.add(len(first))
        for batch in first:
            assert ((batch["label"] == -1) == (batch["weight"] == 0)).all()
            labels += batch["label"][batch["weight"] > 0].tolist()
    assert sorted(labels) == sorted(i % CLASSES for i in range(EVAL))
    assert len(lengths) == 1


def test_evaluation_crop_is_the_central_part_of_the_short_side(data_dir):
    """Against tf.image on the whole decoded picture."""
    batch = next(iter(resnet_input.eval_input(one_batch_a_step(config(), EVAL), data_dir, Shard(), EVAL)))
    files = tfrecords.list_files(data_dir, "validation-*", "")
    serialized = [r for file in files for r in tfrecords.read(file)]
    crops = []
    for record in serialized:
        image = tf.io.decode_jpeg(tf.io.parse_single_example(record, resnet_input.FEATURES)["image/encoded"])
        side = int(min(image.shape[:2]) * 224 / 256)
        top, left = (image.shape[0] - side + 1) // 2, (image.shape[1] - side + 1) // 2
        crop = tf.image.resize(image[top : top + side, left : left + side], [24, 24], "bicubic")
        crops.append(np.clip(np.floor(crop.numpy() + 0.5), 0, 255).astype(np.uint8))
    mine = {image.tobytes() for image in batch["image"].numpy()}
    assert mine == {crop.tobytes() for crop in crops}


def test_the_side_of_an_evaluation_crop_is_truncated():
    """As in G7's imagenet_input.py: 437 of 500, not 438."""
    image = picture(1, (500, 500))
    crop = resnet_input.central_crop(tf.constant(image), Config(image_size=437))
    assert (crop == tf.io.decode_jpeg(image)[32:469, 32:469]).numpy().mean() > 0.99


def test_evaluation_at_224_of_a_256_photograph_needs_no_resizing():
    image = picture(1, (256, 256))
    crop = resnet_input.central_crop(tf.constant(image), Config())
    assert (crop == tf.io.decode_jpeg(image)[16:240, 16:240]).numpy().all()


def test_random_crop_keeps_to_its_ranges_and_flips_half_of_the_time():
    """The picture's pixels hold their coordinates, which reveal the crop."""
    height, width = 100, 120
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    image = tf.constant(np.stack([rows, columns, np.zeros_like(rows)], -1).astype(np.uint8))
    size = 33

    @tf.function
    def crop(key):
        return resnet_input._random_crop(image, key, Config(image_size=size))

    areas, aspects, flips = [], [], []
    for i in range(400):
        pixels = crop(tf.constant([3, i], tf.int64)).numpy().astype(float)
        h = (pixels[-4, 16, 0] - pixels[3, 16, 0]) / (size - 7) * size
        w = abs(pixels[16, -4, 1] - pixels[16, 3, 1]) / (size - 7) * size
        flips.append(pixels[16, -4, 1] < pixels[16, 3, 1])
        areas.append(h * w / (height * width))
        aspects.append(w / h)
    assert 0.07 < min(areas) < 0.15 and 0.85 < max(areas) < 1.05
    assert 0.7 < min(aspects) < 0.8 and 1.25 < max(aspects) < 1.4
    assert 150 < sum(flips) < 250


def test_no_flip_when_it_is_off(data_dir):
    plain = train(data_dir, 4, config(data={"flip": False}))
    flipped = train(data_dir, 4)
    pairs = [(a, b) for x, y in zip(plain, flipped) for a, b in zip(x["image"], y["image"])]
    equal, mirrored = (
        [f(a, b) for a, b in pairs] for f in (np.array_equal, lambda a, b: (a == b[:, ::-1]).all())
    )
    assert all(e or m for e, m in zip(equal, mirrored))
    assert 5 < sum(equal) < 27


@pytest.mark.parametrize(
    ("mode", "kind"), [("L", "JPEG"), ("CMYK", "JPEG"), ("RGB", "PNG"), ("L", "PNG"), ("RGBA", "PNG")]
)
def test_pictures_of_every_kind_become_rgb(tmp_path, mode, kind):
    serialized = [example(i, mode=mode, kind=kind) for i in range(4)]
    for split in ("train", "validation"):
        tfrecords.write(tmp_path / tfrecords.shard_name(split, 0, 1), serialized)
    for cache in ("none", "decoded"):
        (batch,) = train(tmp_path, 1, config(cache), batch=4)
        assert batch["image"].shape == (4, 24, 24, 3)
    (batch,) = resnet_input.eval_input(one_batch_a_step(config(), 4), tmp_path, Shard(), 4)
    expected = np.asarray(Image.open(io.BytesIO(picture(0, (40, 40), mode, kind))).convert("RGB"))
    assert abs(batch["image"][0].numpy().mean((0, 1)) - expected[3:38, 3:38].mean((0, 1))).max() < 4


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.bfloat16])
def test_normalize(dtype):
    image = tf.constant(np.random.default_rng(0).integers(0, 256, [2, 4, 6, 3]), tf.uint8)
    mean, deviation = np.array(images.MEAN_RGB), np.array(images.STDDEV_RGB)
    result = resnet_input.normalize(image, dtype)
    assert result.dtype == dtype and result.shape == image.shape
    tolerance = {tf.float64: 1e-12, tf.float32: 1e-5, tf.bfloat16: 1e-2}[dtype]
    np.testing.assert_allclose(
        tf.cast(result, tf.float64), (image.numpy() - mean) / deviation, tolerance, tolerance
    )


def test_normalize_after_space_to_depth_repeats_the_three_values():
    """The mistake in docs/sources.md, mlperf 0.2, is a constant of shape [12] filled with the last value."""
    image = tf.constant(np.random.default_rng(0).integers(0, 256, [2, 4, 6, 3]), tf.float32)
    first = tf.nn.space_to_depth(resnet_input.normalize(image), 2)
    np.testing.assert_allclose(resnet_input.normalize(tf.nn.space_to_depth(image, 2)), first, 1e-6, 1e-6)


def broken(data_dir, tmp_path, change):
    """Copies the data and replaces the records of one file by `change(index, example)`."""
    for file in data_dir.iterdir():
        serialized = list(tfrecords.read(file))
        if file.name == "train-00002-of-00004":
            serialized = [change(i, record) for i, record in enumerate(serialized)]
        tfrecords.write(tmp_path / file.name, serialized)
    return tmp_path / "train-00002-of-00004"


@pytest.mark.parametrize("label", [0, CLASSES + 1, -3])
def test_label_out_of_range_names_file_and_record(data_dir, tmp_path, label):
    def change(i, record):
        if i != 4:
            return record
        return tfrecords.example({"image/encoded": picture(0, (40, 40)), "image/class/label": label})

    file = broken(data_dir, tmp_path, change)
    with pytest.raises(tf.errors.InvalidArgumentError, match="label out of range"):
        train(tmp_path, 8)
    message = str(resnet_input.diagnose(config(), tmp_path))
    assert message.startswith(f"{file}: record 4: image/class/label is {label}, must be 1..7")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        (tfrecords.example({"image/class/label": 1}), "image/encoded is not a JPEG or PNG image"),
        (
            tfrecords.example({"image/encoded": b"\xff\xd8\xff?", "image/class/label": 1}),
            "is not a JPEG or PNG image",
        ),
        (tfrecords.example({"image/encoded": picture(0, (40, 40))}), "image/class/label is -1"),
        (b"no example", "not a tf.train.Example"),
    ],
)
def test_a_record_without_a_picture_is_named(data_dir, tmp_path, record, complaint):
    file = broken(data_dir, tmp_path, lambda i, old: record if i == 2 else old)
    with pytest.raises(tf.errors.InvalidArgumentError):
        train(tmp_path, 8)
    message = str(resnet_input.diagnose(config(), tmp_path))
    assert message.startswith(f"{file}: record 2: ") and complaint in message


def test_corrupt_file_is_named(data_dir, tmp_path):
    file = broken(data_dir, tmp_path, lambda i, record: record)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(tf.errors.DataLossError):
        train(tmp_path, 8)
    assert f"{file}: record " in str(resnet_input.diagnose(config(), tmp_path))


@pytest.mark.parametrize("make", [resnet_input.train_input, resnet_input.eval_input])
def test_wrong_data_path_names_the_fix(tmp_path, make):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(UserError, match="init_datasets.sh"):
            make(config(), folder, Shard(), 4)


def is_gray(path):
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    return (pixels.max(-1) == pixels.min(-1)).all()


def as_one_channel(path):
    encoded = io.BytesIO()
    Image.open(path).convert("L").save(encoded, "JPEG")
    return encoded.getvalue()


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """(folder of TFRecords, number of grayscale photographs, number of all); the grayscale ones come first.

    The archive stores the grayscale ones with three channels, ImageNet with one: here they have one.
    """
    try:
        folder = unpack("imagenet1000_256")
    except UserError as error:
        pytest.skip(str(error))
    paths = sorted(folder.glob("*.JPEG"))
    gray = [path for path in paths if is_gray(path)]
    assert len(gray) >= 23
    target = tmp_path_factory.mktemp("photographs")
    pictures = [as_one_channel(path) for path in gray] + [path.read_bytes() for path in paths[::20]]
    for split in ("train", "validation"):
        serialized = [
            tfrecords.example({"image/encoded": encoded, "image/class/label": i + 1})
            for i, encoded in enumerate(pictures)
        ]
        for i in range(3):
            tfrecords.write(target / tfrecords.shard_name(split, i, 3), serialized[i::3])
    return target, len(gray), len(pictures)


def test_real_photographs_equal_with_every_cache(photographs):
    folder, _, total = photographs
    settings = {"image_size": 224, "num_classes": 1000}
    whole = train(folder, 2 * total // 16, config(**settings), batch=16)
    for cache in ("encoded", "decoded"):
        assert same(whole, train(folder, 2 * total // 16, config(cache, **settings), batch=16))


def test_grayscale_photographs_have_three_equal_channels(photographs):
    folder, gray, _ = photographs
    for make in (resnet_input.eval_input, resnet_input.train_input):
        dataset = make(one_batch_a_step(config(image_size=224, num_classes=1000), 16), folder, ALL, 16)
        for batch in dataset.take(6).as_numpy_iterator():
            image, label = batch["image"].astype(int), batch["label"]
            spread = (image.max(-1) - image.min(-1)).max((1, 2))
            assert (spread[label < gray] == 0).all()
