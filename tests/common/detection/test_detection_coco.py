"""Tests COCO records and COCO's evaluation against tf-models-official's decoder, plain pycocotools and an oracle."""

import contextlib
import io
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from common.data import tfrecords
from common.detection import coco_eval, coco_records, coco_write
from common.distributed.replicas.base import Shard
from common.errors import UserError
from tests.common.detection.scenes import IDS, NOTHING, SIZE, jpeg, scene, set_field


def write(folder: pathlib.Path, content: dict, masks: bool = False) -> tuple[str, list[str], list[str]]:
    """Writes a COCO file: (annotation file, TFRecords, messages about dropped objects)."""
    dropped: list[str] = []
    annotations = folder / "instances.json"
    annotations.write_text(json.dumps(content))
    serialized = list(coco_write.examples(content, lambda image: jpeg(image["id"]), masks, dropped))
    files = [folder / f"{tfrecords.shard_name('train', i, 3)}.tfrecord" for i in range(3)]
    for i, file in enumerate(files):
        tfrecords.write(file, serialized[i::3])
    return str(annotations), [str(file) for file in files], dropped


def test_records_are_read_as_tf_models_decoder_reads_them(tmp_path):
    decoder = pytest.importorskip(
        "official.vision.dataloaders.tf_example_decoder", reason="tf-models-official absent"
    ).TfExampleDecoder(include_mask=True)
    _, files, dropped = write(tmp_path, scene(), masks=True)
    assert not dropped
    count = 0
    for file in files:
        for serialized in tfrecords.read(file):
            theirs = decoder.decode(tf.constant(serialized))
            ours = coco_records.parse(tf.constant(serialized), masks=True)
            assert str(int(ours["image_id"])).encode() == theirs["source_id"].numpy()
            np.testing.assert_array_equal(ours["boxes"], theirs["groundtruth_boxes"])
            np.testing.assert_array_equal(ours["labels"], theirs["groundtruth_classes"])
            np.testing.assert_array_equal(ours["crowd"], theirs["groundtruth_is_crowd"])
            for png, mask in zip(ours["masks"], theirs["groundtruth_instance_masks"]):
                np.testing.assert_array_equal(tf.io.decode_png(png)[..., 0], mask)
            count += len(ours["labels"])
    assert count == len(scene()["annotations"])


def test_records_of_tf_models_converter_are_read(tmp_path):
    converter = pytest.importorskip(
        "official.vision.data.create_coco_tf_record", reason="tf-models-official absent"
    )
    content = scene()
    names, by_image = {i: f"kind {i}" for i in IDS}, coco_write.by_image(content)
    for image in content["images"]:
        (tmp_path / image["file_name"]).write_bytes(jpeg(image["id"]))
        theirs, _ = converter.create_tf_example(
            image, [str(tmp_path)], bbox_annotations=by_image.get(image["id"]), id_to_name_map=names
        )
        (mine,) = coco_write.examples({**content, "images": [image]}, lambda image: jpeg(image["id"]))
        a, b = (coco_records.parse(tf.constant(s)) for s in (theirs.SerializeToString(), mine))
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def test_classes_are_numbered_without_gaps(tmp_path):
    annotations, _, _ = write(tmp_path, scene())
    categories = coco_records.Categories.read(annotations, 4)
    classes = categories.to_class(tf.constant([[3, 7], [44, 5], [0, 9999]], tf.int64))
    assert classes.numpy().tolist() == [[1, 2], [3, -1], [-1, -1]]
    with pytest.raises(UserError, match="3 categories, config.num_classes=81"):
        coco_records.Categories.read(annotations, 81)
    with pytest.raises(UserError, match="cannot be read"):
        coco_records.Categories.read(str(tmp_path / "no.json"), 4)


def test_no_image_with_objects_is_one_line_and_no_endless_wait(tmp_path):
    _, files, _ = write(tmp_path, {**scene(), "annotations": []})
    for start in (0, 3):
        with pytest.raises(UserError, match="no image with objects for process 0 of 1; use fewer processes"):
            coco_records.training_stream(files, Shard(), 5, 4, start, coco_records.parse, False)


@pytest.mark.parametrize("crowds", [False, True])
def test_an_evaluation_needs_an_object_to_find(tmp_path, crowds):
    content = scene()
    content["annotations"] = [{**item, "iscrowd": 1} for item in content["annotations"]] if crowds else []
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(content))
    with pytest.raises(
        UserError, match="instances.json: no object to find; an evaluation needs one at least"
    ):
        coco_records.check_evaluation(path, None, len(content["images"]))


@pytest.mark.parametrize("cache", [False, True])
def test_stream_leaves_empty_images_out_and_can_be_entered_anywhere(tmp_path, cache):
    _, files, _ = write(tmp_path, scene())
    full = {i["image_id"] for i in scene()["annotations"]}

    def ids(start, count):
        stream = coco_records.training_stream(files, Shard(), 5, 4, start, coco_records.parse, cache)
        return [int(record["image_id"]) for *_, record in stream.take(count)]

    whole = ids(0, 3 * len(full))
    assert len(full) == 9
    for epoch in range(3):
        assert set(whole[9 * epoch : 9 * epoch + 9]) == full
    for start in (1, 9, 14):
        assert ids(start, 6) == whole[start : start + 6]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"bbox": [50.0, 5, 20, 5]}, "outside of the image"),
        ({"bbox": [5.0, 5, 0, 5]}, "no area"),
        ({"bbox": [5.0, 5, 4, -5]}, "no area"),
        ({"segmentation": [[1.0, 2, 3, 4]]}, "fewer than three points"),
        ({"segmentation": {"size": [4, 4], "counts": [16]}}, "mask of size"),
    ],
)
def test_bad_objects_are_dropped_from_training_by_name_and_refused_in_evaluation(tmp_path, change, why):
    content = scene()
    bad = content["annotations"][3]
    bad.update(change)
    annotations, files, dropped = write(tmp_path, content)
    assert len(dropped) == 1 and f"image {bad['image_id']}, annotation 4: " in dropped[0]
    assert why in dropped[0]
    count = sum(len(coco_records.parse(tf.constant(r))["labels"]) for f in files for r in tfrecords.read(f))
    assert count == len(content["annotations"]) - 1
    if "bbox" not in change or why == "no area":
        with pytest.raises(ValueError, match=f"image {bad['image_id']}, annotation 4"):
            coco_eval.ground_truth(annotations)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("bbox", [], "annotation 4: bbox is \\[\\]"),
        ("bbox", [1, 2, None, 4], "annotation 4: bbox is"),
        ("bbox", NOTHING, "annotation 4: bbox is missing"),
        ("area", NOTHING, "annotation 4: area is missing"),
        ("iscrowd", NOTHING, "annotation 4: iscrowd is missing"),
        ("segmentation", NOTHING, "annotation 4: it has no segmentation"),
        ("segmentation", [], "annotation 4: it has no segmentation"),
        ("segmentation", [[1, 2, 3, 4, 5, "6"]], "annotation 4: its segmentation is neither"),
        ("segmentation", {"size": [*SIZE], "counts": [7]}, "annotation 4: its segmentation is neither"),
        ("height", NOTHING, ": height is missing"),
        ("width", 0, ": width is 0"),
    ],
)
def test_annotations_that_break_an_evaluation_are_found_before_it(tmp_path, field, value, message):
    content = scene()
    bad = content["annotations"][3]
    image = next(i for i in content["images"] if i["id"] == bad["image_id"])
    for data in (bad, image):
        if field in data:
            set_field(data, field, value)
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"image {image['id']}.*{message}.*get a good copy"):
        coco_records.check_evaluation(path, None, len(content["images"]), masks=True)
    if field == "segmentation" and (value is NOTHING or not value):
        coco_records.check_evaluation(path, None, len(content["images"]))  # Boxes need no masks.
        results = [{"image_id": image["id"], "category_id": 3, "bbox": [0.0, 0, 9, 9], "score": 0.5}]
        assert coco_eval.average_precision(path, results, "bbox")["AP"] < 0.5


def test_unknown_categories_are_refused(tmp_path):
    content = scene()
    content["annotations"][0]["category_id"] = 5
    with pytest.raises(UserError, match="image 107, annotation 1: category 5 is unknown"):
        write(tmp_path, content)
    with pytest.raises(ValueError, match="image 107, annotation 1: category 5"):
        coco_eval.ground_truth(str(tmp_path / "instances.json"))


CATEGORIES = coco_records.Categories(IDS, (1, 2, 3))


def example(picture: bytes) -> bytes:
    """The record of the scene's fifth image, with this picture."""
    content = scene()
    (record,) = coco_write.examples({**content, "images": content["images"][4:5]}, lambda _: picture)
    return record


def test_damage_is_named_by_image():
    good = example(jpeg(1))
    assert coco_records.complaint(good, CATEGORIES) is None
    assert "image 128" in coco_records.complaint(example(jpeg(1)[:300]), CATEGORIES)
    assert "is not in the annotation file" in coco_records.complaint(
        good, coco_records.Categories((1, 2), (1, 2))
    )
    assert "not a tf.train.Example" in coco_records.complaint(b"\x01\x02 nonsense", CATEGORIES)


@pytest.mark.parametrize("edge, wrong", [(1.0005, False), (1.002, True), (-0.0005, False), (-0.002, True)])
def test_a_box_may_pass_the_edge_by_a_rounding(edge, wrong):
    record = tf.train.Example.FromString(example(jpeg(1)))
    name = "image/object/bbox/xmax" if edge > 0 else "image/object/bbox/xmin"
    record.features.feature[name].float_list.value[0] = edge
    complaint = coco_records.complaint(record.SerializeToString(), CATEGORIES)
    assert (complaint == "image 128: a box lies outside of the image") if wrong else complaint is None


def oracle(content: dict, pad: int = 3) -> dict[str, np.ndarray]:
    """Output arrays of a network that predicts the ground truth, crowds excepted, and `pad` rows of padding."""
    n, most = len(content["images"]), 6
    arrays = {
        "image_id": np.array([i["id"] for i in content["images"]] + [-1] * pad),
        "weight": np.array([1.0] * n + [0.0] * pad),
        "boxes": np.zeros([n + pad, most, 4], np.float32),
        "scores": np.zeros([n + pad, most], np.float32),
        "classes": np.zeros([n + pad, most], np.int32),
    }
    for row, image in enumerate(content["images"]):
        items = [a for a in content["annotations"] if a["image_id"] == image["id"] and not a["iscrowd"]]
        for column, item in enumerate(items):
            x, y, w, h = item["bbox"]
            corners = np.array([y, x, y + h, x + w]) / [*SIZE, *SIZE]
            arrays["boxes"][row, column] = corners
            arrays["scores"][row, column] = 0.9
            arrays["classes"][row, column] = IDS.index(item["category_id"]) + 1
    return arrays


def test_statistics_are_exactly_those_of_plain_pycocotools(tmp_path):
    content, rng = scene(20, seed=3), np.random.default_rng(4)
    annotations, _, _ = write(tmp_path, content)
    arrays = oracle(content)
    arrays["boxes"] += rng.normal(0, 0.03, arrays["boxes"].shape).astype(np.float32)
    arrays["scores"] *= rng.uniform(0.1, 1, arrays["scores"].shape).astype(np.float32)
    once = coco_eval.each_image_once(annotations, arrays)
    results = coco_eval.box_results(annotations, once, IDS)
    rows = [[r["image_id"], *r["bbox"], r["score"], r["category_id"]] for r in results]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(annotations)
        plain = COCOeval(truth, truth.loadRes(np.array(rows)), "bbox")
        plain.evaluate(), plain.accumulate(), plain.summarize()
    actual = coco_eval.average_precision(annotations, results, "bbox")
    assert 0 < actual["AP"] < 1
    assert list(actual.values())[:12] == plain.stats.tolist()
    by_class = coco_eval.by_class(actual)
    assert len(by_class) > 1 and np.mean([*by_class.values()]) == pytest.approx(actual["AP"])
    # As pycocotools of it alone.
    for number, value in zip(plain.params.catIds, by_class.values(), strict=True):
        plain.params.catIds = [number]
        with contextlib.redirect_stdout(io.StringIO()):
            plain.evaluate(), plain.accumulate(), plain.summarize()
        assert plain.stats[0] == pytest.approx(value)


def test_no_detections_at_all_is_zero(tmp_path):
    annotations, _, _ = write(tmp_path, scene())
    arrays = oracle(scene())
    arrays["scores"][:] = 0
    assert coco_eval.box_results(annotations, coco_eval.each_image_once(annotations, arrays), IDS) == []
    scores = coco_eval.average_precision(annotations, [], "bbox")
    assert scores["AP"] == 0 and set(coco_eval.by_class(scores).values()) == {0}


def test_sizes_that_no_object_has_are_minus_one_without_detections_too(tmp_path):
    content = scene()
    content["annotations"] = [a for a in content["annotations"] if a["area"] < 32**2]
    annotations, _, _ = write(tmp_path, content)
    first = content["annotations"][0]
    wrong = {
        "image_id": first["image_id"],
        "category_id": first["category_id"],
        "bbox": [0, 0, 1, 1],
        "score": 0.1,
    }
    some, none = (coco_eval.average_precision(annotations, results, "bbox") for results in ([wrong], []))
    assert none == some and none["AP_small"] == 0 and none["AP_large"] == none["AR_large"] == -1


@pytest.mark.parametrize(
    ("name", "row", "value", "message"),
    [
        ("weight", 4, 0, "11 images seen, 11 of them different, 1 missing, 0 not in"),
        ("image_id", 4, 100, "12 images seen, 11 of them different, 1 missing"),
        ("image_id", 4, 5, "1 missing, 1 not in"),
        ("weight", -1, 1, "13 images seen"),
    ],
)
def test_each_image_counts_once(tmp_path, name, row, value, message):
    annotations, _, _ = write(tmp_path, scene())
    arrays = oracle(scene())
    arrays[name][row] = value
    with pytest.raises(ValueError, match=message):
        coco_eval.each_image_once(annotations, arrays)
