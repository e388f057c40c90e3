"""Tests the notes beside COCO records: they hold in a copy of the folder, and the command makes them."""

import shutil

import pytest

from common.data import record_counts
from common.detection import coco_index, drawing, notes

PICTURES = drawing.Pictures(train_images=4, eval_images=2, train_files=2, eval_files=1)
SPLITS = ("train", "val")


@pytest.fixture
def folder(tmp_path):
    """Records that no note knows."""
    drawing.generate(tmp_path / "made", PICTURES, "ssd")
    (tmp_path / "made" / record_counts.NAME).unlink()
    return tmp_path / "made"


def files(folder, split):
    return sorted(map(str, folder.glob(f"{split}-*.tfrecord")))


def test_the_command_notes_numbers_and_index(folder, capsys):
    assert not any(coco_index.is_kept(files(folder, split)) for split in SPLITS)
    words = notes.command(folder).split("common.detection.notes ")[1].split()
    assert notes.main(words) == 0 and "6 records noted" in capsys.readouterr().out
    assert [record_counts.noted(files(folder, split)) for split in SPLITS] == [[2, 2], [2]]
    assert all(coco_index.is_kept(files(folder, split)) for split in SPLITS)


def test_the_numbers_alone_leave_no_index(folder):
    assert notes.write(folder, index=False) == 6
    assert not any(folder.glob("*.index.npz"))


def test_an_index_holds_in_a_copy_of_the_folder_and_no_record_is_read_again(folder, tmp_path, monkeypatch):
    notes.write(folder, index=True)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, copy_function=shutil.copy)  # With other times.

    def scan(*arguments):
        raise AssertionError("the records are read")

    monkeypatch.setattr(coco_index, "_scan", scan)
    index = coco_index.read(files(copy, "train"))
    assert len(index) == 4 and index.files == tuple(files(copy, "train"))


def test_a_folder_without_records_is_one_line(tmp_path, capsys):
    assert notes.main([str(tmp_path)]) == 2
    assert "no file matches 'train-*-of-*'" in capsys.readouterr().err
