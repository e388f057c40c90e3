"""Tests that annotations find their own pictures and splits in folders as programs write them, whatever the names."""

import json
import os
import unicodedata

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from common.data.folder_conversion import Options
from common.detection import coco_source, coco_tidy, label_lines
from common.errors import UserError

SIDE = 48


def picture(path, shade):
    """Writes a picture of one shade, so that its pixels say which it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (SIDE, SIDE), (shade, 255 - shade, shade)).save(
        path, "PNG" if path.suffix == ".png" else "JPEG"
    )


def coco(path, names, label="cat"):
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [{"id": n, "file_name": name, "width": SIDE, "height": SIDE} for n, name in enumerate(names, 1)]
    objects = [
        {"id": n, "image_id": n, "category_id": 1, "bbox": [n, n, 8, 8]} for n in range(1, len(names) + 1)
    ]
    path.write_text(
        json.dumps({"images": images, "annotations": objects, "categories": [{"id": 1, "name": label}]})
    )


def labelme(path, name, shapes):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"imagePath": name, "imageWidth": SIDE, "imageHeight": SIDE, "shapes": shapes})
    )


def box(label="cat", **more):
    return {"label": label, "shape_type": "rectangle", "points": [[1, 2], [11, 22]], **more}


def voc(path, objects):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"<annotation><filename>{path.stem}.jpg</filename>{objects}</annotation>")


VOC_BOX = "<object><name>cat</name><bndbox><xmin>2</xmin><ymin>3</ymin><xmax>11</xmax><ymax>22</ymax></bndbox></object>"


def yolo(folder, names, settings=None, line="0 0.5 0.5 0.25 0.25\n"):
    for number, name in enumerate(names):
        picture(folder / name, number * 8)
        path = (folder / str(name).replace("images", "labels")).with_suffix(".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(line)
    text = "".join(f"{key}: {value}\n" for key, value in {"names": "[cat]", **(settings or {})}.items())
    (folder / "data.yaml").write_text(text)


def splits_of(folder):
    """Returns ([files of the training source], [files of the evaluation source] or None, report)."""
    options = Options()
    sources = coco_source.find(folder, options)
    splits = [
        sorted((s.folder / i["file_name"]).relative_to(folder).as_posix() for i in s.content["images"])
        if s
        else None
        for s in sources
    ]
    return *splits, options.report


# ------------------------------------------------------------------------------------------------------- partners


@pytest.mark.parametrize(
    "places", [("images/train", "images/val"), ("train", "val"), ("images", "val_images")]
)
def test_each_coco_file_reads_the_pictures_of_its_own_split(tmp_path, places):
    for part, place in enumerate(places):
        for number in range(3):
            picture(tmp_path / place / f"{number}.jpg", 100 * part + number)
    for split in ("train", "val"):
        coco(tmp_path / f"annotations/instances_{split}2017.json", [f"{n}.jpg" for n in range(3)])
    assert splits_of(tmp_path)[:2] == tuple([f"{place}/{n}.jpg" for n in range(3)] for place in places)


def test_a_folder_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    yolo(tmp_path, ["images/0.jpg"])
    denied, walk = PermissionError(13, "denied", f"{tmp_path}/labels"), os.walk
    monkeypatch.setattr(
        os, "walk", lambda *a, onerror=None, **k: (onerror and onerror(denied), walk(*a, **k))[1]
    )
    with pytest.raises(UserError, match="labels: no permission to read the folder"):
        splits_of(tmp_path)


def test_a_name_that_fits_two_pictures_is_an_error_with_both(tmp_path):
    for number in range(3):
        picture(tmp_path / f"images/{number}/frame0.png", 50 * number)
    coco(tmp_path / "a.json", ["frame0.png"] * 3)
    with pytest.raises(UserError, match="frame0.png fits .*images/0/frame0.png and .*images/1/frame0.png"):
        splits_of(tmp_path)


def test_copies_of_one_picture_are_one(tmp_path):
    for folder in ("a", "b"):
        picture(tmp_path / folder / "0.jpg", 9)
    coco(tmp_path / "labels.json", ["0.jpg"])
    assert splits_of(tmp_path)[0] == ["a/0.jpg"]


def test_labelmes_renamed_file_has_the_picture_of_its_own_name(tmp_path):
    for name in ("a", "b"):
        picture(tmp_path / f"{name}.jpg", 3)
        labelme(tmp_path / f"{name}.json", "old.jpg", [box()])
    (tmp_path / "meta").mkdir()
    for name in ("aa_config.json", "meta/info.json"):
        (tmp_path / name).write_text('{"x": 1}')
    train, _, report = splits_of(tmp_path)
    assert train == ["a.jpg", "b.jpg"]
    assert not report.lines and report.skipped["a JSON file beside the annotations that are read"].count == 2


def test_yolos_labels_have_other_spellings_of_their_pictures_names(tmp_path):
    yolo(tmp_path, ["images/pl\u00e4n.jpg", "images/p0.webp.jpg", "images/P1.jpg"])
    labels = tmp_path / "labels"
    (labels / "pl\u00e4n.txt").rename(labels / unicodedata.normalize("NFD", "pl\u00e4n.txt"))
    (labels / "p0.webp.txt").rename(labels / "p0.txt")
    (labels / "P1.txt").rename(labels / "p1.TXT")
    source, _ = coco_source.find(tmp_path, Options())
    assert len(source.content["images"]) == len(source.content["annotations"]) == 3


def test_labels_without_a_picture_are_named(tmp_path):
    yolo(tmp_path, [f"images/p#{n}.jpg" for n in range(3)])
    for n in range(3):
        (tmp_path / f"labels/p#{n}.txt").rename(tmp_path / f"labels/p_{n}.txt")
    with pytest.raises(UserError, match=r"3 label files match no picture, such as .*p_0.txt beside p#0.jpg"):
        splits_of(tmp_path)


# --------------------------------------------------------------------------------------------------------- splits

YOLO_SPLITS = {
    "lists": (
        {"train": "train.txt", "val": "val.txt"},
        {"train.txt": "./images/p{}.jpg", "val.txt": "images/p{}.jpg"},
    ),
    "another machine's path": ({"path": "/home/me/set", "train": "train.txt", "val": "val.txt"}, {}),
    "darknet": ({}, {"obj.data": "classes = 1\ntrain = data/train.txt\nvalid = data/val.txt\n"}),
}


@pytest.mark.parametrize("kind", YOLO_SPLITS)
def test_yolos_lists_are_the_split(tmp_path, kind):
    split, files = YOLO_SPLITS[kind]
    yolo(tmp_path, [f"images/p{n}.jpg" for n in range(8)], split)
    for name, numbers in (("train.txt", range(5)), ("val.txt", (6, 7))):
        form = files.get(name, "/content/set/images/p{}.jpg")
        (tmp_path / name).write_text("".join(f"{form.format(n)}\n" for n in numbers))
    if "obj.data" in files:
        (tmp_path / "obj.data").write_text(files["obj.data"])
    train, held_out, report = splits_of(tmp_path)
    assert train == [f"images/p{n}.jpg" for n in range(5)] and held_out == ["images/p6.jpg", "images/p7.jpg"]
    assert report.skipped["in no list of the split"].count == 1


def test_pictures_without_labels_that_a_list_names_are_negatives(tmp_path):
    names = [f"data/obj/{kind}/{n}.jpg" for kind in ("pos", "neg") for n in range(4)]
    yolo(tmp_path, [*names, "data/obj/other/9.jpg"])
    for path in [*tmp_path.glob("data/obj/neg/*.txt"), tmp_path / "data/obj/other/9.txt"]:
        path.unlink()
    for part, word in enumerate(("train", "val")):
        (tmp_path / f"data/{word}.txt").write_text("\n".join(names[part::2]))
    assert splits_of(tmp_path)[:2] == (sorted(names[::2]), sorted(names[1::2]))


@pytest.mark.parametrize(
    ("folders", "split"),
    [
        (("images/train2017", "images/val2017"), {}),
        (("obj_train_data", "obj_valid_data"), {}),
        (("images/a", "images/b"), {"train": "images/a", "val": "images/b"}),
        (("images/a", "images/b"), {"train": "[../images/a]", "val": "[../images/b]"}),
        (("train/images", "valid/images"), {"train": "../train/images", "val": "../valid/images"}),
    ],
)
def test_yolos_folders_are_the_split(tmp_path, folders, split):
    yolo(tmp_path, [f"{folder}/{n}.jpg" for folder in folders for n in range(3)], split)
    assert splits_of(tmp_path)[:2] == tuple([f"{folder}/{n}.jpg" for n in range(3)] for folder in folders)


@pytest.mark.parametrize(
    "how", ["folders", "field", "{}.txt", "kit/VOC/ImageSets/Main/{}.txt", "autosplit_{}.txt"]
)
@pytest.mark.parametrize("kind", ["coco", "labelme", "voc", "yolo"])
def test_every_format_keeps_the_split_of_folders_lists_and_fields(tmp_path, kind, how):
    splits = {"train": [], "val": []}
    for number in range(6):
        part = "val" if number > 3 else "train"
        inside = f"{part}/{number}" if how == "folders" else str(number)
        splits[part].append(f"images/{inside}.jpg")
        picture(tmp_path / f"images/{inside}.jpg", number)
        if kind == "yolo":
            yolo(tmp_path, [f"images/{inside}.jpg"])
        elif kind != "coco":
            path = tmp_path / f"labels/{inside}.{'xml' if kind == 'voc' else 'json'}"
            voc(path, VOC_BOX) if kind == "voc" else labelme(path, f"{number}.jpg", [box()])
    if kind == "coco":
        coco(tmp_path / "all.json", sum(splits.values(), []))
        content = json.loads((tmp_path / "all.json").read_text())
        fields = [{"split": "val" if n > 3 else "train"} if how == "field" else {} for n in range(6)]
        content["images"] = [one | field for one, field in zip(content["images"], fields)]
        (tmp_path / "all.json").write_text(json.dumps(content))
    elif how == "field":
        return
    for part, names in splits.items() if "{}" in how else ():
        (tmp_path / how.format(part)).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / how.format(part)).write_text("\n".join(names))
    assert splits_of(tmp_path)[:2] == tuple(splits.values())
    assert all(
        len(s.content["annotations"]) >= len(s.content["images"])
        for s in coco_source.find(tmp_path, Options())
    )


def test_a_split_that_cannot_be_honored_is_said(tmp_path):
    yolo(tmp_path, [f"images/p{n}.jpg" for n in range(4)], {"train": "images", "val": "images"})
    _, held_out, report = splits_of(tmp_path)
    assert held_out is None and "same pictures for both" in report.summaries("suspicious")[0]
    yolo(tmp_path, ["images/p9.jpg"])
    (tmp_path / "val.txt").write_text("images/p1.jpg\n")
    assert "one part of a split without the other" in splits_of(tmp_path)[2].summaries("suspicious")[0]


# -------------------------------------------------------------------------------------------------------- meaning


@pytest.mark.parametrize("lines", [{"kpt_shape": "[4, 2]"}, {}])
def test_poses_are_refused_by_name(tmp_path, lines):
    pose = "0 0.5 0.5 0.5 0.5 0.3 0.3 0.7 0.3 0.7 0.6 0.3 0.7\n"
    yolo(tmp_path, [f"images/{n}.jpg" for n in range(5)], lines, pose)
    with pytest.raises(UserError, match="YOLO's poses are not read; export boxes"):
        splits_of(tmp_path)


@pytest.mark.parametrize("numbers", ["12", ("1.0", "2.0")])
def test_classes_counted_from_1_are_an_error(tmp_path, numbers):
    yolo(
        tmp_path,
        [f"images/{n}.jpg" for n in range(3)],
        {"names": "[cat, dog]"},
        "{} .5 .5 .2 .2\n{} .5 .5 .1 .1\n".format(*numbers),
    )
    with pytest.raises(UserError, match="are 1 to 2, of 2 names; YOLO counts from 0"):
        splits_of(tmp_path)


def test_a_class_below_0_is_left_out_and_is_no_other_count(tmp_path):
    texts = "0 .5 .5 .2 .2\n1 .5 .5 .1 .1\n-1 .4 .4 .2 .2\n"
    yolo(tmp_path, [f"images/{n}.jpg" for n in range(3)], {"names": "[cat, dog, cow]"}, texts)
    splits_of(tmp_path)


def test_a_whole_number_among_decimal_commas_is_one():
    assert label_lines.words_of("0 0,5 0,5 1 1") == ["0", "0.5", "0.5", "1", "1"]
    assert label_lines.words_of("0 1 1 1 1") == ["0", "1", "1", "1", "1"]


def test_labelmes_other_shapes_and_parts_of_one_object_are_left_out_and_said(tmp_path):
    picture(tmp_path / "a.jpg", 1)
    part = {"label": "cat", "shape_type": "polygon", "group_id": 7, "points": [[0, 0], [4, 0], [0, 4]]}
    mask = {"label": "dog", "shape_type": "mask", "points": [[10, 12], [15, 16]], "mask": ""}
    labelme(tmp_path / "a.json", "a.jpg", [part, part, mask, {**part, "group_id": 8}])
    source, _ = coco_source.find(tmp_path, options := Options())
    assert [item["bbox"] for item in source.content["annotations"]] == [[0, 0, 4, 4]]
    assert source.content["images"][0]["lost"] == 3
    assert "shapes of one group_id" in options.report.lines[0] and "'mask'" in options.report.lines[2]


def test_one_bad_object_does_not_discard_its_picture(tmp_path):
    picture(tmp_path / "0.jpg", 1)
    voc(tmp_path / "0.xml", VOC_BOX + "<object><name>dog</name><robndbox><cx>1</cx></robndbox></object>")
    source, _ = coco_source.find(tmp_path, options := Options())
    assert len(source.content["annotations"]) == 1
    assert "with robndbox, which is not read" in options.report.lines[0]


# -------------------------------------------------------------------------------------------------------- formats

FOREIGN = {
    "panoptic.json": (
        {
            "images": [],
            "categories": [],
            "annotations": [{"image_id": 1, "segments_info": [], "file_name": "0.png"}],
        },
        "COCO panoptic",
    ),
    "captions.json": ({"images": [], "annotations": [{"image_id": 1, "caption": "a"}]}, "COCO captions"),
    "vott.json": ({"asset": {}, "regions": []}, "VoTT"),
    "studio.json": ([{"data": {}, "annotations": []}], "Label Studio"),
    "supervisely.json": ({"objects": [], "size": {}}, "Supervisely"),
    "min.json": ([{"image": "0.jpg", "annotation_id": 1}], "Label Studio"),
    "apple.json": ([{"image": "0.jpg", "annotations": [{"label": "cat", "coordinates": {}}]}], "CreateML"),
    "via3.json": ({"project": {}, "metadata": {}, "file": {}}, "VIA 3"),
    "via.json": ({"0.jpg9": {"filename": "0.jpg", "size": 9, "regions": []}}, "VIA"),
    "project.json": ({"_via_settings": {}, "_via_img_metadata": {}}, "VIA"),
    "rows.jsonl": ({"file_name": "0.jpg", "objects": {}}, "Hugging Face"),
    "gtFine.json": ({"imgHeight": 9, "imgWidth": 9, "objects": []}, "Cityscapes"),
    "headless.csv": ("0.jpg,1,1,2,2,cat\n", "CSV"),
    "packed.parquet": ("PAR1", "parquet"),
    "annotations.xml": ("<?xml version='1.0'?><annotations><version>1.1</version></annotations>", "CVAT"),
    "dlib.xml": ("<?xml version='1.0'?><dataset><images></images></dataset>", "dlib"),
    "labels.csv": ("filename,width,height,class,xmin,ymin,xmax,ymax\n0.jpg,9,9,cat,1,1,2,2\n", "CSV"),
    "boxes.csv": ("ImageID,LabelName,XMin,YMin,XMax,YMax\n0,cat,0,0,1,1\n", "OpenImages"),
}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"own.json": '[{"boxes": []}]'}, "own.json: not in a form that is read; expected"),
        ({"rle.csv": "ImageId,EncodedPixels\n0,1 2"}, "rle.csv: not in a form"),
        ({"0000.txt": f"0 1 Car 0 0{' 1.5' * 12}\n"}, "labels of KITTI's tracking"),
        (
            {f"{n}_annotations.txt": "0.jpg 1,2,3,4,0" for n in "ab"},
            "_annotations.txt: a list of pictures and boxes",
        ),
        (
            {"0.xml": "<annotation><object><name>cat</name><bndbox><x>1</x></bndbox></object></annotation>"},
            "without xmin",
        ),
    ],
)
def test_what_is_not_read_is_named(tmp_path, files, message):
    picture(tmp_path / "0.jpg", 1)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    options = Options()
    with pytest.raises(UserError, match=message):
        coco_tidy.tidy(coco_source.find(tmp_path, options)[:1], False, options.report)


@pytest.mark.parametrize(
    "mask", ["annotations/trimaps/a.png", "annotations/masks/a.png", "annotations/vis/a.png"]
)
def test_masks_of_a_picture_s_name_are_not_the_picture(tmp_path, mask):
    for number, name in enumerate(("images/a.jpg", mask)):
        picture(tmp_path / name, 99 * number)
    voc(tmp_path / "annotations/xmls/a.xml", VOC_BOX)
    assert splits_of(tmp_path)[0] == ["images/a.jpg"]


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_format_is_named_with_what_helps(tmp_path, name):
    content, program = FOREIGN[name]
    picture(tmp_path / "0.jpg", 1)
    (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    for source in (tmp_path, tmp_path / name) if name.endswith(".csv") else (tmp_path,):
        with pytest.raises(UserError, match=f"{name}: annotations of .*{program}.*(export|get|convert)"):
            coco_source.find(source, Options())


# ------------------------------------------------------------------------- names x folders x splits x formats

NAMES = st.lists(
    st.sampled_from(["a", "B", "ü", "x y", "p#1", "0001", "n.v"]), min_size=1, max_size=4, unique=True
)
LAYOUTS = {
    "coco": (
        "annotations/{split}.json",
        ["images/{split}", "{split}", "{split}2017", "data/{split}/pictures"],
    ),
    "labelme": ("{split}/labels/{name}.json", ["{split}/images", "{split}"]),
    "voc": ("{split}/Annotations/{name}.xml", ["{split}/JPEGImages", "{split}"]),
    "yolo": ("{split}/labels/{name}.txt", ["{split}/images"]),
}


@given(
    st.sampled_from(sorted(LAYOUTS)),
    NAMES,
    NAMES,
    st.sampled_from(["val", "valid", "test", "dev"]),
    st.integers(0, 3),
    st.sampled_from(["NFC", "NFD"]),
    st.sampled_from(["jpg", "JPG", "png", "webp.jpg"]),
)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_layout_gives_a_picture_to_another_annotation_or_split(
    tmp_path_factory, kind, train, held_out, word, place, form, suffix
):
    folder = tmp_path_factory.mktemp("layout")
    label, places = LAYOUTS[kind]
    place = places[place % len(places)]
    right = []
    for number, (split, names) in enumerate((("train", train), (word, held_out))):
        files = []
        for n, name in enumerate(names):
            path = folder / place.format(split=split) / f"{name}.{suffix}"
            picture(path, 100 * number + 10 * n)
            files.append(path.relative_to(folder).as_posix())
            target = folder / label.format(split=split, name=unicodedata.normalize(form, name))
            if kind == "labelme":
                labelme(target, f"../{place.format(split='').strip('/')}/{name}.{suffix}", [box()])
            elif kind == "voc":
                voc(target, VOC_BOX)
            elif kind == "yolo":
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text("0 0.5 0.5 0.25 0.25\n")
        if kind == "coco":
            spelled = [unicodedata.normalize(form, f"{name}.{suffix}") for name in names]
            coco(folder / label.format(split=split), spelled)
        right.append(sorted(files))
    (folder / "classes.txt").write_text("cat\n")
    assert list(splits_of(folder)[:2]) == right
    for source in coco_source.find(folder, Options()):
        assert len(source.content["annotations"]) == len(source.content["images"])
