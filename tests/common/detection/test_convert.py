"""Tests the conversion of COCO files: what is wrong with one, or with the disk, is one line."""

import errno
import json
import os
import pathlib
import zipfile

import pytest

from common.detection import convert
from tests.common.detection.scenes import NOTHING, jpeg, scene, set_field


def convert_scene(folder: pathlib.Path, content: object, *flags: str, zipped: bool = False) -> int:
    """Runs the conversion command on `content` as both splits."""
    for image in scene()["images"]:
        (folder / image["file_name"]).write_bytes(jpeg(image["id"]))
    notes = folder / "notes.json"
    notes.write_text(json.dumps(content))
    arguments = [str(folder / "out"), f"--train={folder}", f"--val={folder}", "--workers=1", *flags]
    arguments += ["--train_shards=2", "--val_shards=1"]
    if zipped:
        with zipfile.ZipFile(folder / "notes.zip", "w") as packed:
            for split in convert.SPLITS:
                packed.write(notes, f"annotations/instances_{split}2017.json")
        return convert.main([*arguments, f"--annotations={folder / 'notes.zip'}"])
    return convert.main([*arguments, *(f"--{split}_annotations={notes}" for split in convert.SPLITS)])


@pytest.mark.parametrize(
    ("kind", "field", "value", "message"),
    [
        ("annotations", "bbox", NOTHING, "annotations[3] (image 121, annotation 4): bbox is missing"),
        ("annotations", "bbox", [1, 2, 3], "(image 121, annotation 4): bbox is [1, 2, 3]"),
        ("annotations", "iscrowd", NOTHING, "(image 121, annotation 4): iscrowd is missing"),
        ("annotations", "area", "large", "(image 121, annotation 4): area is 'large'"),
        ("annotations", "category_id", NOTHING, "(image 121, annotation 4): category_id is missing"),
        ("annotations", "image_id", NOTHING, "annotations[3] (id 4): image_id is missing"),
        ("annotations", "segmentation", {"counts": [7]}, "(image 121, annotation 4): segmentation is {"),
        ("images", "file_name", NOTHING, "images[3] (id 121): file_name is missing"),
        ("images", "width", NOTHING, "images[3] (id 121): width is missing"),
        ("images", "id", NOTHING, "images[3]: id is missing"),
        ("categories", "name", NOTHING, "categories[1] (id 7): name is missing"),
    ],
)
def test_an_annotation_file_without_a_field_is_one_line(tmp_path, capsys, kind, field, value, message):
    content = scene()
    bad = content[kind][1 if kind == "categories" else 3]
    set_field(bad, field, value)
    assert convert_scene(tmp_path, content) == 2
    error = capsys.readouterr().err
    assert f"error: {tmp_path / 'notes.json'}: " in error and message in error
    assert error.count("\n") == 1 and "get a good copy" in error


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("kind", ["images", "categories", "annotations"])
def test_an_annotation_file_without_a_list_is_one_line(tmp_path, capsys, kind, zipped):
    content = scene()
    del content[kind]
    assert convert_scene(tmp_path, content, zipped=zipped) == 2
    where = "notes.zip: annotations/instances_train2017.json" if zipped else "notes.json"
    assert f"error: {tmp_path}/{where}: {kind} is not a list; get a COCO file" in capsys.readouterr().err
    assert convert_scene(tmp_path, [3]) == 2


def test_masks_are_asked_for_only_where_they_are_written(tmp_path, capsys):
    content = scene()
    del content["annotations"][3]["segmentation"], content["annotations"][5]["id"]
    assert convert_scene(tmp_path, content, "--masks") == 2
    assert "image 121, annotation 4: it has no segmentation; get a good copy" in capsys.readouterr().err
    assert convert_scene(tmp_path, content) == 0


def test_a_full_disk_at_the_annotation_file_is_one_line(tmp_path, capsys, monkeypatch):
    """Finished shards stay, and the same command resumes."""
    before = pathlib.Path.write_bytes

    def full(path, data):
        if "instances_" in path.name:
            before(path, data[:9])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return before(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "write_bytes", full)
        assert convert_scene(tmp_path, scene()) == 2
    path = tmp_path / "out" / "instances_train2017.json"
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: {path}: cannot write: No space left on device; free some space")
    assert not list(path.parent.glob("*.partial")) and not path.exists()
    assert convert_scene(tmp_path, scene()) == 0 and json.loads(path.read_text()) == scene()
