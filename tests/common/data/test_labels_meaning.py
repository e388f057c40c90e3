"""Tests that names of classes, tables and folders mean what people meant by them, or that the report says so."""

import pytest

from common.data import folder_conversion, given_splits, tables
from common.data.report import Report
from mnist import idx


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
    ("text", "labels", "said"),
    [
        ("path,label\na,1.5\nb,1\nc,1.0\n", ["1.5", "1", "1.0"], ""),
        (
            "path,label\na,haze primary\nb,haze\nc,primary\n",
            ["haze primary", "haze", "primary"],
            "several classes",
        ),
    ],
)
def test_labels_of_a_table(tmp_path, text, labels, said):
    (tmp_path / "list.txt").write_text(text)
    rows = tables.examples(tables.read(tmp_path / "list.txt"), report=(report := Report()))
    assert [row.label for row in rows] == labels
    found = [*report.changed, *report.suspicious]
    assert any(said in reason for reason in found) if said else not found


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
