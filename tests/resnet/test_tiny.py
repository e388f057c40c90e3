"""Tests cpu-tiny's data: layout, seeds, regeneration, and that no simple feature identifies the class."""

import dataclasses
import io
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from common.data import tfrecords
from common.distributed.replicas.base import Shard
from resnet import input as resnet_input
from resnet import tiny
from resnet.config import Config, Data
from tests.benchmarks import one_batch_a_step

SMALL = dataclasses.replace(tiny.TINY, train_images=230, eval_images=70, train_files=3, eval_files=2)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tiny.generate(folder, SMALL)
    return folder


def features(data_dir, split):
    serialized = [
        r for file in tfrecords.list_files(data_dir, f"{split}-*", "") for r in tfrecords.read(file)
    ]
    return [tf.train.Example.FromString(r).features.feature for r in serialized]


def test_defaults_are_what_the_preset_needs():
    assert tiny.NUM_CLASSES >= 10
    assert tiny.TINY.eval_images >= 2000
    assert all(tiny.TINY.eval_images % batch for batch in (8, 16, 32, 64, 128, 256))


def test_records_have_the_imagenet_layout(data_dir):
    assert sorted(p.name for p in data_dir.glob("*-of-*")) == [
        *(f"train-{i:05d}-of-00003" for i in range(3)),
        *(f"validation-{i:05d}-of-00002" for i in range(2)),
    ]
    for split, total in (("train", 230), ("validation", 70)):
        examples = features(data_dir, split)
        assert len(examples) == total
        counts = Counter(e["image/class/label"].int64_list.value[0] for e in examples)
        assert set(counts) == set(range(1, tiny.NUM_CLASSES + 1))
        assert max(counts.values()) - min(counts.values()) <= 1
        with Image.open(io.BytesIO(examples[0]["image/encoded"].bytes_list.value[0])) as image:
            assert image.format == "JPEG" and image.size == (tiny.TINY.image_size,) * 2
            assert image.mode == "RGB"


def test_the_training_input_reads_it(data_dir):
    config = Config(image_size=32, num_classes=tiny.NUM_CLASSES, data=Data(shuffle_buffer=100))
    (batch,) = resnet_input.train_input(config, data_dir, Shard(), 230).take(1)
    assert len(set(batch["label"].numpy())) == tiny.NUM_CLASSES
    weight = sum(
        float(tf.reduce_sum(b["weight"]))
        for b in resnet_input.eval_input(one_batch_a_step(config, 32), data_dir, Shard(), 32)
    )
    assert weight == 70


def test_a_seed_gives_the_same_bytes_and_another_does_not(data_dir, tmp_path):
    tiny.generate(tmp_path / "same", SMALL)
    tiny.generate(tmp_path / "other", dataclasses.replace(SMALL, seed=21))
    for file in data_dir.glob("*-of-*"):
        assert file.read_bytes() == (tmp_path / "same" / file.name).read_bytes()
        assert file.read_bytes() != (tmp_path / "other" / file.name).read_bytes()


def test_no_held_out_picture_is_in_the_training_set(data_dir):
    train, held_out = (
        {e["image/encoded"].bytes_list.value[0] for e in features(data_dir, split)} for split in tiny.SPLITS
    )
    assert len(train) == 230 and len(held_out) == 70 and not train & held_out


def test_unwritable_folder_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert tiny.main([str(tmp_path / "file" / "data")]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: cannot write") and message.count("\n") == 1


def test_neither_shape_nor_texture_alone_names_the_class():
    """Every shape occurs with every texture, so that either one alone gives the class in one of three or four cases."""
    pairs = {label: divmod(label, len(tiny.TEXTURES)) for label in range(tiny.NUM_CLASSES)}
    _, labels = tiny.draw(tiny.TINY, "validation", 0, 240)
    for part in (0, 1):
        counts = Counter((pairs[label][part], label) for label in labels)
        best = sum(max(n for (p, _), n in counts.items() if p == value) for value in {p for p, _ in counts})
        assert best / len(labels) < 0.35


def nearest(train, train_labels, test, test_labels):
    """Accuracy of a nearest-neighbor classifier."""
    distances = (train**2).sum(1) - 2 * test @ train.T
    return (train_labels[distances.argmin(1)] == test_labels).mean()


def test_neither_color_nor_pixels_name_the_class():
    train, train_labels = tiny.draw(tiny.TINY, "train", 0, 1000)
    test, test_labels = tiny.draw(tiny.TINY, "validation", 0, 300)

    def colors(images):
        return (
            np.stack([f(images, (1, 2)) for f in (np.mean, np.std)], -1)
            .reshape(len(images), -1)
            .astype(float)
        )

    def pixels(images):
        cells = tiny.TINY.image_size // 4
        small = images.reshape(len(images), cells, 4, cells, 4, 3).mean((2, 4)).reshape(len(images), -1)
        return small - small.mean(1, keepdims=True)

    for view in (colors, pixels):
        # Chance is 1/12; the bound is half of the network's target.
        assert nearest(view(train), train_labels, view(test), test_labels) < 0.759 / 2


def test_a_flip_keeps_the_class():
    """Shapes and textures equal their mirror images; a rotation mirrors to the opposite one, which is as likely."""
    line = np.arange(-40, 41) * 0.03
    u, v = (grid[None] for grid in np.meshgrid(line, line))
    for shape in range(len(tiny.SHAPES)):
        inside = tiny._figure(np.array([shape]), u, v, np.ones([1, 1, 1]))
        assert (inside == inside[:, :, ::-1]).all()
        assert 0.3 < inside.mean() < 0.45
    for texture in range(len(tiny.TEXTURES)):
        pattern = tiny._texture(np.array([texture]), u, v)
        assert (pattern == pattern[:, :, ::-1]).all()


@pytest.mark.parametrize("knob", [{"noise": 0.2}, {"ground_contrast": (0.3, 0.4)}, {"offset": 0.0}])
def test_knobs_change_the_pictures_and_not_the_classes(knob):
    plain, labels = tiny.draw(tiny.TINY, "train", 0, 20)
    changed, same = tiny.draw(dataclasses.replace(tiny.TINY, **knob), "train", 0, 20)
    assert (labels == same).all() and (plain != changed).any()
