"""Tests that lines of label files mean what their program wrote: boxes, tracks, scores, corners, names of classes."""

import json

import pytest
from PIL import Image

from common.data.folder_conversion import Options
from common.detection import coco_source, coco_tidy
from common.errors import UserError

WIDTH, HEIGHT = 96, 64
BOX = [24.0, 24.0, 28.8, 16.0]  # Of "0.4 0.5 0.3 0.25", in pixels.


def labeled(folder, lines, files=None, images="images", labels="labels"):
    """Writes a picture for each text of `lines`, its label file and other files; returns (content, names, report)."""
    for number, text in enumerate(lines):
        for place in (images, labels):
            (folder / place).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (WIDTH, HEIGHT), (number * 9, 90, 9)).save(folder / images / f"p{number}.png")
        (folder / labels / f"p{number}.txt").write_text(text)
    for name, text in (files if files is not None else {"classes.txt": "cat\ndog\n"}).items():
        (folder / name).write_text(text)
    options = Options()
    sources = [one for one in coco_source.find(folder, options) if one]
    (content, *_), names, _ = coco_tidy.tidy(sources, False, options.report)
    return content, names, options.report


@pytest.mark.parametrize(
    ("line", "kind", "what"),
    [
        ("0 0.4 0.5 0.3 0.25 {n}", "changed", "track's number"),
        ("0 0.4 0.5 0.3 0.25 0.9 1", "changed", "track's number"),
        ("0 0.4 0.5 0.3 0.25 0.9 {n}", "changed", "track's number"),
        ("0 0.4 0.5 0.3 0.25 0.9", "changed", "prediction's score"),
        ("0 0,4 0,5 0,3 0,25 0,9", "changed", "prediction's score"),
        ("0 0.4 0.5 0.3 0.25 0.01", "suspicious", "score below 0.5"),
        ("0 0.4 0.5 0.3 0.25 0.01 3", "suspicious", "score below 0.5"),
    ],
)
def test_numbers_behind_a_box_are_no_corners(tmp_path, line, kind, what):
    content, _, report = labeled(tmp_path, [line.format(n=n + 1) for n in range(8)])
    assert [item["bbox"] for item in content["annotations"]] == [pytest.approx(BOX)] * 8
    assert any(what in reason for reason in getattr(report, kind)) and not report.left_out


def test_boxes_without_a_track_among_those_of_a_tracker_are_boxes(tmp_path):
    lines = [f"0 0.4 0.5 0.3 0.25 0.{n + 2}{f' {n}' if n % 2 else ''}" for n in range(6)]
    content, _, report = labeled(tmp_path, [*lines, "0 0.4 0.5 0.3 0.25", "0 0.4 0.5 0.3 0.25 1"])
    assert [item["bbox"] for item in content["annotations"]] == [pytest.approx(BOX)] * 8
    assert report.changed["a track's number behind a box, not read"].count == 3
    assert report.changed["a fifth number of a box, taken for a prediction's score"].count == 7
    assert not report.left_out


@pytest.mark.parametrize("sign", " ,")
def test_polygons_stay_polygons(tmp_path, sign):
    lines = ["0 0.1 0.2 0.5 0.2 0.5 0.6 0.3 0.75", "1 0 0 1 0 1 0.5 0.5 1"]
    content, _, report = labeled(tmp_path, [line.replace(" ", sign) for line in lines])
    assert [item["bbox"] for item in content["annotations"]][1] == [0, 0, WIDTH, HEIGHT]
    assert not report.changed


@pytest.mark.parametrize("line", ["0 0.3 0.3 0.9 0.95", "0 0.5 0.1 0.4 0.6"])
def test_boxes_of_another_layout_are_refused(tmp_path, line):
    fits = "two corners x1, y1, x2, y2" if "0.9 0.95" in line else "x, y, width, height"
    with pytest.raises(UserError, match=f"as {fits}, but 8 of 8 do not as center"):
        labeled(tmp_path, [line] * 8)


def test_a_score_before_the_box_is_refused(tmp_path):
    with pytest.raises(UserError, match="before each box seems to be its score; write it last"):
        labeled(tmp_path, [f"0 0.9{n} 0.4 0.5 0.3 0.25" for n in range(8)])


FORMATS = {
    "KITTI": ("Car 0 0 -1.5 24 24 52.8 40 1 1 1 0 0 9 0", {"DontCare": f"DontCare -1 -1 -10 1 1 9 9{7 * ' -1'}"}),
    "DOTA": ("24 24 52.8 24 52.8 40 24 40 Car 0", {"difficult": "1 1 9 1 9 9 1 9 Car 1"}),
}  # fmt: skip


@pytest.mark.parametrize("program", list(FORMATS))
def test_pixels_with_names_are_read_and_what_is_to_ignore_is_said(tmp_path, program):
    line, other = FORMATS[program]
    ((word, second),) = other.items()
    head = "imagesource:GoogleEarth\ngsd:0.1\n" if program == "DOTA" else ""
    content, names, report = labeled(
        tmp_path, [f"{head}{line}\n{second}\n", line], {}, "training/image_2", "training/label_2"
    )
    assert [name.lower() for name in names] == ["car"]
    plain = [item["bbox"] for item in content["annotations"] if not item["iscrowd"]]
    assert plain == [pytest.approx(BOX, abs=0.3)] * 2
    lines = [*report.suspicious, *report.changed]
    assert any(("ignore" if program != "DOTA" else word) in reason for reason in lines)


@pytest.mark.parametrize("program", list(FORMATS))
def test_a_picture_with_only_regions_to_ignore_is_no_negative(tmp_path, program):
    line, other = FORMATS[program]
    lines = [line, *other.values(), "\n".join([line, *other.values()]), ""]
    content, _, report = labeled(tmp_path, lines, {})
    names = [image["file_name"][-6:] for image in content["images"]]
    crowds = [item["image_id"] for item in content["annotations"] if item["iscrowd"]]
    if program == "DOTA":  # Its region has a class, so it can be a crowd.
        assert names == ["p0.png", "p1.png", "p2.png", "p3.png"] and len(crowds) == 2
    else:
        assert names == ["p0.png", "p2.png", "p3.png"] and not crowds
        assert report.changed[coco_tidy.ALL_IGNORED].count == 1
    assert coco_tidy.SOME_LOST not in report.suspicious
    assert not any({"lost", "ignored"} & set(image) for image in content["images"])


@pytest.mark.parametrize(
    ("line", "program", "fix"),
    [
        ("Big car 24 24 52.8 40", "OpenImages", "convert them to COCO or YOLO"),
        ("24,24,29,16,1,4,0,0", "VisDrone", "convert them to COCO or YOLO"),
        ("24,24,52,24,52,40,24,40,Two words", "ICDAR", "convert its boxes to COCO"),
        (
            "cat 0.5 0.5 0.2 0.2",
            "YOLO with names",
            "write the class's number, and list the names in classes.txt",
        ),
    ],
)
def test_lines_that_are_not_read_are_refused_by_name(tmp_path, line, program, fix):
    with pytest.raises(UserError, match=f"labels of {program}.*, which are not read; {fix}"):
        labeled(tmp_path, [line] * 2)


def test_an_empty_line_of_the_classes_keeps_its_number(tmp_path):
    files = {"classes.txt": "cat\n\ndog\nbird\n\n"}
    content, names, report = labeled(tmp_path, [f"{n} 0.4 0.5 0.3 0.25" for n in (0, 2, 3, 1)], files)
    assert names == ["cat", "dog", "bird"]
    assert [names[item["category_id"] - 1] for item in content["annotations"]] == ["cat", "dog", "bird"]
    assert "a class whose line in the list of classes is empty" in report.left_out


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"classes.txt": "dog\ncat\n"}, {"labels/classes.txt": "cat\ndog\n"}),
        ({"data.yaml": "names: [cat, dog]\n"}, {"classes.txt": "cat\nbird\n"}),
        ({"data.yaml": "names: [cat, dog]\n"}, {"labels/data.yaml": "names: [dog, cat]\n"}),
        ({"data.yaml": "names: [cat, dog]\n"}, {"b/data.yaml": "names: [dog, cat]\n"}),
        (
            {"classes.txt": "dog\ncat\n"},
            {"notes.json": json.dumps({"categories": [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}]})},
        ),
    ],
)
def test_two_lists_of_classes_that_differ_are_an_error_with_both(tmp_path, first, second):
    for folder in ("labels", "b/train/images"):
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(UserError, match="calls class") as error:
        labeled(tmp_path, ["0 0.4 0.5 0.3 0.25"] * 3, first | second)
    assert all(name in str(error.value) for name in (*first, *second))


@pytest.mark.parametrize("heading", ["# classes", "Class names:", "labels"])
def test_a_heading_is_no_class_and_labels_of_a_missing_folder_are_said(tmp_path, heading):
    with pytest.raises(UserError, match="classes.txt: .* seems to be a heading"):
        labeled(tmp_path, ["0 0.4 0.5 0.3 0.25"] * 3, {"classes.txt": f"{heading}\ncat\n"})
    (tmp_path / "labels/val").mkdir(parents=True)
    files = {"classes.txt": "cat\n", "labels/val/q.txt": "0 0.4 0.5 0.3 0.25\n"}
    assert labeled(tmp_path, ["0 0.4 0.5 0.3 0.25"] * 3, files)[2].skipped


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("runs", "names: [dog, cat]\n"),
        ("runs", "names: [\n"),
        *(("labels", f"names: {x}\n") for x in ("a.names", "[")),
    ],
)
def test_a_settings_file_of_a_run_or_a_broken_one_refuses_no_good_export(tmp_path, place, text):
    (tmp_path / place).mkdir()
    files = {"data.yaml": "names: [cat, dog]\n", f"{place}/data.yaml": text}
    assert labeled(tmp_path, ["1 0.4 0.5 0.3 0.25"] * 2, files)[1] == ["cat", "dog"]


def test_a_list_that_goes_on_is_the_same_list_and_names_may_be_mappings(tmp_path):
    files = {"classes.txt": "cat\n", "data.yaml": "names: [{name: cat, color: red}, {name: dog}]\n"}
    assert labeled(tmp_path, ["1 0.4 0.5 0.3 0.25"] * 2, files)[1] == ["cat", "dog"]


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ("1 dog\n0 cat\n", ["cat", "dog"]),
        ("0: cat\n1: dog", ["cat", "dog"]),
        ("2 door\n4 door", ["2 door", "4 door"]),
    ],
)
def test_a_list_s_numbers_are_those_of_its_classes(tmp_path, lines, names):
    assert labeled(tmp_path, ["1 0.4 0.5 0.3 0.25"] * 2, {"classes.txt": lines})[1] == names


@pytest.mark.parametrize("place", ["masks/p0.png", "runs/train/results.png"])
def test_pictures_of_a_folder_without_labels_are_no_pictures_without_objects(tmp_path, place):
    (tmp_path / place).parent.mkdir(parents=True)
    mask = Image.new("L", (WIDTH, HEIGHT))
    mask.paste(255, (9, 9, 40, 40))
    mask.save(tmp_path / place)
    content, names, report = labeled(tmp_path, ["0 0.4 0.5 0.3 0.25"] * 3)
    assert len(content["images"]) == 3 and names == ["cat", "dog"]
    assert any("folder without any labels" in reason for reason in report.suspicious)


@pytest.mark.parametrize("program", ["yolo", "voc", "captions"])
def test_annotations_in_another_format_beside_coco_are_said(tmp_path, program):
    images = [{"id": n, "file_name": f"images/p{n}.png"} for n in range(2)]
    objects = [{"image_id": n, "category_id": 1, "bbox": [24, 24, 20, 16]} for n in range(2)]
    values = {"images": images, "annotations": objects, "categories": [{"id": 1, "name": "cat"}]}
    files = {"a.json": json.dumps(values), **({"p0.xml": "<annotation/>"} if program == "voc" else {})}
    line = {"yolo": "0 0.4 0.5 0.3 0.25", "captions": "a cat on two red chairs"}.get(program, "")
    report = labeled(tmp_path, [line] * 2, files)[2]
    assert any("another format" in reason for reason in report.suspicious) == (program != "captions")


def test_a_picture_never_loses_its_objects_to_the_background(tmp_path):
    good, bad = "0 0.4 0.5 0.3 0.25\n", "7 0.4 0.5 0.3 0.25\n"
    content, _, report = labeled(tmp_path, [good, bad, good + bad, ""])
    assert [image["file_name"][-6:] for image in content["images"]] == ["p0.png", "p2.png", "p3.png"]
    assert report.changed[coco_tidy.ALL_LOST].count == 1 == report.suspicious[coco_tidy.SOME_LOST].count


def test_coco_marks_to_ignore_are_crowds_and_low_scores_and_centers_are_said(tmp_path):
    images = [{"id": n, "file_name": f"images/p{n}.png"} for n in range(8)]
    marks = [{"ignore": 1}, {"score": 0.01}, *[{}] * 6]
    objects = [{"image_id": n, "category_id": 1, "bbox": [24, 24, 20, 16], **m} for n, m in enumerate(marks)]
    values = {"images": images, "annotations": objects, "categories": [{"id": 1, "name": "cat"}]}
    content, _, report = labeled(tmp_path, [""] * 8, {"a.json": json.dumps(values)})
    assert [item["iscrowd"] for item in content["annotations"]] == [1, *[0] * 7]
    assert any("score below" in reason for reason in report.suspicious)
    for item in objects:
        item["bbox"] = [70, 40, 50, 40]
    with pytest.raises(UserError, match="as center x, y, width, height, but 8 of 8"):
        labeled(tmp_path, [""] * 8, {"a.json": json.dumps(values)})


def test_lists_of_each_class_are_the_split(tmp_path):
    lists = tmp_path / "ImageSets/Main"
    lists.mkdir(parents=True)
    (tmp_path / "Annotations").mkdir()
    for number in range(4):
        box = "<xmin>2</xmin><ymin>3</ymin><xmax>11</xmax><ymax>22</ymax>"
        item = f"<object><name>cat</name><difficult>{number // 3}</difficult><bndbox>{box}</bndbox></object>"
        (tmp_path / f"Annotations/p{number}.xml").write_text(f"<annotation>{item}</annotation>")
    for name in ("cat", "dog"):
        (lists / f"{name}_train.txt").write_text("p0 -1\np1  1\n")
        (lists / f"{name}_val.txt").write_text("p2  1\np3 -1\n")
    options = Options()
    for number in range(4):
        Image.new("RGB", (WIDTH, HEIGHT), (number * 9, 90, 9)).save(tmp_path / f"p{number}.png")
    sources = coco_source.find(tmp_path, options)
    split = [[i["file_name"] for i in source.content["images"]] for source in sources]
    assert split == [["p0.png", "p1.png"], ["p2.png", "p3.png"]]
    assert [item["ignore"] for item in sources[1].content["annotations"]] == [0, 1]
