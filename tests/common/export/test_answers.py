"""Tests answers about files: plain values, pictures, videos by time, texts, and one line for what is not a picture."""

import gzip
import io
import json

import numpy as np
import pytest
from PIL import Image

from common.data import videos
from common.export import inference, pictures
from common.export import videos as video_answers
from common.train.serving import Codec

av = pytest.importorskip("av")


def detector(values):
    """Says of every picture: a cat in a box, with a disc as its mask; a second detection below the least score."""
    rows = len(values)
    y, x = np.mgrid[-1:1:28j, -1:1:28j]
    return {
        "boxes": np.tile(np.array([[10, 20, 50, 100], [0, 0, 9, 9]], np.float32), [rows, 1, 1]),
        "scores": np.tile(np.array([0.9, 0.1], np.float32), [rows, 1]),
        "classes": np.tile(np.array([1, 1], np.int32), [rows, 1]),
        "names": np.tile(np.array([b"cat", b"cat"], object), [rows, 1]),
        "masks": np.tile((x * x + y * y < 0.8).astype(np.float32), [rows, 2, 1, 1]),
    }


def classifier(values):
    """Says of every picture or video: a dog, less so a cat."""
    rows = 1 if len(values) > 4 else len(values)
    return {
        "top_names": np.tile(np.array([b"dog", b"cat"], object), [rows, 1]),
        "top_scores": np.tile(np.array([0.75, 0.25], np.float32), [rows, 1]),
    }


def network(kind, call, codec=None):
    return inference.Network(kind, call, (), codec)


@pytest.fixture
def photo(tmp_path):
    shade = np.linspace(0, 255, 120 * 60 * 3).reshape(60, 120, 3).astype(np.uint8)
    Image.fromarray(shade).save(tmp_path / "photo.jpg")
    return str(tmp_path / "photo.jpg")


def test_objects_have_names_boxes_and_masks_over_the_picture(photo, tmp_path):
    (answer,) = inference.ask(network("objects", detector), [photo])
    (cat,) = answer["objects"]
    assert (cat["name"], cat["score"], cat["box"]) == ("cat", 0.9, [10, 20, 50, 100])
    (plain,) = pictures.outlines(answer)
    assert plain["mask"]["size"] == [60, 120]
    from pycocotools import mask

    inside = mask.decode(plain["mask"])
    rows, columns = np.where(inside)
    assert 10 <= rows.min() < rows.max() < 50 and 20 <= columns.min() < columns.max() < 100
    json.dumps(plain)
    path = pictures.draw(answer, tmp_path / "out")
    with Image.open(path) as picture, Image.open(photo) as before:
        assert max(picture.size) == pictures.LEAST_SIDE
        wide = np.asarray(picture.convert("RGB"), float)
        plain_wide = np.asarray(before.resize(picture.size, Image.Resampling.BICUBIC), float)
    changed = np.abs(wide - plain_wide).max(-1) > 10
    assert changed[120, 240] and not changed[230, 470]  # Inside the mask, and far from the box.
    assert pictures.draw(answer, tmp_path / "out").name == "photo-1.png"  # Nothing is overwritten.


def test_a_label_that_hides_an_object_or_a_label_is_left_out(tmp_path):
    Image.new("RGB", (480, 480)).save(tmp_path / "black.png")
    alone, best, beside = [400, 20, 440, 60], [100, 100, 140, 140], [84, 110, 100, 126]
    objects = [{"name": "cat", "score": 0.9, "box": box} for box in (alone, best, beside)]
    path = pictures.draw({"file": str(tmp_path / "black.png"), "objects": objects}, tmp_path / "out")
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB")).any(-1)
    assert pixels[390, 30]  # The label of an object that stands alone.
    assert not pixels[92, 160]  # The best one's would hide the object beside it,
    assert pixels[74, 160]  # whose own hides none.
    assert pixels[[100, 84], [120, 118]].all()  # Every box is there.


def test_classes_are_a_strip_below_the_picture(photo, tmp_path):
    (answer,) = inference.ask(network("classes", classifier), [photo])
    assert answer["classes"] == [{"name": "dog", "score": 0.75}, {"name": "cat", "score": 0.25}]
    with Image.open(pictures.draw(answer, tmp_path / "out")) as picture:
        assert picture.width == pictures.LEAST_SIDE and picture.height > pictures.LEAST_SIDE / 2


def later(path, changed, seconds=5):
    """The same video, whose first frame has the time `seconds`."""
    with av.open(str(path)) as old, av.open(str(changed), "w") as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for packet in old.demux(video=0):
            if packet.dts is not None:
                packet.pts += int(seconds / packet.time_base)
                packet.dts += int(seconds / packet.time_base)
                packet.stream = stream
                new.mux(packet)
    return changed


def test_a_video_has_labels_by_time(photo, tmp_path):
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for i in range(80):
            frame = av.VideoFrame.from_ndarray(np.full([48, 64, 3], i, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    sizes = []

    def call(values):
        sizes.append(len(values))
        return classifier(values)

    (answer,) = inference.ask(network("video", call), [str(path)])
    assert [(t["from"], t["to"], t["name"]) for t in answer["times"]] == [
        (0.0, 4.0, "dog"),
        (4.0, 8.0, "dog"),
    ]
    assert sizes == [80, 40, 40] and answer["seconds"] == pytest.approx(8.0, abs=0.11)
    assert answer["classes"][0]["name"] == "dog"
    times = videos.read(later(path, tmp_path / "later.mp4")).times
    assert times[0] == 0.0 and times[-1] == pytest.approx(8.0, abs=0.11), (
        "a video's time begins with its first frame"
    )
    (tmp_path / "none.mp4").write_bytes(b"no video")
    bad, good = inference.ask(network("video", call), [str(tmp_path / "none.mp4"), str(path)])
    assert "none.mp4: cannot be decoded" in bad["error"] and good == answer
    (bad,) = inference.ask(network("video", call), [photo])
    assert bad["error"] == f"{photo}: a picture, and this network takes videos; leave it out"
    long = np.array([[b"x" * 10**6] * 2], object)  # Of a stranger's network.
    (answer,) = inference.ask(
        network("video", lambda values: {**classifier(values), "top_names": long}), [str(path)]
    )
    assert {len(one["name"]) for one in (*answer["classes"], *answer["times"])} == {200}


def test_a_video_that_claims_a_long_time_has_no_more_parts_than_frames():
    times = [0.0, 1.0, 1e12]
    assert video_answers.parts(times, 4.0) == [(0, 2)]
    assert video_answers.parts([0.0, 3.0, 6.0, 9.0], 2.0) == [(0, 1), (1, 2), (2, 3)]


def test_text_in_text_out(tmp_path):
    codec = Codec(lambda text: [int(w) for w in text.split()], lambda t: " ".join(str(x) for x in t if x), 4)
    (tmp_path / "text.txt").write_text("3 4\n\n5 6 7\n")
    reverse = network("translation", lambda tokens: {"tokens": tokens[:, ::-1]}, codec)
    actual = list(inference.ask(reverse, [str(tmp_path / "text.txt")]))
    assert [(a["line"], a["text"], a["translation"]) for a in actual] == [
        (1, "3 4", "4 3"),
        (3, "5 6 7", "7 6 5"),
    ]
    (tmp_path / "long.txt").write_text("1 2 3 4 5\n3 4\n")
    long, short = inference.ask(reverse, [str(tmp_path / "long.txt")])
    assert long["line"] == 1
    assert long["error"].endswith("long.txt: line 1: 5 tokens, the network takes 4; split the sentence")
    assert short["translation"] == "4 3", "one long line refuses only itself"
    (tmp_path / "latin.txt").write_bytes("3\nä\n4".encode("latin-1"))
    actual = list(inference.ask(reverse, [str(tmp_path / "latin.txt")]))
    assert [a.get("translation") for a in actual] == ["3", None, "4"]
    assert actual[1]["error"].endswith("latin.txt: line 2: not UTF-8")
    (tmp_path / "wide.txt").write_text("3 4\n", encoding="utf-16")
    assert [a["translation"] for a in inference.ask(reverse, [str(tmp_path / "wide.txt")])] == ["4 3"]
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"3 4\n"))
    assert [a["translation"] for a in inference.ask(reverse, [str(tmp_path / "text.gz")])] == ["4 3"]
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"3 4\n")[:-6])
    cut, missing, sound = inference.ask(
        reverse, [str(tmp_path / name) for name in ("cut.gz", "nowhere", "text.gz")]
    )
    assert "cut.gz: Compressed file ended" in cut["error"] and "nowhere: No such file" in missing["error"]
    assert sound["translation"] == "4 3"


def test_a_class_has_one_color_in_every_picture(photo, tmp_path):
    colors = pictures.palette(("background", "cat", "dog"))
    assert colors == {"cat": pictures.COLORS[0], "dog": pictures.COLORS[1]}
    for name, color in colors.items():
        answer = {"file": photo, "objects": [{"name": name, "score": 0.9, "box": [10, 20, 50, 100]}]}
        with Image.open(pictures.draw(answer, tmp_path / "drawn", colors)) as picture:
            present = {"#" + bytes(pixel).hex().upper() for _, pixel in picture.getcolors(1 << 20)}
        assert present & set(colors.values()) == {color}


def test_what_is_no_picture_is_named_and_the_others_are_answered(photo, tmp_path):
    sizes = []

    def call(values):
        sizes.append(len(values))
        return classifier(values)

    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no picture")
    names = [photo, str(bad), photo, str(tmp_path / "missing.jpg")]
    answers = list(inference.ask(network("classes", call), names, batch=3))
    assert [answer["file"] for answer in answers] == names
    assert ["classes" in answer for answer in answers] == [True, False, True, False]
    assert "bad.jpg: no picture: cannot identify" in answers[1]["error"]
    assert "missing.jpg: no picture: cannot read: No such file" in answers[3]["error"]
    assert sizes == [2]  # The second batch has no picture.


def test_a_folder_stands_for_the_pictures_in_it(photo, tmp_path):
    for name in ("more/deep/a.BMP", "more/odd", "more/.hidden/x.jpg", "more/note.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9)).save(tmp_path / name, "BMP")
    (tmp_path / "more/note.txt").write_text("no picture")
    files, others = inference.files_in(network("classes", classifier), [photo, str(tmp_path / "more")])
    assert files == [photo, str(tmp_path / "more/deep/a.BMP"), str(tmp_path / "more/odd")]
    assert others == [str(tmp_path / "more/note.txt")]
    assert all("classes" in answer for answer in inference.ask(network("classes", classifier), files))


def test_the_first_call_of_a_shape_is_not_measured(photo):
    classes = network("classes", classifier)
    assert classes.measured() == ""
    list(inference.ask(classes, [photo] * 5, batch=2))  # Shapes 2, 2, 1.
    assert "a call of 2 pictures (median of 1 calls)" in classes.measured()
    assert io.StringIO(classes.measured()).readline().startswith("latency")
