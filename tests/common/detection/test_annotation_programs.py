"""Tests how annotations of other programs are read: LabelMe, YOLO and Pascal VOC."""

import json
import re

import numpy as np
import pytest

from common.data.folder_conversion import Options
from common.detection import coco_source, coco_tidy
from common.errors import UserError
from tests.common.detection.test_annotations import BOX, HEIGHT, POLYGON, WIDTH, coco, content, photos, tidied


def test_labelmes_files(tmp_path):
    photos(tmp_path / "deep")
    for i in range(2):
        outline = {"label": "red", "shape_type": "polygon", "points": np.reshape(POLYGON, (-1, 2)).tolist()}
        corners = {"label": "blue", "shape_type": "rectangle", "points": [[40, 32], [10, 12]]}
        line = {"label": "red", "shape_type": "line", "points": [[1, 2], [3, 4]]}
        values = {"imagePath": f"..\\deep\\p{i}.jpg", "imageWidth": WIDTH, "imageHeight": HEIGHT}
        values["shapes"] = [outline, corners, line]
        (tmp_path / "deep" / f"p{i}.json").write_text(json.dumps(values))
    images, objects, names, report = tidied(tmp_path, masks=True)
    assert names == ["blue", "red"] and len(images) == 2
    assert [item["bbox"] for item in objects] == [BOX] * 4
    assert len(report.lines) == 2 and "shapes[2]: a shape 'line' of 2 points is neither" in report.lines[0]


YOLO = f"1 {25 / WIDTH} {22 / HEIGHT} {30 / WIDTH} {20 / HEIGHT}\n"


@pytest.mark.parametrize("layout", ["beside", "labels", "splits", "images/train"])
def test_yolos_labels(tmp_path, layout):
    places = {
        "beside": [("a", "a")],
        "labels": [("images", "labels")],
        "splits": [("train/images", "train/labels"), ("val/images", "val/labels")],
        "images/train": [("images/train", "labels/train"), ("images/val", "labels/val")],
    }[layout]
    for pictures, labels in places:
        photos(tmp_path / pictures, 3)
        (tmp_path / labels).mkdir(parents=True, exist_ok=True)
        outline = " ".join(str(v / (WIDTH, HEIGHT)[i % 2]) for i, v in enumerate(POLYGON))
        (tmp_path / labels / "p0.txt").write_text(YOLO + "7 0.5 0.5 0.1 0.1\n0 0.5 nan 0.1 0.1\n0 0.5\n")
        (tmp_path / labels / "p1.txt").write_text(f"0 {outline}\n")
    (tmp_path / "data.yaml").write_text("names:\n  0: red\n  1: blue\n")
    settings = Options()
    sources = [source for source in coco_source.find(tmp_path, settings) if source]
    contents, names, _ = coco_tidy.tidy(sources, False, settings.report)
    assert names == ["red", "blue"] and len(contents) == len(places)
    for one in contents:
        assert len(one["images"]) == 3 and [item["category_id"] for item in one["annotations"]] == [2, 1]
        np.testing.assert_allclose([item["bbox"] for item in one["annotations"]], [BOX, BOX], atol=1e-6)
    assert len(settings.report.lines) == 3 * len(places) and "p0.txt: line 2" in settings.report.lines[0]


def test_yolos_classes_need_names(tmp_path):
    photos(tmp_path)
    (tmp_path / "p0.txt").write_text(YOLO)
    with pytest.raises(UserError, match="YOLO's labels without names; add data.yaml or classes.txt"):
        tidied(tmp_path)
    (tmp_path / "classes.txt").write_text("red\nblue\nred\n")
    with pytest.raises(UserError, match="the list of classes has 'red' twice; give each class its own name"):
        tidied(tmp_path)


def voc(folder, name, size=(WIDTH, HEIGHT)):
    """An annotation of BOX in Pascal VOC's form."""
    x, y, w, h = BOX
    corners = {"xmin": x + 1, "ymin": y + 1, "xmax": x + w, "ymax": y + h}
    box = "".join(f"<{side}>{value}</{side}>" for side, value in corners.items())
    sides = f"<size><width>{size[0]}</width><height>{size[1]}</height></size>" if size else ""
    text = f"<annotation>{sides}<object><name>red</name><bndbox>{box}</bndbox></object></annotation>"
    (folder / "Annotations").mkdir(exist_ok=True)
    (folder / "Annotations" / f"{name}.xml").write_text(text)


@pytest.mark.parametrize("program", ["coco", "labelme", "voc", "yolo"])
def test_every_reader_gives_one_scene_as_the_same_picture_box_and_class(tmp_path, program):
    """The contract of a reader: a Source in COCO's terms, which later stages use without knowing the program."""
    photos(tmp_path, 1)
    x, y, width, height = BOX
    shape = {"label": "red", "shape_type": "rectangle", "points": [[x, y], [x + width, y + height]]}
    files = {
        "coco": content(1),
        "labelme": {"imagePath": "p0.jpg", "imageWidth": WIDTH, "imageHeight": HEIGHT, "shapes": [shape]},
    }
    if program in files:
        (tmp_path / "p0.json").write_text(json.dumps(files[program]))
    elif program == "voc":
        voc(tmp_path, "p0")
    else:
        (tmp_path / "p0.txt").write_text(YOLO.replace("1 ", "0 ", 1))
        (tmp_path / "classes.txt").write_text("red\n")
    (image,), (item,), names, report = tidied(tmp_path)
    assert (image["file_name"], image["height"], image["width"]) == ("p0.jpg", HEIGHT, WIDTH)
    np.testing.assert_allclose(item["bbox"], BOX, atol=1e-6)
    assert (names, item["category_id"], item["image_id"]) == (["red"], 1, image["id"])
    assert not report.lines and not report.suspicious


@pytest.mark.parametrize("size", [(HEIGHT, WIDTH), None, (0, 0)])
def test_pascal_vocs_boxes_are_on_the_turned_picture_or_it_is_said(tmp_path, size):
    photos(tmp_path / "JPEGImages", 1, orientation=6)
    voc(tmp_path, "p0", size)
    (image,), (item,), _, report = tidied(tmp_path)
    assert (image["width"], image["height"]) == (HEIGHT, WIDTH) and item["bbox"] == BOX and not report.lines
    assert bool(report.suspicious) == (size is None or size == (0, 0))


def test_pascal_voc_is_read_in_the_encoding_that_it_declares(tmp_path):
    photos(tmp_path, 1)
    voc(tmp_path, "p0")
    path = tmp_path / "Annotations/p0.xml"
    text = path.read_text().replace("red", "\u732b")
    path.write_bytes(f'<?xml version="1.0" encoding="gbk"?>\n{text}'.encode("gbk"))
    assert tidied(tmp_path)[2] == ["\u732b"]
    path.write_text(f'<?xml version="1.0" encoding="none"?>\n{text}')
    with pytest.raises(UserError, match="unknown encoding"):
        tidied(tmp_path)


def test_pascal_vocs_size_that_is_another_is_one_line(tmp_path):
    photos(tmp_path / "JPEGImages")
    voc(tmp_path, "p0", (HEIGHT, WIDTH))
    voc(tmp_path, "p1")
    images, objects, _, report = tidied(tmp_path)
    assert len(images) == len(objects) == 1
    assert "p0.jpg: has 96x64 pixels, its entry says 64x96" in report.lines[0]


@pytest.mark.parametrize(
    "line", ["photo {}", "photo {}.jpg", "photo {}  1", "photo {} -1", "JPEGImages\\photo {}.jpg"]
)
def test_pascal_vocs_lists_have_names_as_people_write_them(tmp_path, line):
    photos(tmp_path / "JPEGImages", 4)
    for i in range(4):
        (tmp_path / "JPEGImages" / f"p{i}.jpg").rename(tmp_path / "JPEGImages" / f"photo {i}.jpg")
        voc(tmp_path, f"photo {i}")
    lists = tmp_path / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("".join(line.format(i) + "\r\n" for i in (0, 1, 7)))
    (lists / "val.txt").write_text(line.format(2))
    settings = Options()
    first, second = coco_source.find(tmp_path, settings)
    assert [len(source.content["images"]) for source in (first, second)] == [2, 1]
    (left_out,) = settings.report.lines
    assert "train.txt: line 3" in left_out and "not there" in left_out
    assert settings.report.skipped["in no list of the split"].example.endswith("photo 3.jpg")


@pytest.mark.parametrize("program", ["yolo", "voc", "coco"])
def test_other_files_beside_the_annotations_are_no_annotations(tmp_path, program):
    folder = photos(tmp_path, 2)
    for number in range(2):
        if program == "yolo":
            (folder / f"p{number}.txt").write_text(YOLO)
        elif program == "voc":
            voc(folder, f"p{number}")
    (folder / "classes.txt").write_text("red\nblue\n")
    # As Label Studio writes beside YOLO's labels.
    (folder / "notes.json").write_text('{"categories": [], "info": {}}')
    if program == "coco":
        (folder / "deep").mkdir()
        (folder / "notes.json").rename(folder / "deep/notes.json")
        for name, extra in (
            ("instances", {}),
            ("person_keypoints", {}),
            ("captions", {"annotations": [{"image_id": 1, "caption": ""}]}),
        ):
            (folder / f"deep/{name}.json").write_text(json.dumps(content(2) | extra))
    else:
        (folder / "settings.xml").write_text("<settings/>")
    assert len(tidied(folder)[0]) == 2


@pytest.mark.parametrize("program", ["voc", "labelme"])
def test_a_file_that_names_another_picture_than_its_own_is_said(tmp_path, program):
    photos(tmp_path)
    if program == "voc":
        voc(tmp_path, "p0")
        path = tmp_path / "Annotations/p0.xml"
        path.write_text(path.read_text().replace("<annotation>", "<annotation><filename>p1.jpg</filename>"))
    else:
        shape = {"label": "red", "shape_type": "rectangle", "points": [[10, 12], [40, 32]]}
        (tmp_path / "p0.json").write_text(json.dumps({"imagePath": "p1.jpg", "shapes": [shape]}))
    (image,), *_, report = tidied(tmp_path)
    assert image["file_name"] == "p0.jpg" and any("names another picture" in one for one in report.suspicious)


def test_pictures_that_no_annotation_names_are_said(tmp_path):
    values = content(4)
    values["images"], values["annotations"] = values["images"][:3], values["annotations"][:3]
    photos(tmp_path, 4)
    *_, report = coco(tmp_path, values)
    assert report.skipped["a picture that no annotation names"].example == str(tmp_path / "p3.jpg")
    folder = photos(tmp_path / "voc", 3)
    for number in range(2):
        voc(folder, f"p{number}")
    (folder / "Annotations/p1.xml").write_text("broken")
    *_, report = tidied(folder)
    assert report.skipped["a picture that no annotation names"].count == 1
    assert len(report.lines) == 1  # p1 has a line of its own.


def test_pascal_vocs_xml_as_editors_leave_it(tmp_path):
    folder = photos(tmp_path, 2)
    for number, (old, new) in enumerate(
        [
            ("<annotation>", '\n<?xml version="1.0"?><annotation>'),
            ("<annotation>", "<annotation xmlns='http://x'>"),
        ]
    ):
        voc(folder, f"p{number}")
        path = folder / "Annotations" / f"p{number}.xml"
        path.write_text(path.read_text().replace(old, new))
    images, objects, names, _ = tidied(folder)
    assert len(images) == len(objects) == 2 and names == ["red"]


def yolo(folder, settings, count=2):
    photos(folder, count)
    for number in range(count):
        (folder / f"p{number}.txt").write_text(f"{number % 2} 0.5 0.5 0.2 0.2\n")
    (folder / "data.yaml").write_bytes(settings if isinstance(settings, bytes) else settings.encode())
    return folder


@pytest.mark.parametrize(
    "settings, names",
    [
        ("names: [yes, no]", ["yes", "no"]),
        ("names: {0: a, 1: b}", ["a", "b"]),
        ("names: [1, 02]", ["1", "02"]),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_yolos_classes_are_texts_in_any_encoding(tmp_path, settings, names, encoding):
    folder = yolo(tmp_path, settings.encode(encoding))
    (folder / "p0.txt").write_bytes((folder / "p0.txt").read_text().encode(encoding))
    _, objects, classes, _ = tidied(folder)
    assert classes == names and len(objects) == 2


@pytest.mark.parametrize(
    "settings, message", [("names: a b", "names is 'a b'"), ("nc: 3\nnames: [a, b]", "nc is 3, names has 2")]
)
def test_yolos_settings_that_contradict_themselves_are_refused(tmp_path, settings, message):
    with pytest.raises(UserError, match=f"data.yaml: {message}"):
        tidied(yolo(tmp_path, settings))


def test_yolos_labels_and_pictures_without_their_partner_are_said(tmp_path):
    folder = yolo(tmp_path, "names: [a, b]", 4)
    (folder / "p3.txt").rename(folder / "p9.txt")
    (folder / "p0.png").write_bytes((folder / "p0.jpg").read_bytes())
    *_, report = tidied(folder)
    assert report.suspicious["two pictures with one file of labels"].count == 1
    assert report.skipped["a file of labels without a picture"].example.endswith("p9.txt")
    assert report.changed["a picture without a file of labels, taken as one without objects"].count == 1


@pytest.mark.parametrize(
    "program, files, train, held_out, message",
    [
        ("voc", "M/trainval:0123 M/val:23 M/test:45", "0123", "45", ""),
        ("voc", "train:01 val:23 M/train:23 M/val:01", "23", "01", ""),
        ("voc", "V/A/M/train:0 V/A/M/val:1 V/B/M/trainval:23 V/B/M/test:4", "023", "14", ""),
        ("voc", "M/default:012345", "012345", "", ""),
        (
            "voc",
            "M/train:01 M/val:23 ImageSets/Layout/test.txt:4 ImageSets/Layout/train.txt:4",
            "01",
            "23",
            "",
        ),
        (
            "voc",
            "M/test:0 ImageSets/Segmentation/train.txt:01 ImageSets/Segmentation/val.txt:2",
            "01",
            "2",
            "",
        ),
        ("voc", "splits/train:01 splits/val:23", "01", "23", ""),
        ("yolo", "data/train:01 data/valid:23 data/obj.data:train=a.txt", "01", "23", ""),
        (
            "yolo",
            "data.yaml:train:\x20train.txt\nval:\x20val.txt train:01 val:2 test:3 x_test:4",
            "01",
            "2",
            "",
        ),
        ("voc", "M/test:0 M/cat_test:0", "012345", "", "one part.*count=1.*/test.txt"),
        ("yolo", "train:01 07_train:0 07_val:1 12_train:0 12_val:1", "012345", "", "several splits"),
        ("yolo", "train:0123 val:23", "01", "23", "both parts.*not trained on.*count=2"),
        ("yolo", "train: val:", "012345", "", "pictures are not there"),
        ("yolo", "obj.data:train=a.txt\nvalid=b.txt a:01 b:23", "012345", "", "darknet's obj.data, not read"),
        ("yolo", 'raw/export.json:[{"data":{},"annotations":[]}]', "012345", "", ""),
        ("yolo", "runs/log.json:{}\n{}", "012345", "", ""),
        ("yolo", 'config.json:{"images":10} deploy/k8s.yaml:a:\n---\nb:', "012345", "", ""),
        ("yolo", "old/sample.json:0", "012345", "", ""),
        (
            "coco",
            "instances_train.json:01 instances_trainval.json:0123 instances_val.json:23",
            "01",
            "23",
            "",
        ),
        ("coco", "annotations/train.json:01 annotations/val_instances.json:23", "01", "23", ""),
    ],
)
def test_lists_and_stray_files_as_their_authors_mean_them(tmp_path, program, files, train, held_out, message):
    if program == "yolo":
        (yolo(tmp_path, "a\nb\n", 6) / "data.yaml").rename(tmp_path / "classes.txt")
    photos(tmp_path, 6)
    for number in range(6) if program == "voc" else ():
        voc(tmp_path, f"p{number}")
    for name, _, text in (file.partition(":") for file in files.split(" ")):
        path = tmp_path / (name if "." in name else f"{name.replace('M/', 'ImageSets/Main/')}.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".txt":
            text = "".join(f"p{number}\n" for number in text)
        elif text.isdigit():
            images = [image for image in content(6)["images"] if str(image["id"]) in text]
            text = json.dumps(content() | {"images": images, "annotations": []})
        path.write_text(text)
    sources = coco_source.find(tmp_path, settings := Options())
    parts = ["".join(i["file_name"][-5] for i in part.content["images"]) if part else "" for part in sources]
    assert parts == [train, held_out]
    assert re.search(message, str(settings.report.suspicious)) and bool(message) == bool(
        settings.report.suspicious
    )


def test_a_field_split_keeps_floats_as_ids_and_entries_without_a_name(tmp_path):
    values = content(4)
    for number, image in enumerate(values["images"]):
        image["split"] = "val" if number > 1 else "train"
        values["annotations"][number]["image_id"] = float(number)
    values["images"] += [{"id": 9, "split": "train"}, 7]
    (photos(tmp_path, 4) / "labels.json").write_text(json.dumps(values))
    sources = coco_source.find(tmp_path, settings := Options())
    assert [len(source.content["annotations"]) for source in sources] == [2, 2]
    coco_tidy.tidy(sources, False, settings.report)
    assert settings.report.left_out["an image without id or file_name"].count == 2


def test_pascal_vocs_own_picture_counts_where_the_named_one_is_not_clear(tmp_path):
    for number, name in enumerate("xy", 1):
        (photos(tmp_path / name, 1, number) / "p0.jpg").rename(tmp_path / name / "frame.jpg")
    voc(photos(tmp_path, 1), "p0")
    path = tmp_path / "Annotations/p0.xml"
    path.write_text(path.read_text().replace("<annotation>", "<annotation><filename>frame.jpg</filename>"))
    images, objects, _, report = tidied(tmp_path)
    assert [one["file_name"] for one in images] == ["p0.jpg"] and len(objects) == 1 and not report.lines
