"""Tests data of strangers: names, pictures, videos, annotations, descriptions and histories do what they may alone."""

import json
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from common.config import data_description
from common.data import pictures
from common.data.folder_conversion import Options
from common.data.report import Report
from common.detection import coco_source, coco_tidy
from common.detection import convert as converter
from common.errors import UserError, one_line
from common.export import inference
from common.untrusted import is_plain_name, parsed, read_plain, stays_inside
from tests.custom_sources import voc
from timetotrain.follow import command

av = pytest.importorskip("av")


@pytest.mark.parametrize("name", ["words.txt", "vocab.ende.32768", "a b", "ä", "x" * 255, "con_file"])
def test_a_plain_name_is_one(name):
    assert is_plain_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "", ".", "..", ".hidden", "/x", "a/b", "a\\b", "C:x", "x\0", "x\n", "\x1b[1m", "x" * 256,
            "ä" * 200, "\udcff",
        ),
        *("con", "NUL.txt", "com1", "lpt9.x", "x.", "x ", "a*", 3, None, b"x"),
    ],
)  # fmt: skip
def test_what_is_no_plain_name_is_none(name):
    assert not is_plain_name(name)


def test_a_path_that_leaves_its_folder():
    assert all(map(stays_inside, ("a", "a/b", "train-*", "a..b", "...")))
    assert not any(map(stays_inside, ("/a", "..", "../a", "a/../../b", "a\\..\\b", "a\0")))


def test_json_that_is_nested_without_end_is_a_value_error():
    with pytest.raises(ValueError, match="nested too deeply"):
        parsed("[" * 200_000)
    assert parsed('{"a": [1]}') == {"a": [1]}


def test_only_regular_files_of_a_size_are_read(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert read_plain(tmp_path / "a", 3) == b"abc"
    os.symlink("a", tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    for name, most, message in (
        ("a", 2, "more than 2"),
        ("link", 9, "is a link"),
        ("pipe", 9, "not a regular file"),
    ):
        with pytest.raises(ValueError, match=message):
            read_plain(tmp_path / name, most)
    with pytest.raises(ValueError, match="not a regular file"):
        read_plain(tmp_path, 9)


def test_a_line_shows_no_control_characters():
    assert str(UserError("a\x1b[2J\x9b31m\nb\u202e")) == "a\\x1b[2J\\x9b31m b\\u202e"
    with pytest.raises(UserError, match=r"^model: KeyError: 'x'; fix$"), one_line("model", "fix"):
        {}["x"]
    with pytest.raises(UserError, match="more memory than there is"), one_line("model", "fix"):
        raise MemoryError
    with pytest.raises(OSError), one_line("model", "fix", passing=(OSError,)):
        raise OSError


# ------------------------------------------------------------------------------------------------------- pictures


def bomb(side):
    """A PNG file of a few hundred bytes whose header says `side` x `side` pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [10_000, 60_000])
def test_a_picture_that_would_fill_the_memory_is_not_decoded(tmp_path, side):
    (tmp_path / "bomb.png").write_bytes(bomb(side))
    network = inference.Network("classes", lambda values: pytest.fail("it was decoded"), (), None)
    (answer,) = inference.ask(network, [str(tmp_path / "bomb.png")])
    assert "bomb.png: no picture: a picture of more than 89478485 pixels; leave it out" in answer["error"]


def test_a_pipe_is_no_picture(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(pictures.BadPictureError, match="not a regular file"):
        pictures.contents(tmp_path / "pipe.jpg")


# --------------------------------------------------------------------------------------------------------- videos


def video(path):
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for i in range(5):
            frame = av.VideoFrame.from_ndarray(np.full([48, 64, 3], i, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize("suffix", ["mp4", "m3u8"])
@pytest.mark.parametrize("kind", ["concat", "hls"])
def test_a_video_is_no_list_of_other_files(tmp_path, kind, suffix):
    from common.data import videos

    other = video(tmp_path / "other.ts")
    text = {
        "concat": "ffconcat version 1.0\nfile other.ts\n",
        "hls": f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{other}\n#EXT-X-ENDLIST\n",
    }[kind]
    (tmp_path / f"list.{suffix}").write_text(text)
    with pytest.raises(videos.BadVideoError, match="cannot be decoded"):
        videos.read(tmp_path / f"list.{suffix}", 32)
    assert len(videos.read(other, 32).frames) == 5


@pytest.mark.parametrize(
    "name", ["concat:other.ts", "subfile,,start,0,end,9,,:other.ts", "http://localhost/x", "pipe"]
)
def test_a_video_is_a_file_and_no_address(tmp_path, name, monkeypatch):
    from common.data import videos

    monkeypatch.chdir(tmp_path)
    video("other.ts")
    os.mkfifo("pipe")
    with pytest.raises(
        videos.BadVideoError, match="not a regular file" if name == "pipe" else "No such file"
    ):
        videos.read(name)


# ---------------------------------------------------------------------------------------------------- annotations


def coco(folder, name):
    (folder / "pictures").mkdir(exist_ok=True)
    for place in (folder / "pictures/a.jpg", folder / "secret.jpg"):
        Image.new("RGB", (20, 10)).save(place)
    images = [{"id": i, "file_name": n, "width": 20, "height": 10} for i, n in enumerate(("a.jpg", name), 1)]
    objects = [{"id": i, "image_id": i, "category_id": 1, "bbox": [1, 1, 5, 5]} for i in (1, 2)]
    content = {"images": images, "annotations": objects, "categories": [{"id": 1, "name": "x"}]}
    (folder / "pictures/all.json").write_text(json.dumps(content))
    return content


@pytest.mark.parametrize("name", ["../secret.jpg", "/secret.jpg", "x/../../secret.jpg"])
def test_annotations_name_pictures_in_their_folder_alone(tmp_path, name):
    name = str(tmp_path / "secret.jpg") if name.startswith("/") else name
    content = coco(tmp_path, name)
    source, _ = coco_source.find(tmp_path / "pictures", Options())
    report = Report()
    (tidied,), _, _ = coco_tidy.tidy([source], False, report)
    assert [image["file_name"] for image in tidied["images"]] == ["a.jpg"]
    assert any("leaves the folder of the pictures" in line for line in report.lines)
    with pytest.raises(UserError, match="leaves the folder of the pictures"):
        converter.Pictures(str(tmp_path / "pictures")).read(content["images"][1])


@pytest.mark.parametrize(
    "head",
    [
        '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>',
        '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
    ],
)
def test_xml_defines_no_entities(tmp_path, head):
    voc(tmp_path, count=3)
    first = sorted((tmp_path / "Annotations").glob("*.xml"))[0]
    first.write_text(head + first.read_text())
    os.mkfifo(tmp_path / "Annotations/pipe.xml")
    options = Options()
    source, _ = coco_source.find(tmp_path, options)
    assert len(source.content["images"]) == 2
    assert any("it defines the entity 'a'" in line for line in options.report.lines)


# --------------------------------------------------------------------------------------------------- descriptions


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"optimizer.name": "evil_plugin:make"}, "sets config.optimizer.name, which data do not decide"),
        ({"norm": "evil_plugin:make"}, "sets config.norm, which data do not decide"),
        ({"init": "/etc/passwd"}, "sets config.init, which data do not decide"),
        ({"division": "open"}, "sets config.division, which data do not decide"),
        ({"data.cache": "../*"}, "leaves the folder"),
    ],
)
def test_a_description_sets_what_data_decide_and_names_no_code(tmp_path, fields, message):
    from resnet.config import Config

    for kind in ("fields", "defaults"):
        content = {"fields": {}, "defaults": {}, kind: fields}
        description = data_description.Description(
            "resnet", (), files={}, digest="", made_by="", split={}, **content
        )
        with pytest.raises(UserError, match=message):
            data_description.apply(Config(), description)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", ""])
def test_a_description_names_files_of_its_folder(tmp_path, name):
    files = {name: [3, "0"]}
    description = data_description.Description(
        "resnet", (), {}, {}, files, data_description.digest(files), "", {}
    )
    data_description.write(tmp_path, description)
    with pytest.raises(UserError, match="which is not a file of this folder"):
        data_description.read(tmp_path)


# ------------------------------------------------------------------------------------------------------ histories


def test_a_history_is_a_page_or_a_line_and_its_texts_no_markup(tmp_path, capsys):
    from tests.timetotrain.run.test_follow import HEAD, records

    text = "<script>alert(1)</script>"
    rows = [{**HEAD, "benchmark": text, "system": text}, *list(records(10))[1:]]
    path = tmp_path / "history_0.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = command.render(path, command.history.read(path)).decode()
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    for field in ("train_steps", "target"):
        wrong = [{**row, field: [[]]} for row in rows]
        with pytest.raises(UserError, match="history_0.jsonl: its records cannot be drawn"):
            command.render(path, wrong)
    path.write_text("[" * 200_000 + "\n")
    with pytest.raises(UserError, match="not a line of a history"):
        command.history.read(path)
