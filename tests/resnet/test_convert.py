"""Tests the conversion of tar files and class folders: all images once, labels, odd formats, resuming, checksums."""

import hashlib
import io
import itertools
import tarfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from common.data import tfrecords
from common.distributed.replicas.base import Shard
from resnet import convert, images
from resnet import input as resnet_input
from resnet.config import Config, Data
from tests import datasets

ROOT = Path(__file__).resolve().parents[2]
SYNSETS = ("n02", "n01", "n03")
PER_CLASS = 6
VALIDATION = [SYNSETS[i % 3] for i in range(10)]


def picture(seed: int, mode: str = "RGB", kind: str = "JPEG") -> bytes:
    colors = np.random.default_rng(seed).integers(0, 256, [4, 4, 3], np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(colors).resize((24, 20)).convert(mode).save(encoded, kind)
    return encoded.getvalue()


def train_pictures() -> dict[str, dict[str, bytes]]:
    """{class: {name: picture}}; one CMYK, one PNG under a JPEG name, one grayscale, as ImageNet has all three."""
    kinds = {0: ("CMYK", "JPEG"), 1: ("RGB", "PNG"), 2: ("L", "JPEG")}
    numbers = itertools.count()
    return {
        synset: {
            f"{synset}_{i}.JPEG": picture(number := next(numbers), *kinds.get(number, ("RGB", "JPEG")))
            for i in range(PER_CLASS)
        }
        for synset in SYNSETS
    }


def tar_bytes(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A folder with the two tar files and the labels, under their real names."""
    folder = tmp_path_factory.mktemp("ilsvrc")
    train = tar_bytes({f"{synset}.tar": tar_bytes(files) for synset, files in train_pictures().items()})
    validation = {f"ILSVRC2012_val_{i + 1:08d}.JPEG": picture(100 + i) for i in range(len(VALIDATION))}
    shuffled = dict(sorted(validation.items(), key=lambda item: item[0][::-1]))
    (folder / "ILSVRC2012_img_train.tar").write_bytes(train)
    (folder / "ILSVRC2012_img_val.tar").write_bytes(tar_bytes(shuffled))
    (folder / "imagenet_2012_validation_synset_labels.txt").write_text("\n".join(VALIDATION) + "\n")
    return folder


def arguments(sources, data_dir, *more):
    return [
        str(data_dir),
        f"--train={sources / 'ILSVRC2012_img_train.tar'}",
        f"--validation={sources / 'ILSVRC2012_img_val.tar'}",
        f"--validation_labels={sources / 'imagenet_2012_validation_synset_labels.txt'}",
        "--train_shards=4",
        "--validation_shards=2",
        *more,
    ]


def read(data_dir, pattern):
    """{file name of the image: features}."""
    actual = {}
    for file in tfrecords.list_files(data_dir, pattern, ""):
        for record in tfrecords.read(file):
            feature = tf.train.Example.FromString(record).features.feature
            name = feature["image/filename"].bytes_list.value[0].decode()
            assert name not in actual
            actual[name] = {
                "label": feature["image/class/label"].int64_list.value[0],
                "synset": feature["image/class/synset"].bytes_list.value[0].decode(),
                "size": [feature[f"image/{side}"].int64_list.value[0] for side in ("height", "width")],
                "encoded": feature["image/encoded"].bytes_list.value[0],
            }
    return actual


def check(data_dir, pictures):
    train, validation = read(data_dir, "train-*"), read(data_dir, "validation-*")
    assert train.keys() == {name for files in pictures.values() for name in files}
    for name, features in train.items():
        assert features["synset"] == name.split("_")[0]
        assert features["label"] == sorted(SYNSETS).index(features["synset"]) + 1
        assert features["size"] == [20, 24]
        original = pictures[features["synset"]][name]
        with Image.open(io.BytesIO(features["encoded"])) as image:
            assert image.format == "JPEG" and image.mode in ("RGB", "L")
            colors = np.asarray(image.convert("RGB"), float)
        with Image.open(io.BytesIO(original)) as image:
            if image.format == "JPEG" and image.mode != "CMYK":
                assert features["encoded"] == original
            assert abs(colors - np.asarray(image.convert("RGB"), float)).mean() < 4
    return validation


def test_tar_files(sources, tmp_path):
    assert convert.main(arguments(sources, tmp_path)) == 0
    validation = check(tmp_path, train_pictures())
    assert sorted(p.name for p in tmp_path.glob("*-of-*")) == [
        *(f"train-{i:05d}-of-00004" for i in range(4)),
        *(f"validation-{i:05d}-of-00002" for i in range(2)),
    ]
    for i, synset in enumerate(VALIDATION):
        features = validation[f"ILSVRC2012_val_{i + 1:08d}.JPEG"]
        assert features["synset"] == synset and features["encoded"] == picture(100 + i)


def test_class_folders_give_the_same_records_as_tar_files(sources, tmp_path):
    for synset, files in train_pictures().items():
        folder = tmp_path / "photos" / "train" / synset
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    for i, synset in enumerate(VALIDATION):
        folder = tmp_path / "photos" / "val" / synset
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"ILSVRC2012_val_{i + 1:08d}.JPEG").write_bytes(picture(100 + i))
    folders, tars = tmp_path / "folders", tmp_path / "tars"
    photos = [f"--train={tmp_path / 'photos/train'}", f"--validation={tmp_path / 'photos/val'}"]
    assert convert.main([str(folders), *photos, "--train_shards=4", "--validation_shards=2"]) == 0
    assert convert.main(arguments(sources, tars)) == 0
    for pattern in ("train-*", "validation-*"):
        assert read(folders, pattern) == read(tars, pattern)


def test_the_training_input_reads_what_was_converted(sources, tmp_path):
    assert convert.main(arguments(sources, tmp_path)) == 0
    config = Config(image_size=16, num_classes=3, data=Data(cache="none", shuffle_buffer=8))
    (batch,) = resnet_input.train_input(config, tmp_path, Shard(), 3 * PER_CLASS).take(1)
    assert sorted(batch["label"].numpy()) == [0] * 6 + [1] * 6 + [2] * 6


def test_hold_out_is_a_stable_part_of_the_training_images(sources, tmp_path):
    items = [images.Item("", 0, 0, f"n{i % 7}", f"n{i % 7}_{i}.JPEG") for i in range(3000)]
    rest, out = images.hold_out(items, 0.2)
    assert sorted(rest + out, key=items.index) == items
    assert 500 < len(out) < 700
    assert images.hold_out(items[1000:], 0.2)[1] == [item for item in out if item in set(items[1000:])]
    train = sources / "ILSVRC2012_img_train.tar"
    options = ["--hold_out=0.3", "--train_shards=2", "--validation_shards=1"]
    assert convert.main([str(tmp_path), f"--train={train}", *options]) == 0
    names = [set(read(tmp_path, pattern)) for pattern in ("train-*", "validation-*")]
    assert not names[0] & names[1] and len(names[0] | names[1]) == 3 * PER_CLASS


def test_finished_shards_are_kept_and_missing_ones_written(sources, tmp_path):
    whole = tmp_path / "whole"
    assert convert.main(arguments(sources, whole)) == 0
    before = {p.name: p.read_bytes() for p in whole.glob("*-of-*")}
    lost = whole / "train-00002-of-00004"
    lost.unlink()
    stamps = {p.name: p.stat().st_mtime_ns for p in whole.glob("*-of-*")}
    assert convert.main(arguments(sources, whole)) == 0
    assert {p.name: p.read_bytes() for p in whole.glob("*-of-*")} == before
    assert {name: (whole / name).stat().st_mtime_ns for name in stamps} == stamps


def test_workers_write_the_same_files(sources, tmp_path):
    alone, together = tmp_path / "1", tmp_path / "2"
    assert convert.main(arguments(sources, alone, "--workers=1")) == 0
    assert convert.main(arguments(sources, together, "--workers=2")) == 0
    for file in alone.glob("*-of-*"):
        assert file.read_bytes() == (together / file.name).read_bytes()


def fails(capsys, *argv):
    capsys.readouterr()
    assert convert.main([str(a) for a in argv]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ") and message.count("\n") == 1
    return message


def test_another_conversion_in_the_folder_is_refused(sources, tmp_path, capsys):
    assert convert.main(arguments(sources, tmp_path)) == 0
    other = [*arguments(sources, tmp_path)[:-2], "--train_shards=3", "--validation_shards=2"]
    assert "of another conversion" in fails(capsys, *other)


def test_bad_sources_are_one_line(sources, tmp_path, capsys):
    train, out = sources / "ILSVRC2012_img_train.tar", tmp_path / "out"
    labels = sources / "imagenet_2012_validation_synset_labels.txt"
    validation = sources / "ILSVRC2012_img_val.tar"
    assert "give either" in fails(capsys, out, "--train", train)
    assert "not there" in fails(capsys, out, "--train", tmp_path / "none.tar", "--hold_out", 0.1)
    assert "no pictures" in fails(capsys, out, "--train", tmp_path, "--hold_out", 0.1)
    assert "must lie between" in fails(capsys, out, "--train", train, "--hold_out", 2)
    assert "--train_shards" in fails(capsys, out, "--train", train, "--hold_out", 0.3, "--train_shards", 0)
    assert "--validation_labels" in fails(capsys, out, "--train", train, "--validation", validation)
    short = tmp_path / "labels.txt"
    short.write_text("n01\n")
    numbers = tmp_path / "ground_truth.txt"
    numbers.write_text("n01\n490\n" * 5)
    both = (out, "--train", train, "--validation", validation, "--validation_labels")
    assert "1 labels for 10 images" in fails(capsys, *both, short)
    short.write_text(labels.read_text().replace("n03", "n09"))
    line = 1 + labels.read_text().split().index("n03")
    assert f"{short}:{line}: 'n09' is none of the 3 classes of --train" in fails(capsys, *both, short)
    assert f"{numbers}:2: '490' is none of the 3 classes" in fails(capsys, *both, numbers)
    short.write_bytes(b"n01\n\xe9\n")
    assert f"{short}: line 2: not UTF-8; give --validation_labels another file" in fails(capsys, *both, short)
    cut = tmp_path / "cut.tar"
    cut.write_bytes(train.read_bytes()[: train.stat().st_size // 2])
    assert "download it again" in fails(capsys, out, "--train", cut, "--hold_out", 0.1)
    assert not out.exists()


def test_a_file_that_is_no_picture_is_named(tmp_path, capsys):
    folder = tmp_path / "photos" / "n01"
    folder.mkdir(parents=True)
    (folder / "bad.jpg").write_bytes(b"nothing")
    (folder / "good.jpg").write_bytes(picture(0))
    options = ("--train_shards", 1, "--validation_shards", 1)
    (tmp_path / "val" / "n01").mkdir(parents=True)
    (tmp_path / "val" / "n01" / "a.jpg").write_bytes(picture(1))
    argv = (tmp_path / "out", "--train", tmp_path / "photos", "--validation", tmp_path / "val", *options)
    assert "bad.jpg is not a picture" in fails(capsys, *argv).replace("\r", "")
    assert not list((tmp_path / "out").glob("train-*"))


def test_a_link_to_nothing_is_left_out_and_a_file_that_cannot_be_read_is_named(tmp_path, capsys, monkeypatch):
    for split in ("photos", "val"):
        (tmp_path / split / "n01").mkdir(parents=True)
        (tmp_path / split / "n01" / "good.jpg").write_bytes(picture(0))
    (tmp_path / "photos" / "n01" / "lost.jpg").symlink_to(tmp_path / "nowhere.jpg")
    argv = (tmp_path / "out", "--train", tmp_path / "photos", "--validation", tmp_path / "val")
    shards = ("--train_shards", 1, "--validation_shards", 1)
    assert [item.name for item in images._in_folders(tmp_path / "photos")] == ["good.jpg"]

    def refuse(item):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(images.Item, "read", refuse)
    assert "cannot read good.jpg: Permission denied" in fails(capsys, *argv, *shards).replace("\r", "")


def test_wrong_checksum_is_refused(sources, tmp_path, capsys):
    message = fails(capsys, *arguments(sources, tmp_path / "out", "--train_md5=" + "0" * 32))
    assert "MD5 is" in message and "download it again" in message


@pytest.fixture
def server(sources):
    with datasets.serving(sources) as address:
        yield address


def init_datasets(sources, data_dir, url, **more):
    checksums = {
        f"{split}_MD5": hashlib.md5((sources / f"ILSVRC2012_img_{name}.tar").read_bytes()).hexdigest()
        for split, name in (("TRAIN", "train"), ("VALIDATION", "val"))
    }
    settings = {"DATA_DIR": str(data_dir), "ILSVRC_URL": url, "LABELS_URL": url}
    settings |= {"TRAIN_SHARDS": "4", "VALIDATION_SHARDS": "2", **checksums, **more}
    return datasets.script("resnet/init_datasets.sh", **settings)


def test_init_datasets_downloads_verifies_and_converts(sources, server, tmp_path):
    done = init_datasets(sources, tmp_path, server)
    assert done.returncode == 0, done.stderr
    assert "train: 18 images of 3 classes in 4 shards" in done.stdout
    check(tmp_path, train_pictures())
    (tmp_path / "train-00001-of-00004").unlink()
    again = init_datasets(sources, tmp_path, "http://127.0.0.1:9")  # Nothing is downloaded a second time.
    assert again.returncode == 0, again.stderr
    check(tmp_path, train_pictures())


def test_init_datasets_refuses_a_wrong_checksum_and_a_missing_server(sources, server, tmp_path):
    wrong = init_datasets(sources, tmp_path / "a", server, TRAIN_MD5="0" * 32)
    assert wrong.returncode == 2 and "MD5 is" in wrong.stderr and "Traceback" not in wrong.stderr
    missing = init_datasets(sources, tmp_path / "b", "http://127.0.0.1:9")
    assert missing.returncode == 2 and "error: cannot download" in missing.stderr
