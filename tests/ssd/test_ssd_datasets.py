"""Tests init_datasets.sh on a small copy of COCO's server, and the whole path on COCO photographs."""

import dataclasses
import hashlib
import io
import json
import pathlib
import subprocess
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from common.config.run_length import RunLength
from common.data import tfrecords
from common.detection import coco_eval, coco_records, convert, drawing
from common.distributed.replicas.base import Shard
from common.distributed.replicas.single import Single
from common.errors import UserError
from common.layers.precision import precision
from common.train.state import State
from common.train.step import make_eval_step, make_train_step
from lab.studies.data import unpack
from ssd.config import Data
from ssd.presets import PRESETS
from ssd.task import Task
from tests import datasets
from tests.benchmarks import check_all

SET = drawing.Pictures(train_images=7, eval_images=5)


def packed(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """(address, {zip file: MD5})."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "zips").mkdir()
    (folder / "annotations").mkdir()
    notes, sums = {}, {}
    for split in ("train", "val"):
        content, jpegs = drawing.annotations(SET, split)
        names = {image["id"]: image["file_name"] for image in content["images"]}
        files = {f"{split}2017/{names[number]}": jpeg for number, jpeg in jpegs.items()}
        (folder / "zips" / f"{split}2017.zip").write_bytes(packed(files))
        notes[f"annotations/instances_{split}2017.json"] = json.dumps(content).encode()
    (folder / "annotations" / "annotations_trainval2017.zip").write_bytes(packed(notes))
    for path in folder.rglob("*.zip"):
        sums[path.stem.split("_")[0].removesuffix("2017").upper() + "_MD5"] = hashlib.md5(
            path.read_bytes()
        ).hexdigest()
    with datasets.serving(folder) as address:
        yield address, sums


def init(data_dir: pathlib.Path, **variables: str) -> subprocess.CompletedProcess:
    settings = {"DATA_DIR": str(data_dir), "TRAIN_SHARDS": "2", "VAL_SHARDS": "2"}
    return datasets.script("ssd/init_datasets.sh", **settings | variables)


def test_downloads_verifies_and_converts_with_masks(server, tmp_path):
    address, sums = server
    done = init(tmp_path, COCO_URL=address, MASKS="1", **sums)
    assert done.returncode == 0, done.stderr
    for split, total in (("train", 7), ("val", 5)):
        content = json.loads((tmp_path / f"instances_{split}2017.json").read_text())
        actual = [
            coco_records.parse(record, masks=True)
            for path in sorted(tmp_path.glob(f"{split}-*.tfrecord"))
            for record in tfrecords.read(path)
        ]
        assert len(actual) == total
        assert {int(f["image_id"]) for f in actual} == {image["id"] for image in content["images"]}
        assert sum(len(f["masks"]) for f in actual) == len(content["annotations"])


def test_a_wrong_checksum_ends_with_one_line(server, tmp_path):
    address, sums = server
    done = init(tmp_path, COCO_URL=address, **{**sums, "VAL_MD5": "0" * 32})
    assert done.returncode != 0
    assert "val2017.zip: MD5 is" in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


def test_without_data_dir_it_says_so():
    done = init(pathlib.Path("unused"), DATA_DIR="")
    assert done.returncode == 2 and done.stderr.startswith("error: DATA_DIR is not set")


CONFIG = dataclasses.replace(
    PRESETS["cpu-tiny"], num_classes=81, num_train_examples=99, num_eval_examples=100, global_batch_size=8,
    eval_batch_size=32, width=4, implementation="nvidia", data=Data(),
)  # fmt: skip


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> pathlib.Path:
    try:
        source = unpack("coco200")
    except UserError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("coco")
    arguments = [str(folder), "--workers=1", "--train_shards=3", "--val_shards=2"]
    for split in ("train", "val"):
        arguments += [
            f"--{split}={source / 'images'}",
            f"--{split}_annotations={source / f'instances_{split}2017_100.json'}",
        ]
    assert convert.main(arguments) == 0
    return folder


def test_an_oracle_scores_one_through_the_task(data_dir):
    task = Task(CONFIG, str(data_dir))
    content = json.loads((data_dir / "instances_val2017.json").read_text())
    assert any(a["iscrowd"] for a in content["annotations"]) and len(content["categories"]) == 80
    ids = sorted(c["id"] for c in content["categories"])
    most, images = 100, content["images"]
    arrays = {
        "image_id": np.array([i["id"] for i in images]),
        "weight": np.ones(len(images)),
        "boxes": np.zeros([len(images), most, 4]),
        "scores": np.zeros([len(images), most]),
        "classes": np.zeros([len(images), most], np.int32),
    }
    for row, image in enumerate(images):
        items = [a for a in content["annotations"] if a["image_id"] == image["id"] and not a["iscrowd"]]
        for column, item in enumerate(items):
            x, y, w, h = item["bbox"]
            size = [image["height"], image["width"]] * 2
            arrays["boxes"][row, column] = np.array([y, x, y + h, x + w]) / size
            arrays["scores"][row, column] = 1
            arrays["classes"][row, column] = ids.index(item["category_id"]) + 1
    quality = task.quality({}, arrays)
    assert quality.value == pytest.approx(1.0) and quality.reached


def test_photographs_train_and_are_evaluated(data_dir):
    task, replicas, policy = Task(CONFIG, str(data_dir)), Single(), precision("fp32")
    check_all(task)
    state = State(task, replicas, policy)
    train = tf.function(make_train_step(task, state, RunLength.of(CONFIG)), autograph=False)
    evaluate = tf.function(make_eval_step(task, state), autograph=False)
    losses = [
        float(train(batch, tf.constant(i, tf.int64)))
        for i, batch in enumerate(task.train_input(Shard(), 8, 0).take(3))
    ]
    assert np.isfinite(losses).all()
    outputs = [evaluate(batch)[1] for batch in task.eval_input(Shard(), 32)]
    arrays = {name: np.concatenate([o[name] for o in outputs]) for name in outputs[0]}
    assert len(arrays["weight"]) == 128 and arrays["weight"].sum() == 100
    once = coco_eval.each_image_once(str(data_dir / "instances_val2017.json"), arrays)
    assert len(once["image_id"]) == 100
    assert 0 <= task.quality({}, arrays).value < 0.2


def test_conversion_goes_on_where_it_was_interrupted(data_dir):
    shards = sorted(data_dir.glob("*.tfrecord"))
    assert len(shards) == 5
    before = {p: p.stat().st_mtime_ns for p in shards}
    shards[1].unlink()
    source = unpack("coco200")
    annotations = convert.read_annotations(str(source / "instances_train2017_100.json"), "train")
    convert.convert(data_dir, "train", str(source / "images"), annotations, 3, False, 1)
    after = {p: p.stat().st_mtime_ns for p in sorted(data_dir.glob("*.tfrecord"))}
    assert set(after) == set(before) and {p for p in after if after[p] != before[p]} == {shards[1]}
    with pytest.raises(UserError, match="another conversion"):
        convert.convert(data_dir, "train", str(source / "images"), annotations, 2, False, 1)


def test_a_truncated_photograph_is_named(tmp_path):
    source = unpack_or_skip()
    content = json.loads((source / "instances_val2017_100.json").read_text())
    image = content["images"][0]
    whole = (source / "images" / image["file_name"]).read_bytes()
    (tmp_path / image["file_name"]).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=f"image {image['id']} .* is not a whole picture"):
        convert.Pictures(str(tmp_path)).read(image)
    with pytest.raises(UserError, match=f"image {content['images'][1]['id']} .* cannot be read"):
        convert.Pictures(str(tmp_path)).read(content["images"][1])


def unpack_or_skip() -> pathlib.Path:
    try:
        return unpack("coco200")
    except UserError as error:
        pytest.skip(str(error))
