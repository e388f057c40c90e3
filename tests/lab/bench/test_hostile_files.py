"""Tests pictures, videos and annotations that lab/bench/harness/hostile_files.py damages, and invented values."""

import json
import os

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies
from PIL import Image

from common.data import pictures
from common.data.folder_conversion import Options
from common.detection import coco_source, coco_tidy
from common.errors import UserError
from lab.bench.harness import hostile_files, samples

# Damaged files to try; docs/security.md names more.
SAMPLE = int(os.environ.get("TTT_HOSTILE_CASES", 2 * len(hostile_files.KINDS)))


@pytest.mark.parametrize("kind", samples.ANNOTATIONS)
def test_the_sound_annotations_are_read(tmp_path, kind):
    samples.annotations(kind, tmp_path)
    masks = kind not in ("voc", "voc list", "yolo")
    seen = hostile_files.observed(lambda: hostile_files.read_annotations(tmp_path, masks))
    assert seen["result"].startswith("read") and not hostile_files.broken(seen), seen


@pytest.mark.parametrize("what, kind", [pair for pair in hostile_files.KINDS if pair[0] != "annotations"])
def test_the_sound_files_are_read(tmp_path, what, kind):
    path = tmp_path / (f"file.{kind}" if what == "video" else "file")
    (samples.video if what == "video" else samples.picture)(kind, path)
    seen = hostile_files.observed(lambda: hostile_files.read_file(what, path, png=True))
    assert seen["result"].startswith("read") and not hostile_files.broken(seen), seen


@pytest.mark.parametrize("number", range(SAMPLE))
def test_a_damaged_file_is_read_the_same_twice_or_is_one_line(tmp_path, number):
    seen = hostile_files.run(number, 1, tmp_path)
    assert not hostile_files.broken(seen), seen


def test_a_case_is_a_function_of_its_seed(tmp_path):
    actual = []
    for name in "ab":
        (tmp_path / name).mkdir()
        hostile_files.run(len(samples.PICTURES), 3, tmp_path / name)
        actual.append((tmp_path / name / "file.mp4").read_bytes())
    assert actual[0] == actual[1]


VALUES = strategies.recursive(
    strategies.none()
    | strategies.booleans()
    | strategies.integers(-(10**20), 10**20)
    | strategies.floats()
    | strategies.text(max_size=5),
    lambda inner: strategies.lists(inner, max_size=8)
    | strategies.dictionaries(strategies.text(max_size=3), inner),
    max_leaves=12,
)
FIELDS = ("image_id", "category_id", "bbox", "area", "iscrowd", "segmentation", "id")


@hypothesis.settings(max_examples=150, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(
    kind=strategies.sampled_from(("images", "annotations", "categories")),
    field=strategies.sampled_from((*FIELDS, "file_name", "width", "name", "supercategory")),
    value=VALUES,
    masks=strategies.booleans(),
)
def test_any_value_in_any_field_is_read_or_is_a_line(tmp_path_factory, kind, field, value, masks):
    folder = tmp_path_factory.mktemp("coco")
    Image.fromarray(np.zeros((32, 48, 3), np.uint8)).save(folder / "p0.jpg")
    values = samples._coco()
    values[kind][0][field] = value
    (folder / "labels.json").write_text(json.dumps(values))
    options = Options()
    try:
        source, _ = coco_source.find(folder, options)
        (content,), _, _ = coco_tidy.tidy([source], masks, options.report)
    except UserError:
        return
    for item in content["annotations"]:
        x, y, width, height = item["bbox"]
        assert 0 <= x < x + width <= 48 and 0 <= y < y + height <= 32 and item["iscrowd"] in (0, 1)
        assert np.isfinite(item["area"]) and bool(item["segmentation"]) == masks


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
    data=strategies.binary(max_size=200),
    head=strategies.sampled_from(
        (
            b"",
            b"\xff\xd8\xff",
            b"\x89PNG\r\n\x1a\n",
            b"II*\0",
            b"MM\0*",
            b"GIF89a",
            b"BM",
            b"RIFF....WEBP",
            b"P6 9 9 255 ",
        )
    ),
)
def test_any_bytes_are_a_picture_or_a_line(data, head):
    try:
        pictures.checked(head + data)
    except pictures.BadPictureError as error:
        assert str(error) and "\n" not in str(error)
