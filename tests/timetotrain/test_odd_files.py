"""Tests files as people have them: `timetotrain data` and `predict` read them alike, and a report says how."""

import dataclasses
import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from common.config import data_description
from common.data import pictures, tfrecords, videos
from common.data.report import NAME
from common.distributed.replicas.base import Shard
from common.export import inference
from common.train.serving import Reading
from tests import custom_sources
from tests.timetotrain.converting import convert, reported


def records(out, pattern="*-of-*"):
    """{file name of a picture or video: its record's features}."""
    actual = {}
    for path in sorted(out.glob(pattern)):
        for record in tfrecords.read(path) if not path.name.endswith(".npz") else ():
            features = tf.train.Example.FromString(record).features.feature
            name = features["image/filename"] if "image/filename" in features else features["video/name"]
            actual[name.bytes_list.value[0].decode().rpartition("/")[2]] = features
    return actual


SOURCES = {
    "resnet": custom_sources.photographs,
    "ssd": custom_sources.voc,
    "maskrcnn": custom_sources.objects,
    "tsm_kinetics": custom_sources.clips,
}


# -------------------------------------------------------------------------------------------------- the report


def test_a_report_says_what_was_taken_left_out_skipped_changed_and_is_suspicious(tmp_path, capsys):
    source, out = custom_sources.photographs(tmp_path / "photos"), tmp_path / "out"
    custom_sources.odd_pictures(source / "red", 40)
    shutil.copy(source / "blue/blue0.jpg", source / "blue/copy.jpg")
    for i in range(1, 10):
        shutil.copy(source / "blue/blue0.jpg", source / f"blue/copy{i}.jpg")
    (source / "red/empty.jpg").write_bytes(b"")
    (source / "red/notes.txt").write_text("about the pictures")
    (source / "red/.hidden.jpg").write_bytes(b"")
    assert convert("resnet", source, out, "--no_page") == 0
    report, message = reported(out), capsys.readouterr().err
    assert report["taken"] == {"pictures to train on": 63, "pictures to evaluate on": 7}
    assert report["left_out"]["no whole picture"]["count"] == 1
    assert report["skipped"]["no picture (.txt)"]["example"].endswith("notes.txt")
    assert {f"picture: {what}" for what in (pictures.TURNED, pictures.ON_WHITE)} <= set(report["changed"])
    assert "the same picture to train and to evaluate on" in report["suspicious"]
    for words in (
        "left out: ",
        "skipped: no picture (.txt): 1",
        "changed: picture: turned",
        "suspicious: the same",
    ):
        assert words in message
    assert "hidden" not in message


def test_strict_ends_with_what_is_suspicious_and_no_run_takes_the_data(tmp_path, capsys):
    source, out = custom_sources.photographs(tmp_path / "photos", 4), tmp_path / "out"
    assert convert("resnet", source, out, "--no_page", "--strict") == 2
    assert "--strict: suspicious: class with fewer than 5 pictures" in capsys.readouterr().err
    assert data_description.unfinished(out) == "resnet"
    assert convert("resnet", source, out, "--no_page") == 0


@pytest.mark.parametrize("benchmark", ["ssd", "maskrcnn"])
@pytest.mark.parametrize("bad", [True, False])
def test_data_without_an_object_end_with_the_reasons_counted(tmp_path, capsys, benchmark, bad):
    source = custom_sources.objects(tmp_path / "pictures", 6)
    content = json.loads((source / "labels.json").read_text())
    content["annotations"] = [item | {"bbox": [1, 1, 0, 5]} for item in content["annotations"]] if bad else []
    (source / "labels.json").write_text(json.dumps(content))
    assert convert(benchmark, source, tmp_path / "out", "--no_page") == 2
    message = capsys.readouterr().err
    assert "no usable object to train on: " in message and not (tmp_path / "out").exists()
    assert ("its box has no area within the picture: 9" in message) == bad
    assert message.count("left out: ") == (9 if bad else 0)


@pytest.mark.parametrize("benchmark", SOURCES)
def test_two_conversions_of_one_folder_give_the_same_bytes(tmp_path, benchmark):
    source = SOURCES[benchmark](tmp_path / "source")
    if benchmark == "resnet":
        custom_sources.odd_pictures(source / "red", 20)
    outs = [tmp_path / name / "out" for name in "ab"]
    for out in outs:  # A page of pictures takes seconds; that of clips stands for all.
        assert convert(benchmark, source, out, *["--no_page"] * (benchmark != "tsm_kinetics")) == 0
    names = [sorted(path.name for path in out.iterdir()) for out in outs]
    assert names[0] == names[1] and NAME in names[0]
    for name in names[0]:
        assert (outs[0] / name).read_bytes() == (outs[1] / name).read_bytes(), name


# ------------------------------------------------------------------------------------- training and predicting


def fed(kind, reading, files):
    """{file name: what `predict` gives the network for it}, with a network that answers nothing."""
    inputs = []

    def call(values):
        inputs.extend(values)
        rows = len(values)
        names = {"top_names": np.full([rows, 1], b"x", object), "top_scores": np.ones([rows, 1], np.float32)}
        boxes = {
            "boxes": np.zeros([rows, 1, 4]),
            "scores": np.zeros([rows, 1]),
            "classes": np.zeros([rows, 1], int),
        }
        return names if kind == "classes" else boxes

    network = inference.Network(kind, call, (), None, reading=reading)
    paths, _ = inference.files_in(network, [str(files)])
    answers = list(inference.ask(network, paths))
    assert not [answer for answer in answers if "error" in answer]
    return dict(zip((name.rpartition("/")[2] for name in paths), inputs, strict=True))


def test_predict_sees_two_hundred_odd_photographs_as_training_does(tmp_path):
    """Bit for bit, up to the network: the files that are fed, and the crops that an evaluation and `predict` cut."""
    from resnet import input as reader
    from resnet.presets import PRESETS

    source, out = custom_sources.photographs(tmp_path / "photos", 2), tmp_path / "out"
    custom_sources.odd_pictures(source / "red", 200)
    assert convert("resnet", source, out, "--no_page", "--eval_part", "0.9") == 0
    assert reported(out)["left_out"] == {}
    trained_on, requests = records(out), fed("classes", Reading(png=False), source)
    assert len(requests) == 204 and trained_on.keys() == requests.keys()
    for name, features in trained_on.items():
        assert features["image/encoded"].bytes_list.value[0] == requests[name], name
    config = data_description.filled(PRESETS["cpu-photos"], out)
    config = dataclasses.replace(
        config, eval_batch_size=64, data=dataclasses.replace(config.data, cache="none")
    )
    cut = [
        image.tobytes()
        for batch in reader.eval_input(config, out, Shard(0, 1), 64)
        for image, label in zip(batch["image"].numpy(), batch["label"].numpy())
        if label >= 0
    ]
    held_out = records(out, "validation-*")
    ours = [reader.central_crop(tf.constant(requests[name]), config).numpy().tobytes() for name in held_out]
    assert sorted(cut) == sorted(ours) and len(cut) > 100


def test_an_export_says_how_its_records_were_read(tmp_path):
    for settings, right in (({}, Reading()), ({"png": False, "short_side": 96}, Reading(False, 96))):
        assert inference._reading({"reading": settings}, tmp_path) == right
    for bad in ({"png": 1}, {"short_side": 0}, {"short_side": 1e9}, {"other": 1}, [], "x"):
        with pytest.raises(inference.UserError, match="export it again"):
            inference._reading({"reading": bad}, tmp_path)


@pytest.mark.parametrize("benchmark", ["ssd", "maskrcnn"])
def test_predict_sees_odd_pictures_with_boxes_as_training_does(tmp_path, benchmark):
    source, out = tmp_path / "source", tmp_path / "out"
    names = custom_sources.odd_pictures(source / "images", 60)
    images = [{"id": i, "file_name": path.name} for i, path in enumerate(names)]
    shape = [[4, 4, 20, 4, 20, 20, 4, 20]]
    items = [
        {"image_id": i, "category_id": 1, "bbox": [4, 4, 16, 16], "segmentation": shape} for i in range(60)
    ]
    content = {"images": images, "annotations": items, "categories": [{"id": 1, "name": "x"}]}
    (source / "labels.json").write_text(json.dumps(content))
    assert convert(benchmark, source, out, "--no_page") == 0
    trained_on, requests = records(out, "*.tfrecord"), fed("objects", Reading(), source / "images")
    assert len(requests) == 60 and trained_on.keys() == requests.keys()
    for name, features in trained_on.items():
        assert features["image/encoded"].bytes_list.value[0] == requests[name], name


def odd_clips(folder):
    """Videos of several containers, larger than the records' frames, one turned and one mirrored."""
    rng = np.random.default_rng(7)
    for name in ("left", "right"):
        (folder / name).mkdir(parents=True)
        for i, (suffix, codec) in enumerate(
            (
                (".mp4", "mpeg4"),
                (".mpg", "mpeg2video"),
                (".flv", "flv"),
                (".wmv", "wmv2"),
                (".mkv", "mpeg4"),
                (".odd", "mpeg4"),
            )
        ):
            frames = np.kron(rng.integers(0, 255, (12, 6, 8, 3)), np.ones((1, 16, 16, 1))).astype(np.uint8)
            path = folder / name / f"{name}{i}{suffix}"
            if suffix == ".odd":
                videos.write(path.with_suffix(".avi"), frames, codec=codec)
                path.with_suffix(".avi").rename(path)
            else:
                videos.write(path, frames, codec=codec)
        turned = ((0, 1, -1, 0), (-1, 0, 0, 1))[name == "right"]
        custom_sources.with_matrix(folder / name / f"{name}0.mp4", folder / name / f"{name}9.mp4", *turned)
    return folder


def test_predict_sees_videos_as_training_does(tmp_path):
    """Every container and the turned ones, scaled to the short side of the data."""
    source, out = odd_clips(tmp_path / "clips"), tmp_path / "out"
    assert convert("tsm_kinetics", source, out, "--short_side", "48", "--no_page") == 0
    report = reported(out)
    assert not report["left_out"] and not report["skipped"]
    assert report["changed"][videos.TURNED]["count"] == 2
    description = data_description.read(out)
    short = description.fields["data.stored_short_side"]
    assert short == 48
    trained_on = records(out)
    assert len(trained_on) == 14
    names = []

    def call(values):
        names.append([bytes(value) for value in values])
        return {"top_names": np.full([1, 1], b"x", object), "top_scores": np.ones([1, 1], np.float32)}

    network = inference.Network("video", call, (), None, reading=Reading(short_side=short))
    for name, features in trained_on.items():
        names.clear()
        (answer,) = inference.ask(network, [str(next(source.glob(f"*/{name}")))])
        assert "error" not in answer and names[0] == list(features["video/frames"].bytes_list.value), name


def test_predict_takes_a_folder_of_frames_and_names_a_text_without_lines_or_with_markup(tmp_path):
    network = inference.Network("video", None, (), None)
    for name, place in (("clip", tmp_path), ("mask", tmp_path / "mask")):
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("RGB", (20, 10)).save(tmp_path / f"{name}/{number}.jpg")
        assert inference.files_in(network, [str(place)]) == ([str(tmp_path / name)], [])
    network = inference.Network("translation", None, (), None)
    for text, message in ((" \n", "no text in it"), ("<tmx>\n", "XML or HTML")):
        (tmp_path / "a.txt").write_text(text)
        (answer,) = inference.ask(network, [str(tmp_path / "a.txt")])
        assert message in answer["error"]


def test_predict_answers_around_a_bad_file_and_ends_with_an_error(tmp_path, monkeypatch, capsys):
    from timetotrain import cli

    def call(values):
        rows = len(values)
        return {"top_names": np.full([rows, 1], b"x", object), "top_scores": np.ones([rows, 1], np.float32)}

    monkeypatch.setattr(inference, "load", lambda *_: inference.Network("classes", call, (), None))
    Image.new("RGB", (20, 10), "red").save(tmp_path / "a.bmp")
    (tmp_path / "b.jpg").write_bytes(b"no picture")
    (tmp_path / "c.txt").write_text("no picture")
    assert cli.main(["predict", "model", str(tmp_path), "--pictures", str(tmp_path / "drawn")]) == 2
    output = capsys.readouterr()
    (answer,) = map(json.loads, output.out.splitlines())
    assert answer["file"].endswith("a.bmp") and (tmp_path / "drawn/a.png").is_file()
    lines = [line for line in output.err.splitlines() if line.startswith(("skipped", "left out", "error"))]
    assert "c.txt" in lines[0] and "b.jpg: no picture" in lines[1] and "1 input left out" in lines[2]


# ----------------------------------------------------------------------------------------------- folders as people make


def test_links_pipes_and_files_beside_the_classes_are_said_and_a_link_upwards_is_not_followed(tmp_path):
    source, out = custom_sources.photographs(tmp_path / "photos"), tmp_path / "out"
    os.symlink(source, source / "red/up")
    os.symlink("/nowhere.jpg", source / "red/gone.jpg")
    os.mkfifo(source / "blue/pipe.jpg")
    shutil.copy(source / "red/red0.jpg", source / "stray.jpg")
    assert convert("resnet", source, out, "--no_page") == 0
    report = reported(out)
    assert report["taken"] == {"pictures to train on": 18, "pictures to evaluate on": 2}
    assert report["left_out"]["a link to nothing"]["example"].endswith("gone.jpg")
    assert report["left_out"]["not a regular file"]["example"].endswith("pipe.jpg")
    assert report["skipped"]["in no class's folder"]["example"].endswith("stray.jpg")


@pytest.mark.parametrize("benchmark", ["resnet", "tsm_kinetics"])
def test_examples_of_two_classes_and_classes_of_one_name_are_suspicious(tmp_path, benchmark):
    source, out = SOURCES[benchmark](tmp_path / "source"), tmp_path / "out"
    first, second = sorted(source.iterdir())
    shutil.copytree(first, source / first.name.title())
    path = next(first.iterdir())
    shutil.copy(path, second / f"other{path.suffix}")
    assert convert(benchmark, source, out, "--no_page") == 0
    suspicious = reported(out)["suspicious"]
    what = "picture" if benchmark == "resnet" else "video"
    assert suspicious[f"the same {what} in two classes"]["count"] > 1
    assert suspicious["classes that differ only in upper and lower case"]["count"] == 1


def test_a_folder_around_the_classes_and_parts_inside_of_them_are_said(tmp_path, capsys):
    source, out = custom_sources.photographs(tmp_path / "photos/inner").parent, tmp_path / "out"
    assert convert("resnet", source, out, "--no_page") == 2
    assert f"name {source}/inner if its folders are the classes" in capsys.readouterr().err
    one = shutil.copytree(source / "inner/red", tmp_path / "one/red").parent
    (one / "labels.csv").write_text("file;class\n")
    assert convert("resnet", one, out, "--no_page") == 2
    assert f"name {one}/labels.csv if it lists them" in capsys.readouterr().err
    for name, part in [(n, p) for n in ("red", "blue") for p in ("train", "val")]:
        shutil.copytree(source / "inner" / name, tmp_path / "other" / name / part)
    assert convert("resnet", tmp_path / "other", out, "--no_page") == 0
    assert (
        "the same folders in every class's folder, read as parts of the class" in reported(out)["suspicious"]
    )


def test_names_without_classes_and_two_names_of_a_class_are_said(tmp_path, capsys):
    source, out = custom_sources.photographs(tmp_path / "photos"), tmp_path / "out"
    (source / "classes.txt").write_text("red\nblue\n")
    assert convert("resnet", source, out, "--no_page") == 0
    assert reported(out)["skipped"]["a list that does not name every class, not read"]["count"] == 1
    (source / "classes.txt").write_text("red Rouge\nred Rot\n")
    assert convert("resnet", source, tmp_path / "other", "--no_page") == 2
    assert "line 2: red is Rot, above Rouge; give a class one name" in capsys.readouterr().err


def test_a_file_in_place_of_a_folder_and_a_video_of_one_frame_are_said(tmp_path, capsys):
    source, out = custom_sources.clips(tmp_path / "clips"), tmp_path / "out"
    assert convert("tsm_kinetics", source / "left/left0.mp4", out) == 2
    assert "left0.mp4: a file; give the folder of your files" in capsys.readouterr().err
    videos.write(source / "left/one.mp4", np.zeros((1, 32, 32, 3), np.uint8))
    assert convert("tsm_kinetics", source, out, "--no_page") == 0
    assert reported(out)["suspicious"]["a video of one frame"]["example"].endswith("one.mp4")


def test_objects_that_are_all_crowds_are_nothing_to_train_on(tmp_path, capsys):
    source = custom_sources.objects(tmp_path / "pictures", 6)
    content = json.loads((source / "labels.json").read_text())
    content["annotations"] = [item | {"iscrowd": 1} for item in content["annotations"]]
    (source / "labels.json").write_text(json.dumps(content))
    assert convert("ssd", source, tmp_path / "out", "--no_page") == 2
    assert "no usable object to train on: every one is a crowd" in capsys.readouterr().err


@pytest.mark.parametrize("benchmark", sorted(SOURCES))
def test_a_conversion_does_not_go_on_with_changed_files(tmp_path, capsys, benchmark):
    """Files of the same names replace the first ones after an interruption."""
    source, out = SOURCES[benchmark](tmp_path / "in"), tmp_path / "out"
    assert convert(benchmark, source, out, "--no_page") == 0
    (out / data_description.NAME).unlink()
    data_description.begin(out, benchmark)
    shard = sorted(out.glob("train-*-of-*"))[-1]
    shard.unlink()
    assert convert(benchmark, source, out, "--no_page") == 0  # Unchanged files: it goes on.
    data_description.begin(out, benchmark)
    shard.unlink()
    for path in source.rglob("*"):
        if path.suffix in (".jpg", ".png"):
            with Image.open(path) as image:
                inverted = ImageOps.invert(image.convert("RGB"))
            inverted.save(path)
        elif path.suffix in (".mp4", ".avi"):
            content = bytearray(path.read_bytes())
            content[-20] ^= 1
            path.write_bytes(content)
    assert convert(benchmark, source, out, "--no_page") == 2
    assert "of files that have changed" in capsys.readouterr().err


def test_no_permission_is_said_as_such(tmp_path, capsys, monkeypatch):
    source = custom_sources.photographs(tmp_path / "photos")
    walk = os.walk

    def denied(top, onerror=None, **more):
        if str(top).endswith("blue"):
            onerror(PermissionError(13, "Permission denied", str(top)))
            return iter(())
        return walk(top, onerror=onerror, **more)

    monkeypatch.setattr(os, "walk", denied)
    convert("resnet", source, tmp_path / "out", "--no_page")
    assert "no permission to read the folder" in capsys.readouterr().err
