"""Tests that masks as pictures and films in MOT's form give the boxes, masks and classes that their authors mean."""

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
    found = sum(coco_mask.decode(item["segmentation"]) for item in content["annotations"][:2])
    assert np.array_equal(found, scene([1] * 3))


@pytest.mark.parametrize("background", [True, False])
def test_values_are_the_classes_of_a_list_and_255_is_a_border(tmp_path, background):
    folder = folder_of(tmp_path, [scene([1, 255, 2]), scene([2, 2, 1])])
    (folder / "classes.txt").write_text("background\ncat\ndog\n" if background else "cat\ndog\n")
    (content,), names, _ = tidied(folder)
    assert names == ["cat", "dog"]
    shown = [(names[item["category_id"] - 1], item["bbox"]) for item in content["annotations"]]
    assert shown == [("cat", [5, 4, 15, 6]), ("dog", APART), ("dog", WHOLE), ("cat", APART)]
    (folder / "classes.txt").write_text("background\ncat\n")
    with pytest.raises(UserError, match="names no class 2, a value of the masks"):
        tidied(folder)


def test_values_that_count_the_objects_are_one_class(tmp_path):
    folder = folder_of(tmp_path, [scene([1, 1, 2]), scene([0, 0, 1])], "SegmentationObject/p{}.png")
    (content,), names, report = tidied(folder)
    assert names == [mask_files.ONE_CLASS] and "each value" in report.chosen["objects in masks"][0]
    assert [item["bbox"] for item in content["annotations"]] == [WHOLE, APART, APART]


def test_values_without_a_meaning_are_refused_and_smooth_masks_left_out(tmp_path):
    with pytest.raises(UserError, match="nothing says what the values .* classes.txt.* instances/"):
        tidied(folder_of(tmp_path / "a", [scene([1, 1, 2]), scene([0, 0, 1])]))
    shades = np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
    (content,), _, report = tidied(folder_of(tmp_path / "b", [scene([1] * 3), shades]))
    assert len(content["images"]) == 1 and "smooth shades" in report.lines[0]


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
