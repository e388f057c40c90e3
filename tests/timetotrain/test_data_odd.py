"""Tests `timetotrain data` with texts, lists and names as people have them: nothing is silently wrong."""

import json
import os
import shutil
import unicodedata

import pytest

from common.config import data_description
from common.data import folder_conversion, given_splits
from common.data.report import Report
from common.errors import UserError
from common.text import custom_text, sentences, subwords
from tests import custom_sources
from tests.timetotrain import converting
from tests.timetotrain.converting import needs_text, reported


def convert(*words, page=False):
    return converting.convert(*words, *([] if page else ["--no_page"]))


def text(*sources, out, benchmark="transformer"):
    """Converts sentences; returns the status and the description, None after an error."""
    status = convert(benchmark, *sources, out, "--vocabulary_size", 200)
    return status, None if status else data_description.read(out)


def same_files(one, other):
    """Whether two folders hold the same files with the same bytes, but for the page."""
    names = [sorted(path.name for path in folder.iterdir()) for folder in (one, other)]
    return names[0] == names[1] and all((one / n).read_bytes() == (other / n).read_bytes() for n in names[0])


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_text_in_any_encoding_gives_the_records_of_utf8(tmp_path, encoding, capsys):
    needs_text()
    sources = custom_sources.sentences(tmp_path / "text")
    status, plain = text(*sources, out=tmp_path / "plain")
    for path in sources:
        path.write_text(path.read_text().replace("\n", "\r\n"), encoding=encoding, newline="")
    again, other = text(*sources, out=tmp_path / "other")
    assert (status, again) == (0, 0) and plain.files == other.files and other.broken == ()
    assert same_files(tmp_path / "plain", tmp_path / "other")


def test_a_line_in_another_encoding_names_its_own_file(tmp_path, capsys):
    needs_text()
    source, target = custom_sources.sentences(tmp_path / "text")
    lines = target.read_bytes().split(b"\n")
    for number in (3, *range(10, 20)):
        lines[number] = b"gr\xfc\xdfe"
    lines[5] = b"a\0b"
    target.write_bytes(b"\n".join(lines))
    status, description = text(source, target, out=tmp_path / "out")
    assert status == 0 and sum(description.split.values()) == 300 - 12
    assert description.broken[0] == f"{target}: line 4: not UTF-8; save it as UTF-8"
    assert f"{target}: line 6: has a NUL character" in description.broken
    assert "6 more lines: not UTF-8; save it as UTF-8" in description.broken
    assert f"left out: {target}: line 4: not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("benchmark", ["transformer", "gnmt"])
def test_a_long_word_is_left_out_and_counted(tmp_path, benchmark):
    needs_text(benchmark)
    source, target = custom_sources.sentences(tmp_path / "text")
    for path in (source, target):
        path.write_text(path.read_text() + "x" * 300_000 + "\n" + "y" * 9_000 + "\n")
    status, description = text(source, target, out=tmp_path / "out", benchmark=benchmark)
    assert status == 0 and description.broken[0] == f"{source}: line 301: longer than 10000 characters"
    if benchmark == "transformer":  # Byte pairs join a letter that repeats to few tokens.
        assert description.broken[1:] == (
            "1 pair: more than 60 tokens, the maximum by the converter; --max_length sets another",
        )
        assert sum(description.split.values()) == 300


def test_when_no_pair_is_left_the_line_counts_the_reasons(tmp_path, capsys):
    needs_text()
    paths = custom_sources.sentences(tmp_path / "text", 3)
    paths[0].write_bytes(b"\xe9\n\xe9\n \n")
    assert text(*paths, out=tmp_path / "out") == (2, None)
    message = capsys.readouterr().err
    assert "train.en: no sentence pair is left: 2 not UTF-8; save it as UTF-8 (such as" in message
    assert "1 a side is empty (such as" in message and "class" not in message
    paths[0].write_text("one sentence\n" * 3)
    paths[1].write_text("ein Satz\n" * 3)
    assert text(*paths, out=tmp_path / "out") == (2, None)
    assert (
        "one sentence pair only; give more to hold some out, or name others with --eval"
        in capsys.readouterr().err
    )


def test_a_text_of_long_lines_names_a_flag_that_exists_and_leaves_no_folder(tmp_path, capsys):
    needs_text()
    paths = custom_sources.sentences(tmp_path / "text", 20)
    for path in paths:
        path.write_text("".join(f"{line} " * 40 + "\n" for line in path.read_text().splitlines()))
    assert text(*paths, out=tmp_path / "out") == (2, None)
    assert "--max_length" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_words_are_short_enough_to_learn_from():
    assert subwords.learnable("plain words, and 3.5 kg") == "plain words, and 3.5 kg"
    learned = subwords.learnable("x" * 1000 + "-" * 1000 + "漢" * 1000)
    assert max(map(len, learned.split())) <= 40 + 4 + 4 and "漢漢漢漢 漢漢漢漢" in learned
    assert custom_text.word_count("a b " + "漢" * 100) == 52
    assert sentences.clean("\ufeffa\u2028b\rc\x85d") == "a b c d"


def test_a_column_of_splits_in_any_case_loses_no_row(tmp_path, capsys):
    source, out = custom_sources.clips(tmp_path / "clips"), tmp_path / "out"
    videos = sorted(source.glob("*/*.mp4"))
    splits = ["Train", "train ", "TRAIN", "Val", "validation", "test"] * 2
    rows = [f"{path.relative_to(source)};{path.parent.name} ;{s}" for path, s in zip(videos, splits)]
    (source / "list.csv").write_text("Path;Label;Split\n" + "\n".join(rows), encoding="utf-8-sig")
    assert convert("tsm_kinetics", source / "list.csv", out) == 0
    assert data_description.read(out).split == {"train": 6, "eval": 4}
    assert "split test, because another one is for evaluation: 2" in capsys.readouterr().err
    assert data_description.read(out).labels == ("left", "right")
    (source / "list.csv").write_text(
        "path,label,split\n" + "\n".join(rows).replace(";", ",").replace("Val", "hold")
    )
    assert convert("tsm_kinetics", source / "list.csv", tmp_path / "other") == 2
    assert "column split has train, hold, validation, test; expected train and val" in capsys.readouterr().err


def test_a_class_has_one_name_however_it_is_spelt(tmp_path):
    """macOS spells ü as two characters; both spellings are one class, in both parts."""
    source = custom_sources.photographs(tmp_path / "photos" / "train", 4)
    shutil.copytree(source, tmp_path / "photos" / "val")
    for part, form in (("train", "NFD"), ("val", "NFC")):
        folder = tmp_path / "photos" / part
        (folder / "blue").rename(folder / unicodedata.normalize(form, "Blüte"))
    names = unicodedata.normalize("NFD", "Blüte Blume\nred rot\n")
    (tmp_path / "photos" / "classes.txt").write_text(names)
    assert convert("resnet", tmp_path / "photos", tmp_path / "out") == 0
    assert data_description.read(tmp_path / "out").labels == ("Blume", "rot")


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("a x\nb x\n", ["x (a)", "x (b)"]),
        ("a x\n", ["a", "b"]),
        ("x\ny\n", ["a", "b"]),
        ("a x\na y\n", None),
        ("polar bear\npolar fox\n", ["a", "b"]),
    ],
)
def test_a_list_names_every_class_or_none(tmp_path, text, labels):
    (tmp_path / "classes.txt").write_text(text)
    if labels is None:
        with pytest.raises(UserError, match="line 2: a is y, above x; give a class one name"):
            given_splits.class_names(tmp_path, ["a", "b"], Report())
        return
    assert given_splits.class_names(tmp_path, ["a", "b"], report := Report()) == labels
    assert bool(report.skipped) == (labels[0] == "a")


def test_two_conversions_of_text_and_of_a_table_give_the_same_bytes(tmp_path):
    needs_text()
    for turn in ("a", "b"):
        text(*custom_sources.sentences(tmp_path / "text"), out=tmp_path / turn / "text")
        shutil.rmtree(tmp_path / "clips", ignore_errors=True)
        source = custom_sources.clips(tmp_path / "clips", 3)
        rows = [f"{p.relative_to(source)},{p.parent.name}" for p in sorted(source.glob("*/*.mp4"))]
        (source / "list.csv").write_text("path,label\n" + "\n".join(rows))
        assert convert("tsm_kinetics", source / "list.csv", tmp_path / turn / "clips") == 0
    for kind in ("text", "clips"):
        assert same_files(tmp_path / "a" / kind, tmp_path / "b" / kind), kind


def test_few_shards_are_not_a_line_each(tmp_path, capsys):
    source = custom_sources.photographs(tmp_path / "photos")
    assert convert("resnet", source, tmp_path / "out") == 0
    assert "shards" not in capsys.readouterr().err


def test_a_failed_conversion_leaves_the_folder_as_it_was(tmp_path, capsys, monkeypatch):
    from resnet import convert as converter

    source, out = custom_sources.photographs(tmp_path / "photos", 4), tmp_path / "out"

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(converter.tfrecords, "write", fail)
    assert convert("resnet", source, out) == 2
    assert not out.exists() and "Input/output error" in capsys.readouterr().err
    out.mkdir()
    assert convert("resnet", source, out) == 2
    assert list(out.iterdir()) == []
    monkeypatch.setattr(converter.tfrecords, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    assert convert("resnet", source, out) == 2
    assert json.loads((out / data_description.NAME).read_text())["unfinished"], "the same command goes on"


def test_photographs_of_a_table_are_those_of_folders(tmp_path, capsys):
    source = custom_sources.photographs(tmp_path / "photos", 4)
    rows = [f"{p.relative_to(source)},{p.parent.name}" for p in sorted(source.glob("*/*.jpg"))]
    table = source / "list.csv"
    table.write_text("file_name,label\n" + "\n".join([*rows, "nowhere.jpg,red"]).replace("/", "\\"))
    assert convert("resnet", table, tmp_path / "table") == 0
    assert "nowhere.jpg: no such file" in capsys.readouterr().err
    table.unlink()
    assert convert("resnet", source, tmp_path / "folders") == 0
    flat = tmp_path / "flat"  # As Hugging Face's image folders.
    flat.mkdir()
    for path in source.glob("*/*.jpg"):
        shutil.copy(path, flat)
    rows = [f"{p.name},{p.name[:-5]}" for p in sorted(flat.iterdir())]
    (flat / "metadata.csv").write_text("\n".join(["file_name,label", *rows]))
    assert convert("resnet", flat, tmp_path / "metadata") == 0
    assert (
        data_description.read(tmp_path / "metadata").files
        == data_description.read(tmp_path / "folders").files
    )
    one, other = (data_description.read(tmp_path / name) for name in ("table", "folders"))
    assert one.files == other.files and one.labels == ("blue", "red")
    held_out = (tmp_path / "table" / folder_conversion.HELD_OUT).read_text().splitlines()
    assert len(held_out) == one.split["eval"] and all((source / name).is_file() for name in held_out)
    assert one.baseline == {"value": 1.0, "what": "logistic regression on colors and a thumbnail"}


@pytest.mark.parametrize(
    "name, content, line",
    [
        ("a.tar", b"", "a.tar: a file; give the folder of your files, unpacked"),
        ("shards/a.tar.gz", b"", "a.tar.gz: a file .gz, which is not read there; unpack it"),
        ("shards/a.parquet", b"PAR1", "a.parquet: a file .parquet, which is not read there; unpack it"),
    ],
)
def test_packed_files_that_are_not_read_are_one_line(tmp_path, capsys, name, content, line):
    (tmp_path / "shards").mkdir()
    (tmp_path / name).write_bytes(content)
    source = tmp_path / (name if "/" not in name else "shards")
    assert convert("resnet", source, tmp_path / "out") == 2
    assert line in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_hidden_folders_and_files_hold_no_data(tmp_path):
    source = custom_sources.photographs(tmp_path / "photos", 4)
    clean = tmp_path / "clean"
    shutil.copytree(source, clean)
    for hidden in (".ipynb_checkpoints", "__MACOSX/red", "red/.ipynb_checkpoints", "red/.thumbs/deep"):
        (source / hidden).mkdir(parents=True)
        shutil.copy(source / "red" / "red0.jpg", source / hidden / "copy.jpg")
    shutil.copy(source / "red" / "red0.jpg", source / "red" / "._red0.jpg")
    for name, folder in (("a", source), ("b", clean)):
        assert convert("resnet", folder, tmp_path / name) == 0
    assert same_files(tmp_path / "a", tmp_path / "b")
    clips = custom_sources.clips(tmp_path / "clips", 3)
    shutil.copytree(clips / "left", clips / ".ipynb_checkpoints")
    shutil.copytree(clips / "left", clips / "left" / "__MACOSX")
    assert convert("tsm_kinetics", clips, tmp_path / "c") == 0
    description = data_description.read(tmp_path / "c")
    assert description.labels == ("left", "right") and sum(description.split.values()) == 6


def test_a_test_folder_beside_the_split_and_loose_pictures_are_said(tmp_path, capsys):
    photos = tmp_path / "photos"
    for part, count in (("train", 4), ("val", 2), ("test", 3)):
        custom_sources.photographs(photos / part, count)
    assert convert("resnet", photos, tmp_path / "out") == 0
    assert data_description.read(tmp_path / "out").split == {"train": 8, "eval": 4}
    assert (
        f"skipped: beside train/ and val/, which are read: 6, such as {photos}/test/"
        in capsys.readouterr().err
    )
    assert convert("resnet", photos / "test" / "red", tmp_path / "other") == 2
    message = capsys.readouterr().err
    assert (
        "its pictures, such as red0.jpg, are in no class's folder" in message
        and "a CSV file of path,label" in message
    )


def test_a_baseline_of_text_is_a_copy_of_the_source_where_that_is_best(tmp_path):
    needs_text()
    source, target = custom_sources.sentences(tmp_path / "text")
    target.write_text(source.read_text())
    status, description = text(source, target, out=tmp_path / "out")
    assert status == 0 and description.baseline["what"] == "copying the source"
    assert description.baseline["value"] == pytest.approx(1.0)


@pytest.mark.parametrize("place", ["source", "out"])
def test_a_path_that_no_file_can_have_is_one_line(tmp_path, capsys, place):
    source = custom_sources.photographs(tmp_path / "photos", 4)
    paths = {"source": source, "out": tmp_path / "out"} | {place: tmp_path / ("x" * 300)}
    assert convert("resnet", *paths.values()) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: {paths[place]}") and message.count("\n") == 1


def test_a_file_s_name_that_is_no_utf8_stops_nothing(tmp_path, capsys):
    name = os.fsdecode(b"caf\xe9")
    photos, clips = (
        custom_sources.photographs(tmp_path / "photos", 4),
        custom_sources.clips(tmp_path / "clips", 3),
    )
    shutil.copy(photos / "red" / "red0.jpg", photos / "red" / f"{name}.jpg")
    (photos / "red" / f"{name}2.jpg").write_bytes(b"no picture")
    shutil.copy(clips / "left" / "left0.mp4", clips / "left" / f"{name}.mp4")
    (clips / "left" / f"{name}2.mp4").write_bytes(b"no video")
    assert convert("resnet", photos, tmp_path / "a") == 0
    assert convert("tsm_kinetics", clips, tmp_path / "b", page=True) == 0
    page = (tmp_path / "b" / "data.html").read_text(encoding="utf-8")
    assert "\\udce92.mp4" in page and "Suspicious" in page
    assert "\\udce92.jpg: no whole picture" in data_description.read(tmp_path / "a").broken[0]
    assert "\\udce92.mp4: " in data_description.read(tmp_path / "b").broken[0]
    held_out = [(tmp_path / out / folder_conversion.HELD_OUT).read_text(encoding="utf-8") for out in "ab"]
    assert all(text.count("\n") for text in held_out)


def test_empty_lines_at_a_text_s_end_are_no_sentences_and_copies_are_suspicious(tmp_path):
    needs_text()
    source, target = custom_sources.sentences(tmp_path, 200)
    source.write_text(source.read_text() + "\n \n")
    status, description = text(source, target, out=tmp_path / "out")
    assert status == 0 and sum(description.split.values()) == 200
    assert "suspicious" in (report := reported(tmp_path / "out"))
    assert "a sentence that is its own translation" not in report["suspicious"]
    assert text(source, source, out=tmp_path / "same")[0] == 0
    report = reported(tmp_path / "same")
    assert report["suspicious"]["a sentence that is its own translation"]["count"] > 100
