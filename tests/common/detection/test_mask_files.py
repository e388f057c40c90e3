"""Tests that masks as pictures and films in MOT's form give the boxes, masks and classes that their authors mean."""

import contextlib

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

from common.data.folder_conversion import Options
from common.detection import coco_source, coco_tidy, mask_files
from common.errors import UserError

HEIGHT, WIDTH = 40, 60
# Two pieces that touch at a corner only are one piece; a third one is apart.
PARTS = (slice(4, 10), slice(5, 20)), (slice(10, 14), slice(20, 26)), (slice(20, 38), slice(30, 50))
WHOLE, APART = [5, 4, 21, 10], [30, 20, 20, 18]


def scene(values):
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    for part, value in zip(PARTS, values):
        mask[part] = value
    return mask


def folder_of(folder, masks, place="masks/p{}.png", picture="images/p{}.jpg"):
    for number, mask in enumerate(masks):
        for path, pixels in (
            (picture, np.full((HEIGHT, WIDTH, 3), 30 + 9 * number, np.uint8)),
            (place, mask),
        ):
            path = folder / path.format(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    return folder


def tidied(folder, masks=True):
    options = Options()
    sources = [one for one in coco_source.find(folder, options) if one]
    contents, names, _ = coco_tidy.tidy(sources, masks, options.report)
    return contents, names, options.report


@pytest.mark.parametrize(
    ("place", "picture"),
    [
        ("masks/p{}.png", "images/p{}.jpg"),
        ("mask/p{}_mask.png", "img/p{}.jpg"),
        ("masks/train/p{}.png", "images/train/p{}.jpg"),
        ("{}/masks/a.png", "{}/images/p{}.jpg".replace("p{}", "x")),
    ],
)
@pytest.mark.parametrize("value", [1, 255])
def test_each_piece_of_a_mask_of_one_value_is_an_object(tmp_path, place, picture, value):
    (content,), names, report = tidied(folder_of(tmp_path, [scene([value] * 3)] * 3, place, picture))
    assert names == [mask_files.ONE_CLASS] and len(content["images"]) == 3 and not report.lines
    assert [item["bbox"] for item in content["annotations"]] == [WHOLE, APART] * 3
    pixels = sum(coco_mask.decode(item["segmentation"]) for item in content["annotations"][:2])
    assert np.array_equal(pixels, scene([1] * 3))


@pytest.mark.parametrize("background", [True, False])
def test_values_are_the_classes_of_a_list_and_255_is_a_border(tmp_path, background):
    folder = folder_of(tmp_path, [scene([1, 255, 2]), scene([2, 2, 1])])
    (folder / "classes.txt").write_text("background\ncat\ndog\n" if background else "cat\ndog\n")
    (content,), names, _ = tidied(folder)
    assert names == ["cat", "dog"]
    objects = [(names[item["category_id"] - 1], item["bbox"]) for item in content["annotations"]]
    assert objects == [("cat", [5, 4, 15, 6]), ("dog", APART), ("dog", WHOLE), ("cat", APART)]
    (folder / "classes.txt").write_text("background\ncat\n")
    with pytest.raises(UserError, match="names no class 2, a value of the masks"):
        tidied(folder)


@pytest.mark.parametrize(
    ("places", "expected"),
    [(("masks/cat", "masks/dog"), ["cat", "dog"]), (("masks/day", "masks/images"), [mask_files.ONE_CLASS])],
)
def test_folders_of_masks_are_their_classes_unless_pictures_have_them_too(tmp_path, places, expected):
    for place in places:
        folder_of(tmp_path, [scene([255] * 3)] * 3, f"{place}/p{{}}.png", "images/day/p{}.jpg")
    (content,), names, report = tidied(tmp_path)
    assert names == expected and ("classes of masks" in report.choices) == (len(names) > 1)
    assert [item["category_id"] for item in content["annotations"][:4]] == [1, 1, len(names), len(names)]


def test_255_is_a_border_only_beside_an_object(tmp_path):
    with pytest.raises(UserError, match=r"nothing says what the values \[1, 255\]"):
        tidied(folder_of(tmp_path / "a", [scene([1] * 3), scene([255] * 3)]))
    folder = folder_of(tmp_path / "b", [scene([1, 255, 2]), scene([0, 255, 0])])
    (folder / "classes.txt").write_text("cat\ndog\n")
    (content,), _, report = tidied(folder)
    assert [image["file_name"][-6:] for image in content["images"]] == ["p0.jpg"]
    assert any("nothing but 255" in reason for reason in report.suspicious)


@pytest.mark.parametrize("colors", [True, False])
def test_a_list_of_cvat_names_numbers_and_colors(tmp_path, colors):
    mask = scene([1, 1, 2])
    mask = np.array([[0, 0, 0], [128, 0, 0], [0, 128, 0]], np.uint8)[mask] if colors else mask
    folder = folder_of(tmp_path, [mask] * 2, "SegmentationClass/p{}.png")
    head = "# label:color_rgb:parts:actions\nbackground:0,0,0::\n"
    (folder / "labelmap.txt").write_text(f"{head}cat:128,0,0::\ndog:0,128,0::\n")
    (content,), names, _ = tidied(folder)
    assert names == ["cat", "dog"]
    assert [(item["category_id"], item["bbox"]) for item in content["annotations"][:2]] == [
        (1, WHOLE),
        (2, APART),
    ]


def names_of(content, names):
    return [names[item["category_id"] - 1] for item in content["annotations"]]


COLORS = np.array([[0, 0, 0], [255, 0, 0], [0, 0, 255], [255, 255, 255]], np.uint8)
CVAT = (
    "# label:color_rgb:parts:actions\nbackground:0,0,0::\ncar:255,0,0::\nsky:0,0,255::\nsnow:255,255,255::\n"
)


def test_blue_and_white_are_classes_that_the_list_names(tmp_path):
    scenes = [[1, 0, 2], [0, 0, 2], [1, 0, 3], [0, 0, 3]]
    folder = folder_of(tmp_path / "a", [COLORS[scene(one)] for one in scenes], "SegmentationClass/p{}.png")
    (folder / "labelmap.txt").write_text(CVAT)
    (content,), names, report = tidied(folder)
    assert names_of(content, names) == ["car", "sky", "sky", "car", "snow", "snow"] and not report.changed
    blue = COLORS[scene([2] * 3)]
    for mask, listed, name in (
        (blue, CVAT, "sky"),
        (scene([2] * 3), "cat\ndog\n", "dog"),
        (scene([255] * 3), "background\ncell\n\n", "cell"),
    ):
        folder = folder_of(tmp_path / name, [mask] * 2)
        (folder / "labelmap.txt").write_text(listed)
        (content,), names, _ = tidied(folder)
        assert names_of(content, names) == [name] * 4
    for values, listed, message in (
        ([1, 0, 2], "a:255,0,0:\nb:0,9,255:\n", "0,0,255"),
        ([1, 0, 3], "a:255,0,0:\n", "255"),
    ):
        folder = folder_of(tmp_path / message, [COLORS[scene(values)]])
        (folder / "classes.txt").write_text(listed)
        with pytest.raises(UserError, match=f"names no class {message}, a value"):
            tidied(folder)


def test_with_both_folders_of_pascal_voc_the_list_names_the_classes_and_the_other_tells_objects(tmp_path):
    """Objects' colors are those of other classes; two objects of a class touch."""
    for place, values in (("SegmentationClass", [2, 2, 1]), ("SegmentationObject", [1, 2, 3])):
        masks = [COLORS[scene(values)]] * 2
        folder_of(tmp_path, masks, place + "/p{}.png", "JPEGImages/p{}.jpg")
    (tmp_path / "labelmap.txt").write_text(CVAT)
    (content,), names, report = tidied(tmp_path)
    assert sorted(names_of(content, names)) == ["car"] * 2 + ["sky"] * 4
    boxes = sorted(item["bbox"] for item in content["annotations"][:3])
    assert boxes == [[5, 4, 15, 6], [20, 10, 6, 4], APART] and not report.skipped and not report.changed
    assert "masks of objects" in report.choices["objects in masks"][0]
    Image.new("RGB", (3, 3)).save(tmp_path / "SegmentationObject/p0.png")
    (content,), _, report = tidied(tmp_path)
    assert len(content["images"]) == 1 and "its size is not that of" in report.lines[0]
    (tmp_path / "labelmap.txt").unlink()
    assert tidied(tmp_path)[1] == [mask_files.ONE_CLASS]


def test_a_list_does_not_name_numbers_of_objects(tmp_path):
    folder = folder_of(tmp_path, [scene([1, 1, 2]), scene([0, 0, 1])], "SegmentationObject/p{}.png")
    (folder / "labelmap.txt").write_text(CVAT)
    with pytest.raises(
        UserError, match="labelmap.txt: names no class of numbers of objects; .*SegmentationClass/"
    ):
        tidied(folder)
    (folder / "labelmap.txt").write_text("background\ncell\n")
    (content,), names, _ = tidied(folder)
    assert names == ["cell"] and [item["bbox"] for item in content["annotations"]] == [WHOLE, APART, APART]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("background\nvehicle:car\nvehicle:truck\n", ["vehicle:car", "vehicle:truck"]),
        ("0: background\n1: car\n2: truck\n\n", ["car", "truck"]),
        ("0 background\n1 car\n2 truck\n", ["car", "truck"]),
        ("background\n#1 car\n#2 car\n", ["#1 car", "#2 car"]),
        ("1 cent\n2 cent\n", ["1 cent", "2 cent"]),
        (
            "# label:color_rgb:parts:actions\nbackground:0,0,0::\nmy:car:9,0,0::\n3 x:0,9,0::\n",
            ["my:car", "3 x"],
        ),
    ],
)
def test_a_list_names_a_class_a_line_whatever_its_letters(tmp_path, text, expected):
    folder = folder_of(tmp_path, [scene([1, 0, 2])] * 2)
    (folder / "classes.txt").write_text(text)
    (content,), names, _ = tidied(folder)
    assert names_of(content, names) == expected * 2


@pytest.mark.parametrize("soft", [254, 128])
def test_a_stray_value_in_one_mask_leaves_out_that_one(tmp_path, soft):
    (content,), names, report = tidied(
        folder_of(tmp_path, [scene([255, 0, 255])] * 9 + [scene([255, soft, 0])])
    )
    assert names == [mask_files.ONE_CLASS] and len(content["images"]) == 9 and not report.changed
    assert [line for line in report.lines if "p9.png: a mask with values beside 255" in line]
    assert any("unlike most" in reason for reason in report.suspicious)


def test_values_that_count_the_objects_are_one_class(tmp_path):
    folder = folder_of(tmp_path, [scene([1, 1, 2]), scene([0, 0, 1])], "SegmentationObject/p{}.png")
    (content,), names, report = tidied(folder)
    assert names == [mask_files.ONE_CLASS] and "each value" in report.choices["objects in masks"][0]
    assert [item["bbox"] for item in content["annotations"]] == [WHOLE, APART, APART]


def test_values_without_a_meaning_are_refused_and_smooth_masks_left_out(tmp_path):
    with pytest.raises(UserError, match="nothing says what the values .* classes.txt.* instances/"):
        tidied(folder_of(tmp_path / "a", [scene([1, 1, 2]), scene([0, 0, 1])]))
    shades = np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
    (content,), _, report = tidied(folder_of(tmp_path / "b", [scene([1] * 3), shades]))
    assert len(content["images"]) == 1 and "smooth shades" in report.lines[0]


@pytest.mark.parametrize("place", ["labels/p{}.png", "images/p{}_mask.png", "masks/mask_p{}.png"])
def test_masks_in_another_place_or_beside_boxes_are_named(tmp_path, place):
    folder_of(tmp_path, [scene([1] * 3)] * 3, place)
    with pytest.raises(UserError, match="p0.*.png: seems to be a mask, .* put the masks alone"):
        tidied(tmp_path)


@pytest.mark.parametrize("labeled", [True, False])
def test_only_a_few_frames_are_decoded_as_masks_and_none_beside_labels(tmp_path, monkeypatch, labeled):
    folder_of(tmp_path, [scene([1] * 3)] * 24, "images/val/p{}.png", "images/train/p{}.png")
    looked = []

    def values(path):
        looked.append(path)
        raise Image.DecompressionBombError

    monkeypatch.setattr(mask_files, "_values", values)
    if labeled:
        (tmp_path / "classes.txt").write_text("cat\n")
        (tmp_path / "labels/train").mkdir(parents=True)
        (tmp_path / "labels/train/p0.txt").write_text("0 0.5 0.5 0.25 0.25\n")
    with contextlib.nullcontext() if labeled else pytest.raises(UserError, match="no annotations"):
        tidied(tmp_path)
    assert len(looked) == (0 if labeled else 20)


def test_visualized_masks_are_no_pictures_and_inverted_ones_are_said(tmp_path):
    masks = [scene([1] * 3) ^ 1 for _ in range(2)]
    folder_of(tmp_path, masks, "SegmentationClassPNG/p{}.png", "JPEGImages/p{}.jpg")
    folder_of(tmp_path, masks, "SegmentationClassPNG/p{}.png", "SegmentationClassVisualization/p{}.jpg")
    (content,), _, report = tidied(tmp_path)
    assert {one["file_name"][:10] for one in content["images"]} == {"JPEGImages"}
    assert report.suspicious["a mask whose object has all four corners; 0 is the background"].count == 2


def test_masks_of_a_lossy_format_and_lines_of_mots_are_refused_by_name(tmp_path):
    folder_of(tmp_path / "a", [scene([1] * 3)], "masks/p{}.jpg")
    with pytest.raises(UserError, match="p0.jpg: a mask of a lossy format"):
        tidied(tmp_path / "a")
    film(tmp_path / "b/A", ["1 2002 2 64 96 UkU1"])
    with pytest.raises(UserError, match="gt.txt: no line of it is a box of MOT; lines of MOTS"):
        tidied(tmp_path / "b")


def test_masks_of_two_splits_are_read_apart(tmp_path):
    for split in ("train", "val"):
        folder_of(tmp_path / split, [scene([1] * 3)] * 2)
    contents, *_ = tidied(tmp_path)
    assert [len(content["images"]) for content in contents] == [2, 2]


def film(folder, lines, name="gt/gt.txt", frames=3):
    (folder / "img1").mkdir(parents=True)
    for number in range(1, frames + 1):
        Image.new("RGB", (WIDTH, HEIGHT), (9 * number, 90, 9)).save(folder / f"img1/{number:06d}.jpg")
    (folder / name).parent.mkdir()
    (folder / name).write_text("".join(f"{line}\n" for line in lines))


def test_tracks_of_mot_are_boxes_and_what_an_evaluation_ignores_are_crowds(tmp_path):
    rows = ["1,7,11,6,20,10,1,1,0.9", "2,7,11,6,20,10,0,3,1", "2,8,31,21,9,9,0,12,1", "9,7,1,1,5,5,1,1,1"]
    film(tmp_path / "train/A", rows)
    (content,), names, report = tidied(tmp_path, masks=False)
    assert [image["file_name"][-10:] for image in content["images"]] == [f"00000{n}.jpg" for n in (1, 2, 3)]
    assert [names[item["category_id"] - 1] for item in content["annotations"]] == ["pedestrian", "car"]
    assert [item["bbox"] for item in content["annotations"]] == [[10, 5, 20, 10]] * 2
    assert [item["iscrowd"] for item in content["annotations"]] == [0, 1]
    assert report.left_out["of a frame that is not there"].count == 1


def test_a_detectors_boxes_are_refused_and_a_list_names_the_classes(tmp_path):
    film(tmp_path / "A", ["1,-1,11,6,20,10,0.7,-1,-1,-1"], "det/det.txt")
    with pytest.raises(UserError, match="det.txt: boxes of a detector"):
        tidied(tmp_path, masks=False)
    film(tmp_path / "B", ["1,7,11,6,20,10,1,2,1.0"])
    (tmp_path / "B/gt/labels.txt").write_text("cat\ndog\n")
    assert tidied(tmp_path / "B", masks=False)[1] == ["dog"]


def test_films_to_test_without_labels_do_not_refuse_those_to_train_on(tmp_path):
    film(tmp_path / "train/M1", ["1,7,11,6,20,10,1,1,0.9"])
    film(tmp_path / "test/M2", ["1,-1,11,6,20,10,0.7,-1,-1,-1"], "det/det.txt")
    (content,), _, report = tidied(tmp_path, masks=False)
    assert len(content["annotations"]) == 1
    assert report.suspicious["a folder to evaluate on without labels, not read"].count == 1
