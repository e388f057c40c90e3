"""Tests lists of pictures as people have them, and on which side an example is."""

import json
import os
import tarfile

import numpy as np
import pytest
from PIL import Image

from common.data import given_splits, listed_splits, table_examples, tables
from common.data.folder_conversion import Options
from common.data.report import Report
from common.errors import UserError
from resnet import images
from tests.timetotrain.converting import convert, reported


def shaded(path, shade):
    path.parent.mkdir(parents=True, exist_ok=True)
    patches = np.random.default_rng(shade).integers(0, 255, (4, 5, 3), np.uint8)
    Image.fromarray(patches).resize((160, 128), Image.Resampling.BICUBIC).save(path)


def test_a_list_at_the_root_names_splits_by_folders_and_what_it_lists_is_not_skipped(tmp_path):
    rows = [(f"{'test' if n > 5 else 'train'}/{n}.png", "ab"[n % 2], "long " * 40_000) for n in range(8)]
    for number, (name, *_) in enumerate(rows):
        shaded(tmp_path / "set" / name, number)
    lines = ["file_name,label,note,dataset", *(f"{name},{label},{note},mine" for name, label, note in rows)]
    (tmp_path / "set/metadata.csv").write_text("\n".join(lines))
    assert convert("resnet", tmp_path / "set", tmp_path / "out", "--no_page") == 0
    report = reported(tmp_path / "out")
    assert report["taken"] == {"pictures to train on": 6, "pictures to evaluate on": 2}
    assert list(report["skipped"]) == ["a column that is not read"]


def test_a_group_stays_on_one_side_and_so_do_near_copies(tmp_path):
    lines = ["file_name,label,patient"]
    for n in range(24):
        shaded(tmp_path / f"set/{n}.png", n)
        lines.append(f"{n}.png,{'ab'[n % 2]},p{n // 4}")
    for n in range(24, 30):  # Copies of another quality, some of them mirrored.
        with Image.open(tmp_path / f"set/{n - 24}.png") as image:
            copy = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if n % 2 else image.copy()
            copy.convert("RGB").save(tmp_path / f"set/{n}.jpg", quality=60)
        lines.append(f"{n}.jpg,{'ab'[n % 2]},q{n}")
    (tmp_path / "set/metadata.csv").write_text("\n".join(lines))
    for seed in range(3):
        out = tmp_path / f"out{seed}"
        assert convert("resnet", tmp_path / "set", out, "--no_page", "--eval_part=0.3", f"--seed={seed}") == 0
        held_out = {int(line.split(".")[0]) for line in (out / "held_out.txt").read_text().split()}
        side = [n in held_out for n in range(30)]
        assert 0 < sum(side) < 30
        assert all(side[n] == side[n - n % 4] for n in range(24))
        assert all(side[n] == side[n - 24] for n in range(24, 30))


def test_a_cut_tar_file_is_refused(tmp_path):
    shaded(tmp_path / "0.png", 0)
    with tarfile.open(tmp_path / "set.tar", "w") as tar:
        for n in range(9):
            tar.add(tmp_path / "0.png", f"a/{n}.png")
    whole = (tmp_path / "set.tar").read_bytes()
    for end in (len(whole) // 2, len(whole) // 2 // 512 * 512, whole.rindex(b"8.png") + 1024):
        (tmp_path / "cut.tar").write_bytes(whole[:end])
        with pytest.raises(UserError, match="cut.tar: .*download it again"):
            images.members(tmp_path / "cut.tar")


def test_a_large_loss_is_suspicious(tmp_path, capsys):
    for n in range(12):
        shaded(tmp_path / f"set/{'ab'[n % 2]}/{n}.png", n)
    for n in range(20, 40):
        (tmp_path / f"set/a/{n}.jpg").write_text("not a picture")
    assert convert("resnet", tmp_path / "set", tmp_path / "out", "--no_page") == 0
    assert any(
        "a large part left out (no whole picture" in one for one in reported(tmp_path / "out")["suspicious"]
    )
    assert convert("resnet", tmp_path / "set", tmp_path / "strict", "--no_page", "--strict") == 2
    assert "a large part left out" in capsys.readouterr().err


def listed(folder, rows, name="list.csv"):
    (folder / name).write_text("\n".join(rows), encoding="utf-8")
    return table_examples.examples(tables.read(folder / name), report=(report := Report())), report


@pytest.mark.parametrize(
    ("column", "train", "held_out"),
    [
        ("is_valid", "False", "True"),
        ("phase", "1", "2"),
        ("reviewer", "training", "dev"),
        ("set", "TRAIN", "dev"),
    ],
)
def test_a_column_that_may_be_a_split_is_taken_or_said(tmp_path, column, train, held_out):
    cells = [held_out if n > 3 else train for n in range(6)]
    rows, report = listed(
        tmp_path, [f"path,label,{column}", *(f"{n}.png,a,{cell}" for n, cell in enumerate(cells))]
    )
    assert [row.split for row in rows] == ([cell.lower() for cell in cells] if column == "set" else [""] * 6)
    assert any("may be a split, not taken" in what for what in report.suspicious) == (column != "set")


@pytest.mark.parametrize("place", ["/kaggle/input/set/", "C:\\Users\\me\\set\\"])
def test_paths_of_another_machine_are_read_below_the_list(tmp_path, place):
    names = ["train/1.png", "train/2.png", "test/1.png"]
    for number, name in enumerate(names):
        shaded(tmp_path / name, number)
    rows, report = listed(tmp_path, ["path,label", *(f"{place}{name},a" for name in names)])
    assert [str(row.path.relative_to(tmp_path)) for row in rows] == names
    assert [row.split for row in rows] == ["train", "train", "test"]
    assert "paths of another machine, read below the list" in report.changed


def test_absolute_paths_that_exist_nowhere_stay_as_the_list_says_them(tmp_path, monkeypatch):
    cells = [f"/mnt/a/b/c/{n}.png" for n in range(50)]
    looks, look = [], os.path.isfile
    monkeypatch.setattr(os.path, "isfile", lambda path: looks.append(path) or look(path))
    rows, report = listed(tmp_path, ["path,label", *(f"{cell},a" for cell in cells)])
    assert [str(row.path) for row in rows] == cells and not report.changed
    # Two folders, for the path and for the file name alone; none for a shared folder that is missing.
    assert sum(str(path).endswith(".png") for path in looks) == 2 * 2 * len(cells)


def test_columns_of_classes_are_labels_and_parts_of_a_file_are_said(tmp_path):
    lines = ["image, MEL,Nevus x", "0.png, 1.0,0", "1.png,0,1", "2.png,1,1", "3.png,0,0", "4.png,0,1"]
    rows, report = listed(tmp_path, lines)
    assert [(row.path.name, row.label) for row in rows] == [
        ("0.png", "MEL"),
        *((f"{n}.png", "Nevus x") for n in (1, 4)),
    ]
    assert [*report.left_out] == ["a row of several classes", "a row of no class"]
    with pytest.raises(UserError, match="a column for each class .MEL, Nevus x., of which most .*several"):
        listed(tmp_path, [lines[0], lines[1], *lines[3:5]])
    (_, _, row), report = listed(tmp_path, ["path,label", "0.png,['a']", "1.png,b", "2.png,\"['a', 'b']\""])
    assert "a label of several classes, taken as a class of its own" in report.suspicious
    for rows in (
        ["label,youtube_id,time_start,time_end,path", "a,x,0,10,x.mp4", "b,y,3,13,y.mp4", "b,y,3,13,y.mp4"],
        ["path,label,start", "0.png,a,2020-01-01", "0.png,a,2020-01-02"],
    ):
        assert not listed(tmp_path, rows)[1].suspicious
    rows = ["path,label,start,end", "a.mp4,run,0,2", "a.mp4,walk,2,4"]
    assert [*listed(tmp_path, rows)[1].suspicious] == [
        "a column of an example's start or end, not read: the whole file is taken",
        "a file with two classes",
    ]


@pytest.mark.parametrize("cell", ["P\u00c4.PNG", "pa\u0308.png", "p%C3%A4.png", "p\u00e4"])
def test_a_list_finds_its_files_in_another_spelling_or_folder(tmp_path, cell):
    shaded(tmp_path / "images/val/p\u00e4.png", 1)
    shaded(tmp_path / "images/train/q.png", 2)
    rows, report = listed(tmp_path, ["path,label", f"{cell},a", "q.png,b"])
    assert [(row.path.name, row.split) for row in rows] == [("p\u00e4.png", "val"), ("q.png", "train")]
    assert report.changed["a file name found in another folder"].count == 2
    shaded(tmp_path / "images/p\u00e4.png", 3)
    with pytest.raises(UserError, match="fits .* and "):
        listed(tmp_path, ["path,label", f"{cell},a"])


@pytest.mark.parametrize(
    ("rows", "files"),
    [
        (["cats/1.png,cat", "dogs/1.png,dog"], ["dogs/1.png"]),
        (["cats/1.png,cat"], ["dogs/1.png"]),
        (["cats/1.png,cat"], ["1.png", "cats/2.png"]),
        (["train/1.png,cat"], ["val/1.png"]),
        (["1.png,cat", "2.png,dog"], ["dog/1.png", "2.png"]),
        (["cats/1.png,cat", "dogs/1.png,dog"], ["1.png"]),
        (["1.png,drawings", "photos/2.png,photos"], ["photos/1.png", "photos/2.png"]),
        (["a.png,cat", "A.png,dog"], ["a.png"]),
        (["b.png,cat", "B.png,dog"], ["images/b.PNG"]),
    ],
)
def test_a_list_takes_no_file_of_another_row_split_or_class(tmp_path, rows, files):
    for number, name in enumerate(files):
        shaded(tmp_path / name, number)
    examples, report = listed(tmp_path, ["path,label", *rows])
    pairs = [f"{one.path.relative_to(tmp_path)},{one.label}" for one in examples]
    assert pairs == rows and not report.changed


@pytest.mark.parametrize(
    ("rows", "files", "expected"),
    [
        (
            ["1.png,cat,train", "2.png,dog,train", "9.png,dog,test"],
            ["train/2.png", "test/1.png", "test/9.png"],
            ["1.png", "train/2.png", "test/9.png"],
        ),
        (["1.png,cat,train", "1.png,dog,test"], ["train/1.png", "test/1.png"], ["train/1.png", "test/1.png"]),
        (["1.png,cat,train", "2.png,dog,test"], ["images/1.png", "2.png"], ["images/1.png", "2.png"]),
    ],
)
def test_a_row_s_split_decides_which_file_it_means(tmp_path, rows, files, expected):
    for number, name in enumerate(files):
        shaded(tmp_path / name, number)
    examples, _ = listed(tmp_path, ["path,label,split", *rows])
    assert [str(one.path.relative_to(tmp_path)) for one in examples] == expected


@pytest.mark.parametrize(
    ("row", "right"),
    [
        *(
            (row, True)
            for row in ("{n},{p},{c}", "{p},1{n},{c}", "{c},{p}", "{s},{p},{c}", "{p},{s},{c}", "{p},{c},")
        ),
        *((row, True) for row in ("{p},{i},{c}", "{p},{c},0.{n}", "{p},40,30,{c}", "{p},{c},{s},x{n}")),
        *((row, False) for row in ("{p},40,30", "{p},{c},{c}{c}", "{p},x{n},y{n}")),
    ],
)
def test_a_table_without_column_names_is_told_by_its_cells(tmp_path, row, right):
    (tmp_path / "1.png").write_bytes(b"x")
    rows = [
        row.format(n=n, p=f"{n}.png", c="ab"[n % 2], i=n % 2, s=("train", "val")[n % 3 > 1]) for n in range(9)
    ]
    if not right:
        with pytest.raises(
            UserError, match="no line of column names, and any of columns .* may be the label"
        ):
            listed(tmp_path, rows)
        return
    examples, _ = listed(tmp_path, rows)
    assert [(one.path.name, one.label) for one in examples] == [(f"{n}.png", "ab"[n % 2]) for n in range(9)]
    assert {one.split for one in examples} == ({"train", "val"} if "{s}" in row else {""})


def test_two_columns_of_labels_that_differ_are_refused(tmp_path):
    listed(tmp_path, ["path,label,class", "0.png,0,cat", "1.png,1,dog"])
    with pytest.raises(UserError, match="columns label and category may both be the labels, and they differ"):
        listed(tmp_path, ["path,label,category", "0.png,cat,animal", "1.png,dog,animal", "2.png,dog,pet"])
    for rows, count in (
        (["0.png,cat,", "1.png,dog,"], 0),
        (["0.png,cat,a", "1.png,dog,a", "2.png,bus,b"], 1),
    ):
        examples, report = listed(tmp_path, ["path,label,category", *rows])
        assert [one.label for one in examples][:2] == ["cat", "dog"]
        assert sum("finer or coarser" in what for what in report.suspicious) == count


def test_a_column_of_marks_that_may_be_a_split_is_no_class(tmp_path):
    with pytest.raises(UserError, match="columns cat, dog, is_val, path; expected path,label"):
        listed(tmp_path, ["path,cat,dog,is_val", "0.png,1,0,0", "1.png,0,1,1"])


def test_several_classes_of_a_file_are_said(tmp_path):
    _, report = listed(tmp_path, ["path;label", "0.png;[a|b]", "1.png;[a]", "2.png;[b]"])
    assert report.suspicious["a label of several classes, taken as a class of its own"].count == 1


@pytest.mark.parametrize(
    "names, part_count",
    [
        *[(("seg_train", "seg_test"), 2), (("training_set", "test_set"), 2), (("Train", "dev"), 2)],
        *[(("trainval", "test", "val"), 2), (("train_tube", "test_tube"), 0)],
        (("roadA_train", "roadA_val", "bridge_train", "bridge_val"), 0),
        *((("trainingSet", "testSet"), 2), (("trainset", "valset"), 2), (("TrainData", "ValData"), 2)),
        *((("cats", "dogs", "test"), 0), (("cats", "TestTube", "TrainTube"), 0)),
    ],
)
def test_folders_that_differ_in_a_splits_word_are_the_split_or_said(tmp_path, names, part_count):
    for name in (*names, "train_station"):
        (tmp_path / name).mkdir()
    expected = (*(tmp_path / name for name in names[:part_count]),) if part_count else (tmp_path, None)
    assert given_splits.given_split(tmp_path, report=(report := Report())) == expected
    assert bool(report.suspicious) == (part_count == 0)


def test_lists_and_packed_files_beside_folders_of_classes_are_suspicious(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "lists").mkdir()
    for name in ("lists/trainlist01.txt", "more.zip", "notes.txt"):
        (tmp_path / name).write_text("")
    given_splits.report_layout(tmp_path, (".png",), report := Report())
    listed_splits.classified(tmp_path, Options(report=report), lambda _: [], None)
    assert [one.example for one in report.suspicious.values()] == [
        str(tmp_path / name) for name in ("more.zip", "lists/trainlist01.txt")
    ]


@pytest.mark.parametrize("place", ["meta", "."])
def test_lists_beside_the_folder_of_the_classes_are_the_split_or_said(tmp_path, place):
    names = [f"{'ab'[n % 2]}/{n}" for n in range(12)]
    for number, name in enumerate(names):
        shaded(tmp_path / f"set/images/{name}.png", number)
    shaded(tmp_path / "set/images/b/0.png", 20)
    (tmp_path / "set/meta").mkdir()
    lines = [f"{name} {'ab'.index(name[0])}" if place == "." else name for name in names]
    for name, part in (("train", lines[:9]), ("test", [*lines[9:], "b/0"])):
        (tmp_path / f"set/{place}/{name}.txt").write_text("\n".join(part))
    assert convert("resnet", tmp_path / "set", tmp_path / "out", "--no_page") == 0
    held_out = (tmp_path / "out/held_out.txt").read_text().split()
    assert sorted(held_out) == sorted(f"images/{name}.png" for name in [*names[9:], "b/0"])
    assert convert("resnet", tmp_path / "set/images", tmp_path / "out2", "--no_page") == 0
    assert (
        "a list beside the folders that may be a split, not read" in reported(tmp_path / "out2")["suspicious"]
    )
    (tmp_path / f"set/{place}/test.txt").rename(tmp_path / f"set/{place}/test.json")
    assert convert("resnet", tmp_path / "set", tmp_path / "out3", "--no_page") == 0
    assert (
        "a list beside the folders that may be a split, not read" in reported(tmp_path / "out3")["suspicious"]
    )


def test_captions_beside_pictures_are_no_lists(tmp_path):
    for name in ("cat/train_0", "valley/val_0", "valley/b"):
        shaded(tmp_path / f"{name}.png", 1)
    for name in ("cat/train_0", "valley/valley_credits", "valley/val_notes", "text/cat/train_0", "valley"):
        (tmp_path / f"{name}.txt").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.txt").write_text("a cat")
    given_splits.report_layout(tmp_path, (".png",), report := Report())
    assert not report.suspicious


def test_advice_names_a_table_that_is_read(tmp_path):
    (tmp_path / "a").mkdir()
    for name, end in (("0.json", ""), ("all.tsv", f"; name {tmp_path / 'a/all.tsv'} if it lists them")):
        (tmp_path / "a" / name).write_text("")
        assert given_splits.inner(tmp_path / "a", []) == end
    shaded(tmp_path / "b/images/cat/0.png", 0)
    shaded(tmp_path / "b/images/dog/0.png", 1)
    (tmp_path / "b/meta").mkdir()
    paths = [str(tmp_path / f"b/images/{one}/0.png") for one in ("cat", "dog")]
    assert given_splits.inner(tmp_path / "b", paths).startswith(f"; name {tmp_path / 'b/images'}")


@pytest.mark.parametrize(
    ("files", "pictures", "message"),
    [
        *(
            ({"metadata.csv": text}, 0, "a table that lists no pictures")
            for text in ("patient,age\n1,50\n", "image_id,patient,age\n0,1,50\n", 'path,label\n"a"b,c\n')
        ),
        ({"classes.txt": "cat 0\ndog 1\n"}, 0, "does not name every class"),
        ({"rare/0.png": "", "rare/1.png": ""}, 0, "a class all of whose pictures were left out"),
        ({"cat/0_mask.png": None, "dog/1_Mask_2.png": None}, 0, "a mask beside its picture"),
        ({"cat/x_mask.png": None, "cat/_mask.png": None, "cat/0_mask.jpg": None}, 3, ""),
        ({"cat/40.txt": "a cat", "cat/40_label.png": None}, 1, "no picture (.txt)"),
    ],
)
def test_what_lies_beside_classes_changes_no_label(tmp_path, files, pictures, message):
    for number in range(12):
        shaded(tmp_path / f"set/{'cat' if number % 2 == 0 else 'dog'}/{number}.png", number)
    for number, (name, content) in enumerate(files.items(), 20):
        (tmp_path / "set" / name).parent.mkdir(exist_ok=True)
        if content is None:
            shaded(tmp_path / "set" / name, number)
        else:
            (tmp_path / "set" / name).write_text(content)
    assert convert("resnet", tmp_path / "set", tmp_path / "out", "--no_page") == 0
    report = reported(tmp_path / "out")
    assert sum(report["taken"].values()) == 12 + pictures
    assert list(json.loads((tmp_path / "out/description.json").read_text())["labels"]) == ["cat", "dog"]
    assert message in " ".join([*report["suspicious"], *report["skipped"]])


def test_a_label_that_two_columns_or_a_folder_contradict_is_said(tmp_path):
    with pytest.raises(UserError, match="two columns are called label; rename"):
        listed(tmp_path, ["path,label,label", "0.png,a,b"])
    (row,), _ = listed(tmp_path, ["image_id,video_name,label,class,class", "7,0.mp4,a,b,c"])
    assert (row.path.name, row.label) == ("0.mp4", "a")
    for rows, count in ((["a/0.png,b", "b/1.png,b", "a/2.png,a"], 1), (["a/0.png,b", "c/1.png,a"], 0)):
        _, report = listed(tmp_path, ["path,label", *rows])
        assert sum(one.count for what, one in report.suspicious.items() if "file's folder" in what) == count


def test_classes_of_two_levels_say_which_one_is_read(tmp_path):
    for number, name in enumerate(("cats/siam", "cats/manx", "dogs/pug", "dogs/boxer")):
        shaded(tmp_path / name / "0.png", number)
    given_splits.report_layout(tmp_path, (".png",), report := Report())
    assert report.choices["classes"][0].startswith("the outer folders, such as cats")
    shaded(tmp_path / "cats/1.png", 9)
    given_splits.report_layout(tmp_path, (".png",), report := Report())
    assert not report.choices


def test_a_folder_to_evaluate_on_without_classes_is_not_read(tmp_path):
    for number in range(12):
        shaded(tmp_path / f"set/train/{'ab'[number % 2]}/{number}.png", number)
    shaded(tmp_path / "set/test/0.png", 20)
    assert convert("resnet", tmp_path / "set", tmp_path / "out", "--no_page") == 0
    report = reported(tmp_path / "out")
    assert report["taken"] == {"pictures to train on": 10, "pictures to evaluate on": 2}
    assert "a folder to evaluate on without classes, not read" in report["suspicious"]


def test_a_class_to_evaluate_on_alone_names_the_class_that_it_may_be(tmp_path, capsys):
    for number in range(12):
        part = "val" if number > 7 else "train"
        shaded(
            tmp_path / f"set/{part}/{'Ab'[number % 2] if part == 'val' else 'ab'[number % 2]}/{number}.png",
            number,
        )
    assert convert("resnet", tmp_path / "set", tmp_path / "out", "--no_page") == 2
    assert "class A (" in (message := capsys.readouterr().err) and "give it some, or another name" in message
