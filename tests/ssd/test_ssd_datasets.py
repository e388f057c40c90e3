"""Tests init_datasets.sh on a small copy of COCO's server: download, checksums, conversion, masks."""

import hashlib
import io
import json
import pathlib
import subprocess
import zipfile

import pytest

from common.data import tfrecords
from common.detection import coco_records, drawing
from tests import datasets

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
