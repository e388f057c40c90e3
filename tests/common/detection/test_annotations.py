"""Tests how a user's annotations are read: what has one meaning is taken, what has none is one line."""

import json
import os

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

from common.data.folder_conversion import Options
from common.detection import coco_source, coco_tidy, shapes
from common.detection.shapes import BadShapeError
from common.errors import UserError

HEIGHT, WIDTH = 64, 96
BOX = [10, 12, 30, 20]
POLYGON = [10, 12, 40, 12, 40, 32, 10, 32]
COMPRESSED = coco_mask.frPyObjects([POLYGON], HEIGHT, WIDTH)[0]["counts"].decode()


def content(count=2, **fields):
    """COCO's JSON of `count` pictures with an object each; `fields` change the first object."""
    images = [{"id": i, "file_name": f"p{i}.jpg", "width": WIDTH, "height": HEIGHT} for i in range(count)]
    items = [
        {"id": i, "image_id": i, "category_id": 1, "bbox": BOX, "iscrowd": 0, "segmentation": [POLYGON]}
        for i in range(count)
    ]
    items[0] |= fields
    return {"images": images, "annotations": items, "categories": [{"id": 1, "name": "red"}]}


def photos(folder, count=2, orientation=1, suffix=".jpg"):
    """Pictures, all different; `orientation` is the EXIF tag of stored pixels of HEIGHT x WIDTH."""
    folder.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    for i in range(count):
        shade = np.full((HEIGHT, WIDTH, 3), 40 + 3 * i, np.uint8)
        Image.fromarray(shade).save(folder / f"p{i}{suffix}", exif=exif)
    return folder


def tidied(folder, masks=False, **options):
    """(images, objects, names, report) of a folder without a split."""
    settings = Options(**options)
    source, _ = coco_source.find(folder, settings)
    (result,), names, _ = coco_tidy.tidy([source], masks, settings.report)
    return result["images"], result["annotations"], names, settings.report


def coco(folder, values, masks=False, orientation=1):
    photos(folder, len(values["images"]), orientation)
    (folder / "labels.json").write_text(json.dumps(values))
    return tidied(folder, masks)


# ------------------------------------------------------------------------------------------------ values of other types


@pytest.mark.parametrize(
    "value, crowd",
    [(0, 0), (1, 1), (True, 1), (1.0, 1), (float("nan"), 0), ("0", 0), ("1", 1), ("false", 0), ("True", 1)],
)
def test_iscrowd_is_read_as_meant(tmp_path, value, crowd):
    _, objects, _, report = coco(tmp_path, content(iscrowd=value))
    assert [item["iscrowd"] for item in objects] == [crowd, 0]
    assert bool(report.changed) != isinstance(value, int)


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"iscrowd": "maybe"}, "iscrowd is 'maybe'"),
        ({"iscrowd": [1]}, "iscrowd is [1]"),
        ({"category_id": [1]}, "category [1] is unknown"),
        ({"category_id": {}}, "category {} is unknown"),
        ({"category_id": True}, "category True is unknown"),
        ({"image_id": [0]}, "of an unknown image [0]"),
        ({"image_id": None}, "of an unknown image None"),
        ({"bbox": [1, 2, 3]}, "bbox is [1, 2, 3]"),
        ({"bbox": "1 2 3 4"}, "bbox is '1 2 3 4'"),
        ({"bbox": [1, 2, float("nan"), 4]}, "bbox is [1, 2, nan, 4]"),
        ({"bbox": [1, 2, float("inf"), 4]}, "bbox is [1, 2, inf, 4]"),
        ({"bbox": [1, 2, 10**400, 4]}, "bbox is [1, 2, 1000"),
        ({"bbox": [90, 60, -5, 4]}, "no area within the picture"),
        ({"bbox": [200, 10, 5, 4]}, "no area within the picture"),
    ],
)
def test_a_value_without_a_meaning_is_one_line_that_names_the_entry(tmp_path, fields, reason):
    _, objects, _, report = coco(tmp_path, content(**fields))
    (line,) = report.lines
    assert len(objects) == 1 and "annotations[0]" in line and reason in line


@pytest.mark.parametrize(
    "kind, entry, message",
    [
        ("categories", {"id": [2], "name": "x"}, r"categories\[1\]: id is \[2\]"),
        ("categories", [3], r"categories\[1\]: needs an id and a name"),
        (
            "images",
            {"id": 1, "file_name": "p0.jpg"},
            r"images\[1\] \(p1.jpg\) and images\[2\] \(p0.jpg\) have .* id 1",
        ),
    ],
)
def test_an_entry_that_spoils_the_whole_file_is_refused(tmp_path, kind, entry, message):
    values = content()
    values[kind].append(entry)
    photos(tmp_path)
    (tmp_path / "labels.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=message):
        tidied(tmp_path)


def test_ids_as_texts_and_floats_are_the_same_ids(tmp_path):
    values = content(3)
    values["annotations"][0] |= {"image_id": "0", "category_id": "1"}
    values["annotations"][1] |= {"image_id": 1.0, "category_id": 1.0}
    _, objects, _, report = coco(tmp_path, values)
    assert [item["image_id"] for item in objects] == [1, 2, 3] and not report.lines


def test_one_file_under_two_ids_is_one_picture_with_all_objects(tmp_path):
    values = content()
    values["images"][1]["file_name"] = "./p0.jpg"
    values["annotations"][1]["bbox"] = [1, 1, 9, 9]
    images, objects, _, report = coco(tmp_path, values)
    assert len(images) == 1 and [item["image_id"] for item in objects] == [1, 1]
    assert report.changed["a picture under two ids, read as one"].count == 1


NO_SIZES = [(-1, -1), (0, 0), (None, None), ("", ""), (str(WIDTH), str(HEIGHT)), (96.0, 64.0)]
WRONG_SIZES = [("wide", 64), (96.5, 64), ([96], 64), (95, 64), (HEIGHT, WIDTH)]


@pytest.mark.parametrize("size", NO_SIZES + WRONG_SIZES)
def test_a_size_is_read_as_meant_and_a_wrong_one_is_one_line(tmp_path, size):
    values, wrong = content(), size in WRONG_SIZES
    values["images"][0] |= dict(zip(("width", "height"), size))
    images, objects, _, report = coco(tmp_path, values)
    assert len(images) == len(objects) == 2 - wrong
    assert ["p0.jpg" in line for line in report.lines] == [True] * wrong
    assert {(image["width"], image["height"]) for image in images} == {(WIDTH, HEIGHT)}


def test_boxes_within_0_to_1_are_refused(tmp_path):
    values = content()
    for item in values["annotations"]:
        item["bbox"] = [0.1, 0.2, 0.3, 0.4]
    with pytest.raises(UserError, match="every bbox lies within 0 to 1"):
        coco(tmp_path, values)


def test_a_missing_box_is_the_one_around_the_polygon(tmp_path):
    values = content(bbox=None)
    del values["annotations"][1]["bbox"]
    _, objects, _, _ = coco(tmp_path, values)
    assert [item["bbox"] for item in objects] == [BOX, BOX]


def test_what_looks_wrong_is_suspicious(tmp_path):
    values = content(6)
    for item, box in zip(
        values["annotations"], ([90, 10, 30, 10], [5, 5, 1, 9], [-1, 0, 30, 30], BOX, BOX, BOX)
    ):
        item["bbox"] = box
    values["annotations"][4]["image_id"] = 3
    _, _, _, report = coco(tmp_path, values)
    counts = {what: one.count for what, one in report.suspicious.items()}
    assert counts == {
        "a box more than half outside of its picture": 1,
        "a box less than 2 pixels wide or high": 1,
        "the same box twice": 1,
    }
    assert report.changed["a box cut at the picture's edge"].count == 1


@pytest.mark.parametrize(
    "name, there",
    [
        ("images\\p0.jpg", "images/p0.jpg"),
        ("C:\\Users\\me\\p0.jpg", "p0.jpg"),
        ("P0.JPG", "p0.jpg"),
        ("a%20b.jpg", "a b.jpg"),
        ("a\u0308.jpg", "\u00e4.jpg"),
        ("/data/upload/1/p0.jpg", "p0.jpg"),
    ],
)
def test_a_file_name_of_another_system_is_found(tmp_path, name, there):
    photos(tmp_path)
    (tmp_path / there).parent.mkdir(exist_ok=True)
    (tmp_path / "p0.jpg").rename(tmp_path / there)
    values = content()
    values["images"][0]["file_name"] = name
    (tmp_path / "labels.json").write_text(json.dumps(values))
    images, objects, _, report = tidied(tmp_path)
    assert len(images) == len(objects) == 2 and not report.lines
    assert "a file name found in another spelling" in report.changed


# ---------------------------------------------------------------------------------------------------- turned pictures


@pytest.mark.parametrize("orientation", range(2, 9))
def test_boxes_on_the_stored_pixels_of_a_turned_picture_are_left_out_or_said(tmp_path, orientation):
    values = content(3)
    values["images"][1] |= {"width": HEIGHT, "height": WIDTH} if orientation > 4 else {}
    del values["images"][2]["width"]
    _, objects, _, report = coco(tmp_path, values, orientation=orientation)
    assert [item["bbox"] for item in objects] == [BOX] * (2 if orientation > 4 else 3)
    assert report.suspicious[coco_tidy.UNCLEAR].count == (1 if orientation > 4 else 3)
    assert list(report.left_out) == [coco_tidy.NOT_TURNED] * (orientation > 4)


def test_boxes_that_fit_the_stored_pixels_alone_leave_their_picture_out(tmp_path):
    values = content(2)
    for image in values["images"]:
        del image["width"], image["height"]
    values["annotations"][0]["bbox"] = [WIDTH - 12, 2, 10, 8]
    images, _, _, report = coco(tmp_path, values, orientation=6)
    assert len(images) == 1 and list(report.left_out) == [coco_tidy.NOT_TURNED]


def test_boxes_on_the_upright_picture_stay(tmp_path):
    values = content()
    for image in values["images"]:
        image |= {"width": HEIGHT, "height": WIDTH}
    images, objects, _, report = coco(tmp_path, values, orientation=6)
    assert (images[0]["width"], images[0]["height"]) == (HEIGHT, WIDTH)
    assert objects[0]["bbox"] == BOX and not report.suspicious and not report.lines


# -------------------------------------------------------------------------------------------------------------- masks


@pytest.mark.parametrize(
    "shape, reason",
    [
        ({"size": [HEIGHT, WIDTH], "counts": [100, 50]}, "run lengths sum to 150"),
        ({"size": [HEIGHT, WIDTH], "counts": [-100, HEIGHT * WIDTH + 100]}, "not whole numbers from 0 on"),
        ({"size": [HEIGHT, WIDTH], "counts": [0.5, HEIGHT * WIDTH - 0.5]}, "not whole numbers from 0 on"),
        ({"size": [HEIGHT, WIDTH], "counts": [HEIGHT * WIDTH]}, "no pixel within the picture"),
        ({"size": [HEIGHT, WIDTH], "counts": "abc"}, "run lengths"),
        ({"size": [HEIGHT, WIDTH], "counts": "oooooooooooo"}, "not COCO's compressed text"),
        ({"size": [HEIGHT, WIDTH], "counts": "\u00e9"}, "not COCO's compressed text"),
        ({"size": [HEIGHT, WIDTH], "counts": ""}, "not COCO's compressed text"),
        ({"size": [HEIGHT, WIDTH], "counts": None}, "not whole numbers"),
        ({"size": [WIDTH, HEIGHT], "counts": [HEIGHT * WIDTH]}, "a mask of size"),
        ({"size": None, "counts": [1]}, "a mask of size None"),
        ([[float("nan"), 10, 40, 10, 40, 30]], "not a finite number"),
        ([[1, 10, 40, 10, 40, 10**400]], "not a finite number"),
        ([[-1e308, 10, 1e308, 10, 40, 30]], "not a finite number below 1e+15"),
        ([[1, 2, 3, 4, 5, 6, 7]], "lacks its partner"),
        ([[1, 2, 3, 4]], "fewer than three points"),
        ([[500, 500, 600, 500, 600, 600]], "leaves the picture by more than"),
        ([[-1e12, 5, 1e12, 5, 1e12, 20, -1e12, 20]], "leaves the picture by more than"),
        ([[110, 10, 120, 10, 120, 20]], "no pixel within the picture"),
        ("polygon", "segmentation is 'polygon'"),
        ([], "it has no segmentation"),
        ([["a", "b", "c", "d", "e", "f"]], "not a finite number"),
        ([[[1, 2], [3, 4], [5, 6]]], "no pixel within the picture"),
        ([list(np.tile([-90, 0, 180, 60], 5000).astype(float))], "pixels long"),
    ],
)
def test_a_mask_that_a_c_library_would_trust_is_one_line(tmp_path, shape, reason):
    _, objects, _, report = coco(tmp_path, content(segmentation=shape), masks=True)
    (line,) = report.lines
    assert len(objects) == 1 and "annotations[0]" in line and reason in line


@pytest.mark.parametrize(
    "shape",
    [
        [POLYGON],
        POLYGON,  # VIA's export.
        [list(map(str, POLYGON))],
        [[10, 12], [40, 12], [40, 32], [10, 32]],
        [[[10, 12], [40, 12], [40, 32], [10, 32]]],
        [POLYGON, [1, 2, 3, 4]],
        [{"size": [HEIGHT, WIDTH], "counts": COMPRESSED}],
        {"size": [str(HEIGHT), float(WIDTH)], "counts": COMPRESSED},
        {
            "size": [HEIGHT, WIDTH],
            "counts": [float(n) for n in (652, *[20, 44] * 29, 20, HEIGHT * WIDTH - 652 - 29 * 64 - 20)],
        },
    ],
)
def test_a_mask_of_another_form_is_read_as_meant(tmp_path, shape):
    _, objects, _, report = coco(tmp_path, content(segmentation=shape), masks=True)
    mask = coco_mask.decode(shapes.encoded(objects[0]["segmentation"], HEIGHT, WIDTH))
    expected = np.zeros((HEIGHT, WIDTH), np.uint8)
    expected[12:32, 10:40] = 1
    assert (mask == expected).all() and not report.lines


@pytest.mark.parametrize("seed", range(20))
def test_compressed_run_lengths_are_decoded_as_pycocotools_does(seed):
    rng = np.random.default_rng(seed)
    height, width = (int(side) for side in rng.integers(1, 90, 2))
    mask = (rng.random((height, width)) < rng.choice([0, 0.02, 0.5, 0.98, 1])).astype(np.uint8)
    text = coco_mask.encode(np.asfortranarray(mask))["counts"].decode()
    lengths = shapes._uncompressed(text)
    assert (mask == np.repeat(np.arange(len(lengths)) % 2, lengths).reshape(width, height).T).all()
    assert shapes.run_lengths({"size": [height, width], "counts": text}, height, width)["counts"] == text
    if mask.size > 1:
        with pytest.raises(BadShapeError):
            shapes.run_lengths({"size": [height, width + 1], "counts": text}, height, width + 1)


# ------------------------------------------------------------------------------------- what tools write, in other forms


@pytest.mark.parametrize(
    "names, labels", [(["red", "red"], ["red"]), (["red", "red\u200b "], ["red"]), ([1, 2.5], ["1", "2.5"])]
)
def test_categories_of_one_name_are_one_class(tmp_path, names, labels):
    values = content(4)
    values["categories"] = [{"id": number, "name": name} for number, name in enumerate(names)]
    for item in values["annotations"]:
        item["category_id"] = item["id"] % 2
    _, objects, classes, report = coco(tmp_path, values)
    assert classes == labels and {item["category_id"] for item in objects} == set(range(1, len(labels) + 1))
    assert ("categories of one name, read as one class" in report.changed) == (len(labels) == 1)


def test_one_category_past_a_long_list_is_left_out_and_no_number_is_no_traceback(tmp_path):
    values = content(3)
    values["categories"] = [{"id": number, "name": f"c{number}"} for number in range(1, 9)] + [
        {"id": "\N{SUPERSCRIPT TWO}", "name": "odd"}
    ]
    for item, number in zip(values["annotations"], (5, 9, 5)):
        item["category_id"] = number
    _, objects, names, report = coco(tmp_path, values)
    assert {names[item["category_id"] - 1] for item in objects} == {"c5"}
    assert any("categor" in reason for reason in report.left_out)


def test_categories_counted_from_another_number_are_refused(tmp_path):
    values = content(3)
    values["categories"] = [{"id": number, "name": f"c{number}"} for number in (1, 2, 3)]
    for number, item in enumerate(values["annotations"]):
        item["category_id"] = number
    with pytest.raises(UserError, match="have the categories 0 to 2, the list 1 to 3; number both alike"):
        coco(tmp_path, values)


@pytest.mark.parametrize("name", [None, "", " ", True, ["red"]])
def test_a_category_without_a_name_is_refused(tmp_path, name):
    values = content()
    values["categories"] = [{"id": 1, "name": name}]
    with pytest.raises(UserError, match=r"categories\[0\]: needs an id and a name; it is"):
        coco(tmp_path, values)


def test_boxes_that_are_two_corners_are_refused(tmp_path):
    values = content(9)
    for item in values["annotations"]:
        item["bbox"] = [50 + item["id"], 40, 80 + item["id"], 60]
    with pytest.raises(UserError, match="every bbox fits its picture as two corners .* 9 of 9"):
        coco(tmp_path, values)
    for item in values["annotations"]:  # Both layouts fit the picture; the areas are those of corners.
        item |= {"bbox": [10, 12, 20 + item["id"], 30], "area": (10 + item["id"]) * 18}
    with pytest.raises(UserError, match="areas of 9 of 9 objects are those of bbox read as two corners"):
        coco(tmp_path, values)
    for item in values["annotations"]:
        item["area"] = item["bbox"][2] * item["bbox"][3]
    assert len(coco(tmp_path, values)[1]) == 9


def test_boxes_that_leave_the_picture_are_no_corners(tmp_path):
    values = content(9)
    for item in values["annotations"]:
        item["bbox"] = [
            80,
            40,
            60,
            20 + 5 * (item["id"] % 2),
        ]  # As corners without width, as centers outside too.
    assert len(coco(tmp_path, values)[1]) == 9


def test_a_list_of_polygons_and_run_lengths_is_refused():
    with pytest.raises(BadShapeError, match="not both"):
        shapes.checked([POLYGON, {"size": [HEIGHT, WIDTH], "counts": COMPRESSED}], HEIGHT, WIDTH)


def test_an_annotation_file_that_is_a_pipe_or_no_utf8_is_one_line(tmp_path):
    photos(tmp_path)
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="pipe.json: not a regular file"):
        tidied(tmp_path, annotations=pipe)
    (tmp_path / "labels.json").write_bytes(json.dumps(content()).replace("red", "gr\xfcn").encode("latin-1"))
    with pytest.raises(UserError, match=r"labels.json: not UTF-8 at byte \d+; save it as UTF-8"):
        tidied(tmp_path)
