"""Tests `timetotrain data`: folders of one's own become records that a run reads without a repeated flag."""

import json

import numpy as np
import pytest
import tensorflow as tf

from common.config import benchmarks, data_description
from common.data import baselines, folder_conversion, tfrecords
from common.data.bucketing import least_padding
from common.data.report import Report
from common.detection import picture_files
from common.errors import UserError
from resnet import custom_data as resnet_data
from resnet import images
from tests import custom_sources
from tests.benchmarks import check_all
from tests.timetotrain.converting import convert, needs_text


def checked(benchmark, out):
    """The configuration that a run has of the data, after the run's own checks of the data."""
    description = data_description.read(out)
    presets = benchmarks.module(benchmark, "presets")
    preset = presets.PRESETS[benchmarks.module(benchmark, "custom_data").PREVIEW]
    config = data_description.filled(preset, out)
    check_all(benchmarks.module(benchmark, "task").Task(config, str(out)))
    return config, description


def test_photographs(tmp_path, capsys):
    source, out = custom_sources.photographs(tmp_path / "photos"), tmp_path / "out"
    (source / "red" / "cut.jpg").write_bytes((source / "red" / "red0.jpg").read_bytes()[:400])
    (source / "green").mkdir()
    assert convert("resnet", source, out) == 0
    config, description = checked("resnet", out)
    assert description.labels == ("blue", "red") and description.defaults == {}
    assert (config.num_classes, config.num_train_examples, config.num_eval_examples) == (2, 18, 2)
    empty, cut = description.broken
    assert "cut.jpg: no whole picture" in cut and empty.endswith("green: no pictures in it")
    output = capsys.readouterr()
    assert "cut.jpg" in output.err and "18 for training, 2 for evaluation, 2 classes" in output.out
    page = (out / "data.html").read_text()
    assert "cut.jpg" in page and "train: red" in page and page.count("data:image/png") == 18
    assert "http" not in page  # Nothing is loaded from elsewhere.


def test_labels_in_the_records_are_the_description_s(tmp_path, monkeypatch):
    monkeypatch.setattr(baselines, "sided", lambda *_: True)
    source, out = custom_sources.photographs(tmp_path / "photos", 4), tmp_path / "out"
    assert convert("resnet", source, out, "--no_page") == 0
    labels, defaults = data_description.read(out).labels, data_description.read(out).defaults
    assert defaults == {"data.flip": False}
    for path in sorted(out.glob("train-*")):
        for record in tfrecords.read(path):
            features = tf.train.Example.FromString(record).features.feature
            name = features["image/filename"].bytes_list.value[0].decode()
            assert name.startswith(labels[features["image/class/label"].int64_list.value[0] - 1])


@pytest.mark.parametrize("benchmark", ["ssd", "maskrcnn"])
def test_pictures_with_cocos_annotations(tmp_path, benchmark):
    source, out = custom_sources.objects(tmp_path / "pictures"), tmp_path / "out"
    content = json.loads((source / "labels.json").read_text())
    content["annotations"].append(
        {"image_id": 0, "category_id": 0, "bbox": [5, 5, 0, 9], "segmentation": [[0] * 6]}
    )
    content["annotations"].append({"image_id": 77, "category_id": 0, "bbox": [5, 5, 3, 9]})
    (source / "labels.json").write_text(json.dumps(content))
    (source / "images" / "3.png").write_bytes(b"no picture")
    assert convert(benchmark, source, out, "--no_page") == 0
    config, description = checked(benchmark, out)
    assert description.labels == ("background", "blue", "red") and config.num_classes == 3
    assert config.num_train_examples + config.num_eval_examples == 9
    broken = "\n".join(description.broken)
    assert "3.png: no whole picture" in broken and "no area" in broken and "unknown image 77" in broken
    annotations = json.loads((out / config.data.annotations).read_text())
    assert [category["id"] for category in annotations["categories"]] == [1, 2]


def test_boxes_without_masks_are_for_ssd_and_no_picture_is_read(tmp_path, capsys, monkeypatch):
    source = custom_sources.objects(tmp_path / "pictures")
    content = json.loads((source / "labels.json").read_text())
    for item in content["annotations"]:
        item["segmentation"] = []
    (source / "labels.json").write_text(json.dumps(content))
    monkeypatch.setattr("common.detection.coco_tidy.tidy", None)
    assert convert("maskrcnn", source, tmp_path / "out") == 2
    assert f"for boxes: timetotrain data ssd {source} OUT" in capsys.readouterr().err


def test_perfect_detections_of_two_own_classes_score_one(tmp_path):
    source, out = custom_sources.objects(tmp_path / "pictures", 20), tmp_path / "out"
    assert convert("ssd", source, out, "--no_page", "--eval_part", "0.5") == 0
    config, _ = checked("ssd", out)
    content = json.loads((out / config.data.annotations).read_text())
    count, most = len(content["images"]), config.sizes.detections
    arrays = {
        "image_id": np.array([image["id"] for image in content["images"]]),
        "weight": np.ones(count, np.float32),
        "boxes": np.zeros((count, most, 4), np.float32),
        "scores": np.zeros((count, most), np.float32),
        "classes": np.zeros((count, most), np.int32),
    }
    sides = {image["id"]: (image["height"], image["width"]) for image in content["images"]}
    for row, number in enumerate(arrays["image_id"]):
        mine = [item for item in content["annotations"] if item["image_id"] == number]
        for place, item in enumerate(mine):
            (x, y, w, h), (height, width) = item["bbox"], sides[number]
            arrays["boxes"][row, place] = y / height, x / width, (y + h) / height, (x + w) / width
            arrays["scores"][row, place], arrays["classes"][row, place] = 0.9, item["category_id"]
    task = benchmarks.module("ssd", "task").Task(config, str(out))
    assert task.quality({}, arrays).value == pytest.approx(1.0)
    arrays["classes"] = np.where(arrays["classes"] > 0, 3 - arrays["classes"], 0)  # The other class.
    assert task.quality({}, arrays).value < 0.1


def test_a_picture_is_the_one_beside_its_annotation(tmp_path):
    """Two folders have pictures of one name; masks have those of the pictures; a third pair cannot be told apart."""
    pictures = tmp_path / "JPEGImages", tmp_path / "SegmentationClass", tmp_path / "cats", tmp_path / "dogs"
    for folder in (*pictures, tmp_path / "Annotations"):
        folder.mkdir()
    text = (
        "<annotation><object><name>a</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax>"
    )
    for name in (
        "cats/1.jpg",
        "dogs/1.jpg",
        "JPEGImages/2.jpg",
        "SegmentationClass/2.png",
        "cats/3.jpg",
        "dogs/3.jpg",
    ):
        (tmp_path / name).touch()
    for name in ("cats/1.xml", "dogs/1.xml", "Annotations/2.xml", "Annotations/3.xml"):
        (tmp_path / name).write_text(text + "</bndbox></object></annotation>")
    report = Report()
    content = picture_files.voc(tmp_path, report).content
    assert [image["file_name"] for image in content["images"]] == [
        "JPEGImages/2.jpg",
        "cats/1.jpg",
        "dogs/1.jpg",
    ]
    (broken,) = report.lines
    assert "3.xml: 3 fits" in broken and "cats/3.jpg and" in broken


def test_pascal_vocs_boxes_are_cocos(tmp_path):
    folder, coco = custom_sources.voc(tmp_path / "voc"), custom_sources.objects(tmp_path / "coco")
    for source, out in ((folder, "a"), (coco, "b")):
        assert convert("ssd", source, tmp_path / out, "--no_page") == 0
    checked("ssd", tmp_path / "a")
    boxes = []
    for out in ("a", "b"):
        actual = []
        for split in ("train", "val"):
            content = json.loads((tmp_path / out / f"instances_{split}2017.json").read_text())
            stems = {image["id"]: image["file_name"].split("/")[-1][0] for image in content["images"]}
            actual += [(stems[i["image_id"]], i["category_id"], i["bbox"]) for i in content["annotations"]]
        boxes.append(sorted(actual))
    assert boxes[0] == boxes[1]


@pytest.mark.parametrize("benchmark", ["transformer", "gnmt"])
@pytest.mark.parametrize("tabs", [False, True])
def test_sentence_pairs(tmp_path, benchmark, tabs):
    needs_text(benchmark)
    sources = custom_sources.sentences(tmp_path / "text")
    for path, line in zip(sources, ("\n", "nothing\n")):
        path.write_text(path.read_text() + line)
    if tabs:
        lines = zip(*(path.read_text().split("\n") for path in sources))
        sources = [tmp_path / "pairs.tsv"]
        sources[0].write_text("".join("\t".join(pair) + "\n" for pair in lines if any(pair)))
    out = tmp_path / "out"
    assert convert(benchmark, *sources, out, "--vocabulary_size", 200) == 0
    config, description = checked(benchmark, out)
    assert description.split == {"train": 285, "eval": 15}
    assert "line 301: a side is empty" in description.broken[0]
    if benchmark == "gnmt":
        corpus = benchmarks.module("gnmt", "corpus").load(config, out)
        lengths = np.maximum(corpus.source.lengths, corpus.target.lengths + 1)
        assert list(config.bucket_limits) == least_padding(lengths, 5) and len(set(lengths)) > 5
    trained = set((out / "eval.source").read_text().splitlines())
    assert len(trained) == config.num_eval_examples == 15
    assert "<code>" in (out / "data.html").read_text()


def with_a_long_pair(folder, words):
    """Sentences and five evaluation pairs, one of them of that many words: the first words of `convert`'s line."""
    sources, held_out = (
        custom_sources.sentences(folder / "text"),
        custom_sources.sentences(folder / "held", 5),
    )
    for path in held_out:
        path.write_text(path.read_text() + " ".join(["bad"] * words) + "\n")
    return [*sources, folder / "out", "--eval", *held_out, "--vocabulary_size", 200, "--no_page"]


def test_a_long_sentence_to_evaluate_on_is_one_line(tmp_path, capsys):
    needs_text("transformer")
    words = with_a_long_pair(tmp_path, 200)
    assert convert("transformer", *words) == 2
    message = capsys.readouterr().err
    assert "has 401 subwords, a packed row 128: 'bad bad " in message and "give --max_length=401" in message
    assert convert("transformer", *words, "--max_length", 401) == 0


def test_a_search_has_room_for_the_longest_reference(tmp_path):
    needs_text("gnmt")
    assert convert("gnmt", *with_a_long_pair(tmp_path, 70)) == 0
    config, _ = checked("gnmt", tmp_path / "out")
    assert config.decode.target_length >= 80 and config.decode.source_length >= 72


def test_clips(tmp_path):
    source, out = custom_sources.clips(tmp_path / "clips"), tmp_path / "out"
    (source / "left" / "cut.mp4").write_bytes(b"no video")
    assert convert("tsm_kinetics", source, out) == 0
    config, description = checked("tsm_kinetics", out)
    assert description.labels == ("left", "right")
    assert (config.num_classes, config.num_train_examples, config.num_eval_examples) == (2, 10, 2)
    assert "cut.mp4" in description.broken[0]
    assert "train: left" in (out / "data.html").read_text()


def test_an_interrupted_conversion_is_refused_by_a_run_and_finished_by_the_same_command(
    tmp_path, monkeypatch
):
    source, out = custom_sources.photographs(tmp_path / "photos"), tmp_path / "out"
    paths, write = [], tfrecords.write

    def interrupted(path, records):
        if len(paths) == 3:
            raise KeyboardInterrupt
        paths.append(path)
        return write(path, records)

    monkeypatch.setattr(tfrecords, "write", interrupted)
    assert convert("resnet", source, out, "--no_page") == 130
    with pytest.raises(UserError, match="has not finished"):
        data_description.read(out)
    monkeypatch.setattr(tfrecords, "write", write)
    times = [path.stat().st_mtime_ns for path in paths]
    assert convert("resnet", source, out, "--no_page") == 0
    assert [path.stat().st_mtime_ns for path in paths] == times
    checked("resnet", out)


def test_interrupted_text_is_converted_again(tmp_path, monkeypatch):
    needs_text("gnmt")
    sources, out = custom_sources.sentences(tmp_path / "text"), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(folder_conversion, "finish", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        assert convert("gnmt", *sources, out, "--no_page", "--vocabulary_size", 200) == 130
    assert convert("gnmt", *sources, out, "--no_page", "--vocabulary_size", 200) == 0
    checked("gnmt", out)


def _nothing(folder):
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    "benchmark, make, words, message",
    [
        ("resnett", custom_sources.photographs, [], "did you mean resnet"),
        ("resnet", _nothing, [], "no pictures"),
        ("resnet", custom_sources.photographs, ["--eval_part", "1.5"], "--eval_part=1.5"),
        ("ssd", _nothing, [], "no annotations; expected COCO's JSON"),
        ("ssd", custom_sources.objects, ["--annotations", "/nowhere.json"], "/nowhere.json: No such file"),
        ("tsm_kinetics", _nothing, [], "no videos"),
        ("gnmt", _nothing, [], "a folder; give two text files"),
    ],
)
def test_bad_input_is_one_line_and_status_2(tmp_path, capsys, benchmark, make, words, message):
    assert convert(benchmark, make(tmp_path / "source"), tmp_path / "out", *words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len([line for line in lines if line.startswith("error: ")]) == 1 and message in lines[-1]


def test_a_folder_of_other_files_is_left_as_it_is(tmp_path):
    source, out = custom_sources.photographs(tmp_path / "photos", 4), tmp_path / "out"
    out.mkdir()
    (out / "letter.txt").write_text("dear")
    assert convert("resnet", source, out, "--no_page") == 2
    assert [path.name for path in out.iterdir()] == ["letter.txt"]


def test_a_split_is_stratified_and_a_function_of_the_seed():
    classes = ["a"] * 50 + ["b"] * 10 + ["c"] * 2 + ["d"]
    held_out = folder_conversion.divide(classes, 0.1, 3)
    assert [int(held_out[np.array(classes) == name].sum()) for name in "abcd"] == [5, 1, 1, 0]
    assert np.array_equal(held_out, folder_conversion.divide(classes, 0.1, 3))
    assert not np.array_equal(held_out, folder_conversion.divide(classes, 0.1, 4))


@pytest.mark.parametrize(
    "examples, size, count",
    [(1, 100, 1), (5, 100, 5), (100, 100, 8), (10**6, 128 << 30, 1024), (1000, 2 << 30, 16)],
)
def test_shards_are_neither_empty_nor_too_large(examples, size, count):
    assert folder_conversion.shard_count(examples, size) == count


@pytest.mark.parametrize("groups, fits", [("xxyyzz", True), ("xxxyyy", False), ("xxxxxx", False)])
def test_a_class_of_one_group_alone_is_explained(groups, fits):
    if fits:
        held_out = folder_conversion.divide("aaaabb", 0.1, 0, list(groups))
        assert 0 < held_out.sum() < 6 and all(held_out[:-1:2] == held_out[1::2])
        return
    with pytest.raises(UserError, match="each class is one group.* rename the list's column of groups"):
        folder_conversion.divide("aaabbb", 0.1, 0, list(groups))


def test_only_the_folders_of_listed_pictures_are_searched_for_others(tmp_path):
    for name in ("a/1.png", "a/2.png", "b/3.png", "a/deep/4.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "list.csv").write_text("path,label\na/1.png,x\n.,y\n")
    rows, report = images.listed(tmp_path / "list.csv", Report()), Report()
    resnet_data._report_unlisted(tmp_path / "list.csv", rows[:1], report)
    assert report.summaries("skipped") == [
        f"a picture that the list does not name: 1, such as {tmp_path}/a/2.png"
    ]


def test_show_writes_the_page_alone_with_what_was_chosen(tmp_path, capsys):
    source = custom_sources.clips(tmp_path / "clips")
    assert convert("tsm_kinetics", source, tmp_path / "out", "--show") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clips", "out.html"]
    page = (tmp_path / "out.html").read_text()
    assert page.count("<figure>") > 17 and "split, chosen" in page
    message = capsys.readouterr().err
    assert "chosen: split: 0.1 of each class held out, by the converter (--eval_part, --seed)" in message
