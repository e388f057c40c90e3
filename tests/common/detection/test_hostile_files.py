"""Tests damaged pictures, videos and annotations, and invented values: read alike twice, or refused in one line."""

import hashlib
import json
import os
import random

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies
from pycocotools import mask

from common.data import pictures, videos
from common.data.folder_conversion import Options
from common.data.pictures import BadPictureError
from common.data.videos import BadVideoError
from common.detection import coco_source, coco_tidy, coco_write
from common.detection.convert import Pictures
from common.errors import UserError
from tests import custom_sources, hostile
from tests.common.detection.test_annotation_programs import YOLO, voc
from tests.common.detection.test_annotations import COMPRESSED, HEIGHT, POLYGON, WIDTH, content, photos

PICTURES = 20  # Of custom_sources.odd_pictures.
CONTAINERS = {
    "mp4": "mpeg4", "avi": "mpeg4", "mkv": "libx264", "mpg": "mpeg1video", "flv": "flv", "wmv": "wmv2",
    "webm": "libvpx",
}  # fmt: skip
ANNOTATIONS = ("coco", "coco masks", "labelme", "voc", "voc list", "yolo")
FILES = (*((("picture", number)) for number in range(PICTURES)), *((("video", kind)) for kind in CONTAINERS))
KINDS = (*FILES, *((("annotations", kind)) for kind in ANNOTATIONS * 3))
# Damaged files to try; docs/security.md names more.
SAMPLE = int(os.environ.get("TTT_HOSTILE_CASES", 2 * len(KINDS)))
# Values that annotation programs write, and some that none would.
VALUES = (
    None, True, -1, 0, 1, 2, 1e9, -1e9, 1e300, 10**400, float("nan"), float("inf"), 0.5, "", "0", "false",
    "p1.jpg", [], {}, [1], [[1, 2]], [[0, 0, 9, 0, 9, 9]], [0, 0, 9, 9], [1e9, 0, 0, 1e9],
    [-5, -5, 500, 500], "é", "\ud800", {"size": [HEIGHT, WIDTH], "counts": [HEIGHT * WIDTH]},
    {"size": [HEIGHT, WIDTH], "counts": [5]}, {"size": [WIDTH, HEIGHT], "counts": "0"}, "../p1.jpg", "a\0b",
    "images\\p0.jpg", "9" * 400, [[float("nan")] * 6], [[1e12, 0, 0, 1e12, -1e12, 5]],
)  # fmt: skip


def make_bad(what, kind, folder):
    """A sound picture or video."""
    if what == "picture":
        return custom_sources.odd_pictures(folder, kind + 1)[-1]
    frames = np.random.default_rng(3).integers(0, 256, (6, 32, 48, 3), np.uint8)
    videos.write(folder / f"file.{kind}", frames, codec=CONTAINERS[kind])
    return folder / f"file.{kind}"


def annotated(kind, folder):
    """Writes three pictures and sound annotations; returns the annotation files."""
    photos(folder, 3)
    names, texts = [f"p{i}" for i in range(3)], {}
    if kind in ("coco", "coco masks"):
        values = content(3)
        if kind == "coco masks":
            size = {"size": [HEIGHT, WIDTH]}
            runs = [10 * HEIGHT + 12, *[20, HEIGHT - 20] * 29, 20]
            runs = [*runs, HEIGHT * WIDTH - sum(runs)]
            assert mask.frPyObjects(size | {"counts": runs}, HEIGHT, WIDTH)["counts"].decode() == COMPRESSED
            for item, counts in zip(values["annotations"], (runs, COMPRESSED, runs)):
                item["segmentation"] = size | {"counts": counts}
        texts = {"labels.json": json.dumps(values)}
    elif kind == "labelme":
        shape = {"label": "red", "points": np.reshape(POLYGON, (-1, 2)).tolist(), "shape_type": "polygon"}
        about = {"imageWidth": WIDTH, "imageHeight": HEIGHT, "shapes": [shape]}
        texts = {f"{name}.json": json.dumps({"imagePath": f"{name}.jpg", **about}) for name in names}
    elif kind == "yolo":
        texts = {f"{name}.txt": f"{YOLO}0 0.1 0.1 0.6 0.1 0.6 0.7\n" for name in names}
        texts["data.yaml"] = "names: [red, blue]\n"
    else:
        for name in names:
            voc(folder, name)
        if kind == "voc list":
            (folder / "ImageSets/Main").mkdir(parents=True)
            (folder / "ImageSets/Main/train.txt").write_text("p0\np1.jpg\n")
            (folder / "ImageSets/Main/val.txt").write_text("p2 1\n")
            return sorted((folder / "ImageSets/Main").iterdir())
        return sorted((folder / "Annotations").iterdir())
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [folder / name for name in texts if name != "data.yaml"]


def read_file(what, path, png):
    """Reads a picture or a video as a conversion does; returns a digest of what a record would hold."""
    if what == "video":
        clip = videos.read(path, 24)
        return hashlib.sha256(b"".join(clip.frames) + repr(clip.times).encode()).hexdigest()
    picture = pictures.checked(pictures.contents(path), png)
    return hashlib.sha256(picture.encoded + picture.digest.encode()).hexdigest()


def read_annotations(folder, masks):
    """Reads a folder of annotations as a conversion does; returns a digest of its records and left-out lines."""
    options, digest = Options(), hashlib.sha256()
    sources = [source for source in coco_source.find(folder, options) if source]
    contents, names, _ = coco_tidy.tidy(sources, masks, options.report)
    for source, result in zip(sources, contents):
        result = json.loads(json.dumps(result))
        coco_write.check(result, "the result", masks and bool(result["annotations"]))
        dropped = []
        for record in coco_write.examples(result, Pictures(str(source.folder), True).read, masks, dropped):
            digest.update(record)
        if dropped:
            raise RuntimeError(f"an object that was taken is left out of its record: {dropped}")
    digest.update(json.dumps([names, options.report.as_json(), options.report.lines]).encode())
    return digest.hexdigest()


def read_twice(read):
    """The answer of a reader, which must be the same twice, or a refusal of one line."""
    results = []
    for _ in range(2):
        try:
            results.append(f"read {read()}")
        except (UserError, BadPictureError, BadVideoError) as error:
            results.append(f"refused {error}")
    assert results[0] == results[1] and "\n" not in results[0], results
    return results[0]


@pytest.mark.parametrize("kind", ANNOTATIONS)
def test_the_sound_annotations_are_read(tmp_path, kind):
    annotated(kind, tmp_path)
    masks = kind not in ("voc", "voc list", "yolo")
    assert read_twice(lambda: read_annotations(tmp_path, masks)).startswith("read")


@pytest.mark.parametrize("what, kind", FILES)
def test_the_sound_files_are_read(tmp_path, what, kind):
    path = make_bad(what, kind, tmp_path)
    assert read_twice(lambda: read_file(what, path, png=True)).startswith("read")


@pytest.mark.parametrize("number", range(SAMPLE))
def test_a_damaged_file_is_read_the_same_twice_or_is_one_line(tmp_path, number):
    rng, (what, kind) = random.Random(f"1 {number}"), KINDS[number % len(KINDS)]
    if what == "annotations":
        damage_annotations(kind, tmp_path, rng)
        read_twice(lambda: read_annotations(tmp_path, masks=number % 4 < 2))
        return
    path = make_bad(what, kind, tmp_path)
    data = path.read_bytes()
    for _ in range(rng.choice((1, 1, 1, 3))):
        data = flipped(data, rng) if data and rng.random() < 0.5 else hostile.mutate_bytes(data or b"x", rng)
    path.write_bytes(data)
    read_twice(lambda: read_file(what, path, png=number % 2 == 0))


def damage_annotations(kind, place, rng):
    path = rng.choice(annotated(kind, place))
    data = path.read_bytes()
    if path.suffix == ".json" and rng.random() < 0.75:
        values = json.loads(data)
        for _ in range(rng.choice((1, 1, 2, 4))):
            values = hostile.mutate_values(values, rng, VALUES)
        path.write_text(json.dumps(values))
    elif rng.random() < 0.3 and path.suffix != ".json":
        words = data.split(b" ") if path.suffix == ".txt" else data.split(b">")
        at = rng.randrange(len(words))
        value = str(rng.choice(VALUES)).encode(errors="replace")
        words[at] = value + (b"<" + words[at].partition(b"<")[2] if b"<" in words[at] else b"")
        path.write_bytes((b" " if path.suffix == ".txt" else b">").join(words))
    else:
        path.write_bytes(hostile.mutate_bytes(data, rng))


def flipped(data, rng):
    """Flips one bit, more often near the start, where headers are."""
    at = min(int(rng.random() ** 2 * len(data)), len(data) - 1)
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


ANY = strategies.recursive(
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
    value=ANY,
    masks=strategies.booleans(),
)
def test_any_value_in_any_field_is_read_or_is_a_line(tmp_path_factory, kind, field, value, masks):
    folder = tmp_path_factory.mktemp("coco")
    photos(folder, 1)
    values = content(1)
    values[kind][0][field] = value
    (folder / "labels.json").write_text(json.dumps(values))
    options = Options()
    try:
        source, _ = coco_source.find(folder, options)
        (result,), _, _ = coco_tidy.tidy([source], masks, options.report)
    except UserError:
        return
    for item in result["annotations"]:
        x, y, width, height = item["bbox"]
        assert 0 <= x < x + width <= WIDTH and 0 <= y < y + height <= HEIGHT and item["iscrowd"] in (0, 1)
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
