"""Tests that names tell copies and clips, and mean what people meant by them."""

import gzip
import io

import numpy as np
import pytest
from PIL import Image

from common.data import folder_conversion, given_splits, near_copies, table_examples, tables, videos
from common.data.report import Report
from common.errors import UserError
from common.export import inference
from mnist import idx
from tsm_kinetics import convert


@pytest.mark.parametrize(
    ("names", "films"),
    [
        (["film0_000", "film0_001", "film1_000", "film2_000"], ["film0", "film0", "film1", "film2"]),
        (["A_run_f_1", "A_run_f_2", "B_run_f_1", "C_run_f_9"], ["A_run_f", "A_run_f", "B_run_f", "C_run_f"]),
        (["v_g01_c01", "v_g01_c02", "v_g02_c01", "v_g03_c01"], ["v_g01", "v_g01", "v_g02", "v_g03"]),
        (["x_000001_000011", "x_000012_000022", "y_000001_000011", "z_000003_000013"], ["x", "x", "y", "z"]),
        (["clip_1", "clip_2", "clip_3"], [""] * 3),
        (["v1", "v2", "v3"], [""] * 3),
        (["a_1", "b_1", "c_1"], [""] * 3),
    ],
)  # fmt: skip
def test_clips_of_one_film_are_told_by_names_that_number_them(names, films):
    assert near_copies.films(names) == films


@pytest.mark.parametrize(
    "copy", ["a/p_jpg.rf.36de2269678ae29f.jpg", "a/p_jpg_aug_3.png", "a/p_jpg-flipped.jpg"]
)
def test_augmented_copies_belong_to_their_picture(copy):
    assert (
        near_copies.original(copy)
        == near_copies.original("a/p_jpg.jpg")
        != near_copies.original("b/p_jpg.jpg")
    )
    flat = bytes(near_copies.SIDE**2)
    groups = near_copies.groups(
        [flat] * 3, [near_copies.original(n) for n in (copy, "a/p_jpg.jpg", "a/q.jpg")]
    )
    assert groups[0] == groups[1] != groups[2]


def frames(folder, count, size=(40, 30)):
    folder.mkdir(parents=True)
    for number in range(1, count + 1):
        Image.new("RGB", size, (number * 20, 90, 9)).save(folder / f"img_{number}.jpg")


def test_folders_of_frames_are_clips_in_the_order_of_their_numbers(tmp_path):
    frames(tmp_path / "walk/clip1", 11)
    (item,) = convert.items(tmp_path, report=(report := Report()))
    assert item == convert.Item(str(tmp_path / "walk/clip1"), "walk")
    assert any("25 frames a second" in what for what in report.changed)
    clip = videos.read(item.path, short_side=30)
    stored = [(tmp_path / f"walk/clip1/img_{n}.jpg").read_bytes() for n in range(1, 12)]
    assert clip.frames == stored and (clip.height, clip.width, clip.changes) == (30, 40, [])
    assert np.allclose(np.diff(clip.times), 1 / 25) and len(clip.times) == 12
    small = videos.read(item.path, short_side=15)
    assert (small.height, small.width, small.changes) == (15, 20, [videos.SHRUNK])
    assert Image.open(io.BytesIO(small.frames[0])).size == (20, 15)


@pytest.mark.parametrize("suffix", [".gif", "/flow/{}.jpg", "/rgb/{}.jpg"])
def test_a_gif_is_a_clip_of_its_own_and_optical_flow_is_none(tmp_path, suffix):
    for number in range(4):
        path = tmp_path / f"walk/part{number // 2}{suffix.format(number)}"
        path = path if suffix != ".gif" else tmp_path / f"walk/part/{number}.gif"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (number * 20, 90, 9)).save(path)
        frames(path.parent / "thumbs", 2) if suffix == ".gif" and not number else None
    clips = list(convert._in_folders(tmp_path, Report()))
    assert len(clips) == {".gif": 4, "/flow/{}.jpg": 0, "/rgb/{}.jpg": 2}[suffix]


def test_folders_of_frames_beside_videos_are_clips_but_no_thumbnails_and_no_frames_of_these(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("img_1", "film"):
        videos.write(tmp_path / f"a/{name}.mp4", np.zeros((2, 32, 32, 3), np.uint8))
    for name in ("clip", "film"):  # Of the film its frames.
        frames(tmp_path / f"a/{name}", 3)
        (tmp_path / f"a/{name}/img_1.jpg").rename(tmp_path / f"a/{name}/img_4.jpg")
    frames(tmp_path / "a/small", 2)  # One has a video's name.
    expected = [str(tmp_path / f"a/{name}") for name in ("clip", "film.mp4", "img_1.mp4")]
    report = Report()
    assert [item.path for item in convert._in_folders(tmp_path, report)] == expected
    assert report.skipped["no video (.jpg)"].count == 5
    paths, others = inference.files_in(inference.Network("video", None, (), None), [str(tmp_path)])
    assert (paths, len(others)) == (expected, 5)


def test_videos_in_no_class_and_the_folder_around_the_classes_are_named(tmp_path):
    frames(tmp_path / "set/a/clip", 2)
    (tmp_path / "set/lists").mkdir()
    frames(tmp_path / "set/b/clip", 2)
    inside = [str(tmp_path / f"set/{name}/clip") for name in "ab"]
    assert given_splits.inner(tmp_path, inside) == f"; name {tmp_path / 'set'} if its folders are the classes"
    (tmp_path / "train").mkdir()
    videos.write(tmp_path / "train/0.mp4", np.zeros((2, 32, 32, 3), np.uint8))
    (tmp_path / "labels.csv").write_text("")
    with pytest.raises(UserError, match="its videos, such as 0.mp4, are in no class's folder; .*labels.csv"):
        convert.items(tmp_path / "train")


@pytest.mark.parametrize("fault", ["another size", "damaged", "another name"])
def test_a_clip_with_a_bad_frame_is_named(tmp_path, fault):
    frames(tmp_path / "clip", 3)
    if fault == "damaged":
        (tmp_path / "clip/img_2.jpg").write_bytes(b"\xff\xd8\xffx")
    elif fault == "another name":
        Image.new("RGB", (40, 30)).save(tmp_path / "clip/side_2.jpg")
    else:
        Image.new("RGB", (8, 8)).save(tmp_path / "clip/img_2.jpg")
    match = "several names, img_., side_." if fault == "another name" else "img_2.jpg"
    with pytest.raises(videos.BadVideoError, match=match):
        videos.read(tmp_path / "clip")


@pytest.mark.parametrize(
    ("others", "count"), [("Img_3 cover", 3), ("flow_x_1 flow_y_1", 2), ("../clip2/b ../clip2/a", 2)]
)
def test_a_cover_and_optical_flow_beside_frames_are_none(tmp_path, others, count):
    frames(tmp_path / "clip", 2)
    (tmp_path / "clip2").mkdir()
    saved = [tmp_path / f"clip/{name}.jpg" for name in others.split()]
    for number, path in enumerate(saved):
        Image.new("RGB", (40, 30), (9, 9, number * 99)).save(path)
    clip = videos.read(saved[0].parent)
    assert clip.changes == {3: [videos.COVER]}.get(count, [videos.FLOW] * ("flow_x_1" in others))
    assert len(clip.frames) == count and (count, clip.frames[-1]) != (2, saved[-1].read_bytes())


@pytest.mark.parametrize("names", ["v_Run_g0{}_c0{}.avi", "film{}_00{}.mp4"])
def test_clips_of_one_film_on_both_sides_of_a_split_that_the_user_gives_are_named(tmp_path, names):
    from tests import custom_sources
    from tests.timetotrain.converting import convert, reported

    clips = sorted(custom_sources.clips(tmp_path / "clips", 6).glob("*/*.mp4"))
    for number, clip in enumerate(clips):
        part = tmp_path / "set" / ("val" if number % 3 == 2 else "train") / clip.parent.name
        part.mkdir(parents=True, exist_ok=True)
        clip.rename(part / names.format(number // 2 % 3, number % 2))
    assert convert("tsm_kinetics", tmp_path / "set", tmp_path / "out", "--no_page") == 0
    findings = [
        one for what, one in reported(tmp_path / "out")["suspicious"].items() if "clips of one film" in what
    ]
    assert findings and all(" and " in one["example"] for one in findings)


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (["cat", "nan"], "says that there is none"),
        (["__ignore__", "cat"], "says that there is none"),
        (["1", "1.0"], "how a number is written"),
        (["Cat", "cat"], "upper and lower case"),
        (["traffic light", "traffic_light"], "blanks, hyphens and underscores"),
        (["cat-1", "cat-2", "dog-1"], "a last number"),
        (["cat", "dog", "level-1", "level-2"], ""),
        (["n01440764", "n01443537"], ""),
        (["14407641", "14407642"], ""),
    ],
)
def test_names_that_mean_no_class_or_one_class_are_suspicious(names, what):
    report = Report()
    report.balance([(name, 9, 9) for name in names], "pictures")
    assert [what in reason for reason in report.suspicious] == ([True] if what else [])


@pytest.mark.parametrize(
    ("text", "labels", "reason_part"),
    [
        ("path,label\na,1.5\nb,1\nc,1.0\n", ["1.5", "1", "1.0"], ""),
        (
            "path,label\na,haze primary\nb,haze\nc,primary\n",
            ["haze primary", "haze", "primary"],
            "several classes",
        ),
    ],
)
def test_labels_of_a_table(tmp_path, text, labels, reason_part):
    (tmp_path / "list.txt").write_text(text)
    rows = table_examples.examples(tables.read(tmp_path / "list.txt"), report=(report := Report()))
    assert [row.label for row in rows] == labels
    findings = [*report.changed, *report.suspicious]
    assert any(reason_part in reason for reason in findings) if reason_part else not findings


@pytest.mark.parametrize(
    "name", ["@eaDir", "#recycle", "$RECYCLE.BIN", "System Volume Information", "__MACOSX"]
)
def test_folders_of_systems_are_not_read(tmp_path, name):
    for folder in ("cat", f"cat/{name}", name):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0.jpg").touch()
    assert [path.name for path in folder_conversion.folders(tmp_path)] == ["cat"]
    assert folder_conversion.files(tmp_path) == [tmp_path / "cat/0.jpg"]


def test_doubled_folders_and_empty_ones_of_a_split(tmp_path):
    for folder in ("train/train/cat", "valid", "test/test/cat"):
        (tmp_path / folder).mkdir(parents=True)
        if folder != "valid":
            (tmp_path / folder / "0.jpg").touch()
    expected = tmp_path / "train/train", tmp_path / "test/test"
    assert given_splits.given_split(tmp_path, report=(report := Report())) == expected
    assert any("empty folder" in reason for reason in report.suspicious)
    given_splits.report_unused(tmp_path, expected, report)
    assert [one.example for one in report.skipped.values()] == [f"{tmp_path}/valid/"]


@pytest.mark.parametrize("place", ["{dot}", "{dot}.gz", "{name}/{name}", "{dot}/{dot}"])
def test_mnists_files_as_unpackers_name_them(tmp_path, place):
    place = place.format(dot="train-images.idx3-ubyte", name="train-images-idx3-ubyte")
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).touch()
    assert idx.find(tmp_path, "train-images-idx3-ubyte") == tmp_path / place


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MNIST/raw/train-images-idx3-ubyte.gz", "name .*MNIST/raw"),
        ("archive/train-images-idx3-ubyte/train-images-idx3-ubyte", "name .*/archive$"),
        ("train-images-idx3-ubyte (1).gz", r"rename .*ubyte \(1\).gz"),
        ("emnist-train-images-idx3-ubyte", "rename .*emnist-train"),
        ("train.csv", "train.csv is not read; write its digits as idx files"),
        ("training/0/1.png", "timetotrain data resnet"),
        ("README", "init_datasets.sh"),
    ],
)
def test_what_is_there_in_place_of_mnists_files_is_named(tmp_path, name, message):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(UserError, match=f"is not there; .*{message}"):
        idx.find(tmp_path, "train-images-idx3-ubyte")


@pytest.mark.parametrize("name", ["a", "a.gz"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_an_idx_file_is_unpacked_by_its_content(tmp_path, name, pack):
    idx.write(tmp_path / "plain", np.ones((2, 3, 3), np.uint8))
    (tmp_path / name).write_bytes(pack((tmp_path / "plain").read_bytes()))
    assert idx.read(tmp_path / name, idx.IMAGES).shape == idx.shape(tmp_path / name) == (2, 3, 3)
