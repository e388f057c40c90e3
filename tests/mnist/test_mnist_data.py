"""Tests idx files, batches as a function of seed and step, and the generated set."""

import dataclasses
import gzip
import hashlib
import os
import pathlib
import struct
import subprocess

import numpy as np
import pytest

from common.distributed.replicas.base import Shard
from common.errors import UserError
from mnist import idx, task, tiny
from mnist import input as pipeline
from mnist.config import Config, Data
from mnist.presets import PRESETS
from tests import datasets

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = dataclasses.replace(tiny.TINY, train_images=103, eval_images=37)
CONFIG = Config(num_train_examples=103, num_eval_examples=37, global_batch_size=12, eval_batch_size=8)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("digits")
    tiny.generate(folder, SMALL)
    return folder


def numbered(count: int) -> pipeline.Arrays:
    """Images whose first two pixels hold their number."""
    images = np.zeros([count, 28, 28], np.uint8)
    images[:, 0, 0], images[:, 0, 1] = np.divmod(np.arange(count), 256)
    return images, (np.arange(count) % 10).astype(np.uint8)


def rows(dataset, batches: int) -> np.ndarray:
    """The numbers of the images of the first batches, [batches, b]."""
    parts = [b["image"].numpy()[:, 0, :2].astype(int) for b in dataset.take(batches)]
    return np.stack(parts) @ [256, 1]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_files_are_written_and_read_back_with_the_official_headers(tmp_path, suffix) -> None:
    images, labels = numbered(5)
    names = [name + suffix for name in idx.FILES["train"]]
    for name, array in zip(names, (images, labels)):
        idx.write(tmp_path / name, array)
    raw = (gzip.open if suffix else open)(tmp_path / names[0], "rb").read()
    assert struct.unpack(">4I", raw[:16]) == (2051, 5, 28, 28) and len(raw) == 16 + 5 * 784
    for actual, want in zip(idx.load(tmp_path, "train"), (images, labels)):
        np.testing.assert_array_equal(actual, want)


def damaged(case: str, data: bytes) -> bytes:
    return {
        "magic": struct.pack(">I", 2049) + data[4:],
        "short": data[:-1],
        "long": data + b"\0",
        "header": data[:7],
    }[case]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("magic", "magic number 2049, not 2051"),
        ("short", "4015 bytes, but its header says 5x28x28"),
        ("long", "3937 bytes|header says 5x28x28"),
        ("header", "7 bytes, shorter than an idx header"),
    ],
)
def test_a_wrong_magic_or_length_is_one_line_that_names_the_file(tmp_path, case, message) -> None:
    name = idx.FILES["train"][0]
    idx.write(tmp_path / name, numbered(5)[0])
    (tmp_path / name).write_bytes(damaged(case, (tmp_path / name).read_bytes()))
    with pytest.raises(UserError, match=message.replace("4015", "3935")) as error:
        idx.read(tmp_path / name, idx.IMAGES)
    assert str(tmp_path / name) in str(error.value) and "init_datasets.sh" in str(error.value)


def test_a_truncated_gzip_file_and_a_missing_one_are_named(tmp_path) -> None:
    name = idx.FILES["test"][0] + ".gz"
    idx.write(tmp_path / name, numbered(5)[0])
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-20])
    with pytest.raises(UserError, match="cannot read it"):
        idx.read(tmp_path / name, idx.IMAGES)
    with pytest.raises(UserError, match="train-labels-idx1-ubyte.* is not there"):
        idx.find(tmp_path, idx.FILES["train"][1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_train_examples": 100}, "103 images, 100 expected; set --config.num_train_examples=103"),
        ({"image_size": 27}, "images of 28x28, not 27x27"),
        ({"num_classes": 9}, "label 9 of example .* is not below 9"),
    ],
)
def test_data_that_is_not_the_configuration_s_is_refused(data_dir, changes, message) -> None:
    with pytest.raises(UserError, match=message):
        pipeline.load(dataclasses.replace(CONFIG, **changes), data_dir, training=True)


def test_more_labels_than_images_are_refused(data_dir, tmp_path) -> None:
    images, labels = idx.load(data_dir, "train")
    idx.write(tmp_path / idx.FILES["train"][0], images[:-1])
    idx.write(tmp_path / idx.FILES["train"][1], labels)
    with pytest.raises(UserError, match="103 labels for 102 images"):
        idx.load(tmp_path, "train")


def test_every_epoch_has_every_image_once_and_a_new_order() -> None:
    order = rows(pipeline.train_input(CONFIG, numbered(103), Shard(), 12, 0), 26).ravel()
    first, second = order[:103], order[103:206]
    assert sorted(first) == sorted(second) == list(range(103))
    assert (first != second).any() and (first != np.arange(103)).any()


def test_a_stream_entered_at_any_step_goes_on_as_the_whole_one() -> None:
    whole = rows(pipeline.train_input(CONFIG, numbered(103), Shard(), 12, 0), 40)
    for start in (1, 8, 9, 31):
        rest = rows(pipeline.train_input(CONFIG, numbered(103), Shard(), 12, start), 5)
        np.testing.assert_array_equal(rest, whole[start : start + 5])


def test_any_number_of_replicas_sees_the_same_global_batches() -> None:
    whole = rows(pipeline.train_input(CONFIG, numbered(103), Shard(), 12, 0), 20)
    processes = [rows(pipeline.train_input(CONFIG, numbered(103), Shard(i, 3), 4, 0), 20) for i in range(3)]
    np.testing.assert_array_equal(np.concatenate(processes, 1), whole)
    devices = rows(pipeline.train_input(CONFIG, numbered(103), Shard(1, 2), 3, 7), 26)
    np.testing.assert_array_equal(devices.reshape(13, 6), whole[7:20, 6:])


def test_seeds_give_orders() -> None:
    orders = [
        rows(pipeline.train_input(dataclasses.replace(CONFIG, seed=s), numbered(103), Shard(), 12, 0), 3)
        for s in (0, 0, 1)
    ]
    assert (orders[0] == orders[1]).all() and (orders[0] != orders[2]).any()


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_evaluation_counts_every_image_once_in_equal_work(shards) -> None:
    numbers, batches = [], []
    for i in range(shards):
        parts = list(pipeline.eval_input(CONFIG, numbered(37), Shard(i, shards), 8 // shards))
        batches.append(len(parts))
        for b in parts:
            real = b["weight"].numpy() > 0
            numbers += list(b["image"].numpy()[real][:, 0, 1])
            assert (b["label"].numpy()[~real] == -1).all()
    assert sorted(numbers) == list(range(37)) and len(set(batches)) == 1


def test_held_out_images_are_the_last_of_the_training_set_and_none_of_the_test_set(data_dir) -> None:
    config = dataclasses.replace(CONFIG, num_train_examples=90, num_eval_examples=13, data=Data(held_out=13))
    config.validate()
    everything = idx.load(data_dir, "train")[0]
    np.testing.assert_array_equal(pipeline.load(config, data_dir, True)[0], everything[:90])
    np.testing.assert_array_equal(pipeline.load(config, data_dir, False)[0], everything[90:])
    with pytest.raises(UserError, match="config.data.held_out=13"):
        dataclasses.replace(config, num_eval_examples=12).validate()


def test_the_synthetic_batch_has_the_form_of_the_real_ones(data_dir) -> None:
    arrays = pipeline.load(CONFIG, data_dir, True)
    spec = pipeline.synthetic(CONFIG, 12).element_spec
    assert pipeline.train_input(CONFIG, arrays, Shard(), 12, 0).element_spec == spec
    evaluation = pipeline.eval_input(CONFIG, pipeline.load(CONFIG, data_dir, False), Shard(), 8)
    assert evaluation.element_spec == pipeline.synthetic(CONFIG, 8).element_spec


def test_the_generated_set_is_seeded_and_as_large_as_its_preset_says(data_dir, tmp_path) -> None:
    preset = PRESETS["cpu-tiny"]
    assert (preset.num_train_examples, preset.num_eval_examples) == (
        tiny.TINY.train_images,
        tiny.TINY.eval_images,
    )
    tiny.generate(tmp_path, SMALL)
    files = sorted(p.name for p in data_dir.glob("*.gz"))
    assert len(files) == 4
    for name in files:
        assert (data_dir / name).read_bytes() == (tmp_path / name).read_bytes()
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    tiny.generate(tmp_path, SMALL)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == stamps
    tiny.generate(tmp_path, dataclasses.replace(SMALL, seed=1))
    assert (tmp_path / files[0]).read_bytes() != (data_dir / files[0]).read_bytes()


def test_foreign_files_are_never_overwritten(tmp_path, capsys) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"MNIST")
    assert tiny.main([str(tmp_path)]) == 2
    assert "not made by this program" in capsys.readouterr().err
    assert (tmp_path / "train-images-idx3-ubyte").read_bytes() == b"MNIST"


def test_the_script_verifies_what_it_downloads(tmp_path) -> None:
    served = tmp_path / "served"
    served.mkdir()
    for pair in idx.FILES.values():
        for name in pair:
            (served / f"{name}.gz").write_bytes(b"not MNIST")
    done = datasets.script(
        "mnist/init_datasets.sh", DATA_DIR=str(tmp_path / "data"), MNIST_URL=served.as_uri()
    )
    assert done.returncode == 2 and "SHA-256 is" in done.stderr
    done = datasets.script(
        "mnist/init_datasets.sh", DATA_DIR=str(tmp_path / "data2"), MNIST_URL=(tmp_path / "nowhere").as_uri()
    )
    assert done.returncode == 2 and "cannot download" in done.stderr


def test_the_script_takes_the_canonical_files(tmp_path) -> None:
    shared = pathlib.Path(os.environ.get("TTT_SHARED", ROOT.parent / "shared")) / "data" / "mnist.tar.xz"
    if not shared.is_file():
        pytest.skip("the real MNIST is not here")
    subprocess.run(["tar", "-xJf", shared, "-C", tmp_path], check=True)
    done = datasets.script(
        "mnist/init_datasets.sh", DATA_DIR=str(tmp_path / "data"), MNIST_URL=(tmp_path / "mnist").as_uri()
    )
    assert done.returncode == 0, done.stderr
    images, labels = idx.load(tmp_path / "data", "train")
    assert images.shape == (60000, 28, 28) and labels[:5].tolist() == [5, 0, 4, 1, 9]
    digest = hashlib.md5((tmp_path / "data" / "train-images-idx3-ubyte.gz").read_bytes()).hexdigest()
    assert digest == "f68b3c2dcbeaaa9fbdd348bbdeb94873"


def test_a_file_of_weights_that_is_missing_is_named_before_anything_is_built(data_dir) -> None:
    config = dataclasses.replace(CONFIG, init="no-such.npz")
    with pytest.raises(UserError, match="config.init=no-such.npz: no such file"):
        task.Task(config, data_dir).check_input()
