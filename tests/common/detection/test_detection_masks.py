"""Tests pasted and encoded masks and the scores of a pool against definitions, plain pycocotools and oracles."""

import contextlib
import io
import json
import math
import pathlib

import numpy as np
import pytest
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from common.detection import coco_eval, drawing, masks
from common.errors import UserError
from lab.studies.data import unpack

SIZE = (37, 53)


def pasted_by_definition(mask: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Pastes pixel by pixel: the bilinear value at the pixel's center, of the mask's cells with zeros around them."""
    cells = len(mask)
    around = np.zeros([cells + 2, cells + 2])
    around[1:-1, 1:-1] = mask
    out = np.zeros(SIZE, np.uint8)
    for y in range(SIZE[0]):
        for x in range(SIZE[1]):
            if not (box[0] <= y + 0.5 <= box[2] and box[1] <= x + 0.5 <= box[3]):
                continue
            v = (y + 0.5 - box[0]) / (box[2] - box[0]) * cells + 0.5
            u = (x + 0.5 - box[1]) / (box[3] - box[1]) * cells + 0.5
            i, j = min(int(v), cells), min(int(u), cells)
            a, b = v - i, u - j
            value = (1 - a) * ((1 - b) * around[i, j] + b * around[i, j + 1])
            value += a * ((1 - b) * around[i + 1, j] + b * around[i + 1, j + 1])
            out[y, x] = value >= 0.5
    return out


def test_pasting_is_bilinear_between_the_centers_of_cells():
    rng = np.random.default_rng(0)
    for _ in range(20):
        mask = rng.random([7, 7])
        low = rng.uniform(-8, 30, 2)
        box = np.concatenate([low, low + rng.uniform(0.5, 40, 2)])
        pasted = masks.paste(mask[None], box[None], *SIZE)[..., 0]
        np.testing.assert_array_equal(pasted, pasted_by_definition(mask, box))


def test_boxes_without_an_area_and_outside_of_the_image_paste_nothing():
    ones = np.ones([4, 28, 28])
    boxes = np.array([[5, 5, 5, 9], [9, 5, 5, 9], [-20, -20, -3, -3], [60, 60, 70, 70.0]])
    assert not masks.paste(ones, boxes, *SIZE).any()
    assert masks.paste(ones[:0], boxes[:0], *SIZE).shape == (*SIZE, 0)
    assert masks.encode(masks.paste(ones[:0], boxes[:0], *SIZE)) == []


def test_a_mask_of_ones_is_its_box():
    pasted = masks.paste(np.ones([1, 28, 28]), np.array([[3, 5, 20, 41.0]]), *SIZE)[..., 0]
    expected = np.zeros(SIZE, np.uint8)
    expected[3:20, 5:41] = 1
    np.testing.assert_array_equal(pasted, expected)


def test_polygons_and_both_forms_of_run_lengths_decode_alike():
    polygon = [[5.0, 5.0, 25.0, 5.0, 25.0, 15.0, 5.0, 15.0]]
    (text,) = coco_mask.frPyObjects(polygon, *SIZE)
    expected = coco_mask.decode(text)
    numbers, run, value = [], 0, 0
    for pixel in expected.T.ravel():
        if pixel != value:
            numbers.append(run)
            run, value = 0, pixel
        run += 1
    numbers = {"size": list(SIZE), "counts": [*numbers, run]}
    assert 150 < expected.sum() < 250
    for shape in (polygon, text, numbers):
        np.testing.assert_array_equal(masks.decode(shape, *SIZE), expected)


# -- scores ---------------------------------------------------------------------------------------------------------


def generated(folder: pathlib.Path, images: int = 40) -> tuple[str, dict]:
    """(annotation file, its content) of drawn pictures, some with a crowd, some empty."""
    pictures = drawing.Pictures(eval_images=images, crowds=0.3, empty=0.1)
    content, _ = drawing.annotations(pictures, "val")
    path = folder / "instances.json"
    path.write_text(json.dumps(content))
    assert any(a["iscrowd"] for a in content["annotations"])
    return str(path), content


def oracle(content: dict, image: dict, columns: int) -> dict[str, np.ndarray]:
    """One image's output of a network that predicts the objects, without crowds, with masks at twice the resolution."""
    height, width = image["height"], image["width"]
    items = [a for a in content["annotations"] if a["image_id"] == image["id"] and not a["iscrowd"]]
    assert len(items) <= columns
    cells = 2 * math.ceil(max((max(a["bbox"][2:]) for a in items), default=1))
    arrays = {
        "image_id": np.array([image["id"]]),
        "weight": np.ones(1),
        "boxes": np.zeros([1, columns, 4]),
        "scores": np.zeros([1, columns]),
        "classes": np.zeros([1, columns], np.int32),
        "masks": np.zeros([1, columns, cells, cells], np.uint8),
    }
    for i, item in enumerate(items):
        x, y, w, h = item["bbox"]
        arrays["boxes"][0, i] = np.array([y, x, y + h, x + w]) / [height, width, height, width]
        arrays["scores"][0, i] = 1
        arrays["classes"][0, i] = item["category_id"]
        mask = masks.decode(item["segmentation"], height, width)
        places = (np.arange(cells) + 0.5) / cells
        rows = np.minimum((y + places * h).astype(int), height - 1)
        arrays["masks"][0, i] = mask[rows][:, np.minimum((x + places * w).astype(int), width - 1)]
    return arrays


def scores(annotations: str, parts: list[dict], classes: range) -> dict[str, dict[str, float]]:
    encoded = [coco_eval.encoded_results(annotations, classes, part) for part in parts]
    return {
        kind: coco_eval.score(annotations, (kind, [part[kind] for part in encoded]))
        for kind in ("bbox", "segm")
    }


def test_an_oracle_scores_one_for_boxes_and_masks(tmp_path):
    annotations, content = generated(tmp_path)
    parts = [p for i in content["images"] for p in coco_eval.parts(oracle(content, i, 4))]
    precisions = scores(annotations, parts, range(1, 12))
    assert precisions["bbox"]["AP"] == pytest.approx(1.0) and precisions["segm"]["AP"] == pytest.approx(1.0)


def test_an_oracle_scores_one_on_photographs_with_crowds(tmp_path):
    """Scores forty of the hundred photographs: all with a crowd, and others; all hundred would take too long."""
    try:
        source = unpack("coco200") / "instances_val2017_100.json"
    except UserError as error:
        pytest.skip(str(error))
    content = json.loads(source.read_text())
    assert len(content["categories"]) == 80
    crowded = {a["image_id"] for a in content["annotations"] if a["iscrowd"]}
    images = sorted(content["images"], key=lambda image: image["id"] not in crowded)[:40]
    ids = {image["id"] for image in images}
    assert crowded and crowded <= ids
    items = [a for a in content["annotations"] if a["image_id"] in ids]
    annotations = tmp_path / "instances.json"
    annotations.write_text(json.dumps({**content, "images": images, "annotations": items}))
    parts = [p for image in images for p in coco_eval.parts(oracle(content, image, 100))]
    precisions = scores(str(annotations), parts, range(1, 91))
    assert precisions["bbox"]["AP"] == pytest.approx(1.0) and precisions["segm"]["AP"] == pytest.approx(1.0)


def random_arrays(content: dict, columns: int = 9, padding: int = 3) -> dict[str, np.ndarray]:
    """The oracle's boxes disturbed, random masks and scores, wrong classes, and rows of padding."""
    rng = np.random.default_rng(5)
    rows = [oracle(content, image, columns) for image in content["images"]]
    n = len(rows) + padding
    arrays = {
        "image_id": np.concatenate([*(r["image_id"] for r in rows), [-1] * padding]),
        "weight": np.concatenate([np.ones(len(rows)), np.zeros(padding)]),
        "boxes": np.concatenate([*(r["boxes"] for r in rows), np.ones([padding, columns, 4])]),
        "scores": np.concatenate([*(r["scores"] for r in rows), np.ones([padding, columns])]),
        "classes": np.concatenate([*(r["classes"] for r in rows), np.ones([padding, columns], np.int32)]),
        "masks": rng.random([n, columns, 28, 28]).astype(np.float16) ** 0.3,
    }
    arrays["boxes"] = (arrays["boxes"] + rng.normal(0, 0.03, arrays["boxes"].shape)).clip(0, 1)
    arrays["scores"] *= rng.uniform(0.1, 1, arrays["scores"].shape)
    extra = rng.random(arrays["scores"].shape) < 0.2
    arrays["scores"][extra] = rng.random(extra.sum())
    arrays["classes"][extra] = rng.integers(1, 12, extra.sum())
    return arrays


def test_scores_are_exactly_those_of_plain_pycocotools(tmp_path):
    annotations, content = generated(tmp_path)
    arrays = random_arrays(content)
    actual = scores(annotations, coco_eval.parts(arrays, 7), range(1, 12))
    sizes = {i["id"]: (i["height"], i["width"]) for i in content["images"]}
    plain = {"bbox": [], "segm": []}
    for row, image in enumerate(arrays["image_id"].tolist()):
        if image < 0:
            continue
        height, width = sizes[image]
        for box, score, category, mask in zip(
            *(arrays[name][row] for name in ("boxes", "scores", "classes", "masks"))
        ):
            if score > 0:
                corners = box * [height, width, height, width]
                y, x = corners[:2]
                h, w = corners[2:] - corners[:2]
                whole = masks.paste(mask[None], corners[None], height, width)[..., 0]
                result = {"image_id": image, "category_id": int(category), "score": float(score)}
                plain["bbox"].append({**result, "bbox": [x, y, w, h]})
                plain["segm"].append({**result, "segmentation": coco_mask.encode(np.asfortranarray(whole))})
    for kind, results in plain.items():
        with contextlib.redirect_stdout(io.StringIO()):
            truth = COCO(annotations)
            evaluation = COCOeval(truth, truth.loadRes(results), kind)
            evaluation.evaluate(), evaluation.accumulate(), evaluation.summarize()
        assert 0 < actual[kind]["AP"] < 1
        assert list(actual[kind].values())[:12] == evaluation.stats.tolist(), kind


def test_parts_hold_each_image_once_and_no_empty_columns(tmp_path):
    _, content = generated(tmp_path)
    arrays = random_arrays(content)
    parts = coco_eval.parts(arrays, 7)
    assert [len(part["image_id"]) for part in parts] == [7, 7, 7, 7, 7, 5]
    np.testing.assert_array_equal(np.concatenate([p["image_id"] for p in parts]), arrays["image_id"][:40])
    for part in parts:
        assert part["scores"].shape[1] == 0 or (part["scores"][:, -1] > 0).any()
        assert part["masks"].shape[:2] == part["scores"].shape and "weight" not in part
    arrays["scores"][:] = 0
    assert coco_eval.parts(arrays, 50)[0]["masks"].shape == (40, 0, 28, 28)
