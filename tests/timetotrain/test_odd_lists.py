"""Tests lists of pictures and files of sentences as people have them, and on which side an example is."""

import tarfile

import numpy as np
import pytest
from PIL import Image

from common.data import given_splits, tables
from common.data.folder_conversion import Options
from common.data.report import Report
from common.errors import UserError
from common.text import custom_text
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
        held = {int(line.split(".")[0]) for line in (out / "held_out.txt").read_text().split()}
        side = [n in held for n in range(30)]
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


@pytest.mark.parametrize(
    ("content", "program"),
    [
        ('<refset setid="a"><doc><seg id="1">a</seg></doc></refset>', "SGM"),
        ("<?xml version='1.0'?>\n<tmx>", "TMX"),
        ('<seg id="1">a</seg>', "tags"),
        ("<url>http://x</url>\na", "tags"),
        ('{"translation": {"en": "a"}}', "JSON"),
        ('msgid "a"\nmsgstr "b"', "gettext"),
        ("1\n00:00:01,000 --> 00:00:02,000\na", "subtitles"),
        ("a ||| b", "|||"),
        ('[\n {"en": "a"}\n]', "JSON"),
    ],
)
def test_sentences_with_markup_are_refused_by_name(tmp_path, capsys, content, program):
    path = tmp_path / "a.xml"
    path.write_text(content + "\n")
    assert convert("transformer", path, path, tmp_path / "out") == 2
    assert program in capsys.readouterr().err


@pytest.mark.parametrize(
    "row", ["{n}\t{a}\t1{n}\t{b}", "1.{n}\t{a}\t{b}", "{a}\t{b}\tby me, {n}", "{a}\t{b}"]
)
def test_columns_of_numbers_and_of_names_are_no_sentences(tmp_path, row):
    lines = [row.format(n=n, a=f"sentence {n}", b=f"mening {n}") for n in range(30)]
    (tmp_path / "a.tsv").write_text("\n".join(["en\tsv", *lines][row.count("\t") > 1 :]))
    with custom_text.prepared([tmp_path / "a.tsv"], options := Options()) as pairs:
        assert pairs.sizes == (27, 3) and all(a[0] == "s" and b[0] == "m" for a, b in pairs.train.pairs())
    assert len(options.report.skipped) == 1


@pytest.mark.parametrize(
    ("text", "sources", "skipped"),
    [
        *((f"{sound}\tx", [sound], 0) for sound in ('["Hello"]', "<url> is a site", "<doc> is a tag")),
        ("id\tscore\tsource\ttarget\n1\t0.5\tGood day\tTag\n2\t0.7\tBye\tWeg", ["Good day", "Bye"], 2),
        ("1\tGood day\tTag\n2\tBye\n3\tYes\tJa", ["Good day", "Yes"], 1),
        ("\nen\tde\nGood day\tTag", ["Good day"], 1),
        ("he\ter\nshe likes\tsie mag", ["he", "she likes"], 0),
        ("it\tes\nshe\tsie", ["it", "she"], 0),
    ],
)
def test_sentences_are_told_from_ids_and_names(tmp_path, text, sources, skipped):
    (tmp_path / "a.tsv").write_text(text)
    pairs = list(custom_text._read([tmp_path / "a.tsv"], 100, report := Report()))
    assert [source for source, _ in pairs] == sources and len(report.skipped) == skipped


def test_a_sentence_to_evaluate_on_that_is_trained_on_is_suspicious(tmp_path):
    for name, count in (("a", 9), ("held", 2)):
        (tmp_path / f"{name}.tsv").write_text("".join(f"sentence {n}\tmening {n}\n" for n in range(count)))
    options = Options(eval_sources=(tmp_path / "held.tsv",))
    with custom_text.prepared([tmp_path / "a.tsv"], options):
        assert options.report.suspicious["the same sentence to train and to evaluate on"].count == 2


def listed(folder, rows, name="list.csv"):
    (folder / name).write_text("\n".join(rows), encoding="utf-8")
    return tables.examples(tables.read(folder / name), report=(report := Report())), report


@pytest.mark.parametrize(
    ("column", "train", "held"),
    [
        ("is_valid", "False", "True"),
        ("phase", "1", "2"),
        ("reviewer", "training", "dev"),
        ("set", "TRAIN", "dev"),
    ],
)
def test_a_column_that_may_be_a_split_is_taken_or_said(tmp_path, column, train, held):
    cells = [held if n > 3 else train for n in range(6)]
    rows, report = listed(
        tmp_path, [f"path,label,{column}", *(f"{n}.png,a,{cell}" for n, cell in enumerate(cells))]
    )
    assert [row.split for row in rows] == ([cell.lower() for cell in cells] if column == "set" else [""] * 6)
    assert any("may be a split, not taken" in what for what in report.suspicious) == (column != "set")


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
    ("rows", "files", "found"),
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
def test_a_row_s_split_decides_which_file_it_means(tmp_path, rows, files, found):
    for number, name in enumerate(files):
        shaded(tmp_path / name, number)
    examples, _ = listed(tmp_path, ["path,label,split", *rows])
    assert [str(one.path.relative_to(tmp_path)) for one in examples] == found


def test_several_classes_of_a_file_are_said(tmp_path):
    _, report = listed(tmp_path, ["path;label", "0.png;a|b", "1.png;a", "2.png;b"])
    assert report.suspicious["a label of several classes, taken as a class of its own"].count == 1


@pytest.mark.parametrize(
    "names, taken",
    [
        *[(("seg_train", "seg_test"), 2), (("training_set", "test_set"), 2), (("Train", "dev"), 2)],
        *[(("trainval", "test", "val"), 2), (("train_tube", "test_tube"), 0)],
        (("roadA_train", "roadA_val", "bridge_train", "bridge_val"), 0),
    ],
)
def test_folders_that_differ_in_a_splits_word_are_the_split_or_said(tmp_path, names, taken):
    for name in (*names, "train_station"):
        (tmp_path / name).mkdir()
    expected = (*(tmp_path / name for name in names[:taken]),) if taken else (tmp_path, None)
    assert given_splits.given_split(tmp_path, report=(report := Report())) == expected
    assert bool(report.suspicious) == (taken == 0)


def test_lists_and_packed_files_beside_folders_of_classes_are_suspicious(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    for name in ("trainlist01.txt", "more.zip", "notes.txt"):
        (tmp_path / name).write_text("")
    given_splits.report_layout(tmp_path, (".png",), report := Report())
    assert [one.example for one in report.suspicious.values()] == [
        str(tmp_path / name) for name in ("more.zip", "trainlist01.txt")
    ]


def test_translations_of_one_sentence_stay_on_one_side(tmp_path):
    source, target = tmp_path / "a.en", tmp_path / "a.sv"
    source.write_text("".join(f"Sentence {n // 2}\n" for n in range(400)))
    target.write_text("".join(f"mening {n}\n" for n in range(400)))
    with custom_text.prepared([source, target], Options(eval_part=0.2)) as pairs:
        sides = [
            set(path.read_text().split("\n")) - {""}
            for path in (pairs.train.sources[0], pairs.held.sources[0])
        ]
        assert sides[0] and sides[1] and not sides[0] & sides[1]
