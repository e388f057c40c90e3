"""Tests records.json: what it says is believed by the files' sizes alone, and a damaged or stale note is one line."""

import os
import shutil

import pytest

from common.data import record_counts, record_stream, tfrecords
from common.distributed.replicas.base import Shard
from common.errors import UserError


@pytest.fixture
def files(tmp_path):
    """Three files of 6 records of 16 + 3 bytes, which no note knows."""
    paths = [str(tmp_path / tfrecords.shard_name("train", i, 3)) for i in range(3)]
    for i, path in enumerate(paths):
        tfrecords.write(path, [f"{i}-{n}".encode() for n in range(6)])
    return paths


def note(files):
    folder = os.path.dirname(files[0])
    return record_counts.write(folder, [os.path.basename(file) for file in files])


def unreadable(monkeypatch):
    """Makes every count of a file's records fail."""

    def count(path):
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr(tfrecords, "count", count)


@pytest.mark.parametrize("file, count", [(0, 4), (2, 0)])
def test_a_file_cut_off_between_two_records_is_named(files, file, count):
    """Such a file reads like a complete one."""
    record_counts.check_totals(files, 18, "num_train_examples")
    os.truncate(files[file], count * 19)
    assert len(list(tfrecords.read(files[file]))) == count and tfrecords.diagnose(files) is None
    with pytest.raises(UserError) as error:
        record_counts.check_totals(files, 18, "num_train_examples")
    assert str(error.value).startswith(
        f"{files[file]}: 3 such files hold {12 + count} records, config.num_train_examples is 18; "
        f"was it cut off? It has {count}, others up to 6; give"
    )


def test_a_lost_file_is_noticed(files):
    for has_note in (False, True):
        if has_note:
            note(files)
        with pytest.raises(UserError, match="1 such files hold 6 records, config.n is 12; was a file lost"):
            record_counts.check_totals(files[:1], 12, "n")


def test_a_note_s_numbers_are_compared_without_reading_a_file(files, monkeypatch):
    assert note(files) == {os.path.basename(file): 6 for file in files}
    unreadable(monkeypatch)
    for read in (False, True):
        record_counts.check_totals(files, 18, "n", read)
        with pytest.raises(UserError, match="3 such files hold 18 records, config.n is 19"):
            record_counts.check_totals(files, 19, "n", read)
    assert record_counts.counts(files[1:]) == [6, 6]
    assert record_stream.size(files, Shard(1, 2)) == 9


def test_without_a_note_no_file_is_read_before_the_clock_and_a_line_says_so(files, monkeypatch, capsys):
    assert record_counts.noted(files) is None
    with monkeypatch.context() as patched:
        unreadable(patched)
        record_counts.check_totals(files, 19, "n", read=False)
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "counts their records on the clock" in message
    assert record_counts.main([message.split("common.data.record_counts ")[1].strip()]) == 0
    assert "18 records in 3 files" in capsys.readouterr().out
    record_counts.check_totals(files, 18, "n", read=False)
    assert not capsys.readouterr().err


def test_of_several_processes_the_first_says_so(files, monkeypatch, capsys):
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    for rank, lines in (("0", 1), ("1", 0)):
        monkeypatch.setenv("HOROVOD_RANK", rank)
        record_counts.check_totals(files, 19, "n", read=False)
        assert capsys.readouterr().err.count("on the clock") == lines


@pytest.mark.parametrize("size", [0, 18, 19 * 6 + 1])
def test_a_file_of_another_size_than_noted_is_refused_before_the_clock(files, size):
    note(files)
    os.truncate(files[1], size)
    with pytest.raises(UserError, match=f"train-00001-of-00003: has {size} bytes, records.json .* says 114"):
        record_counts.check_totals(files, 18, "n", read=False)
    tfrecords.write(files[1], [b"12345"] * 4)
    note(files)  # As the message says.
    assert record_counts.noted(files) == [6, 4, 6]


def test_a_note_holds_in_a_copy_of_the_folder(files, tmp_path):
    note(files)
    copy = shutil.copytree(tmp_path, tmp_path / "copy")
    assert record_counts.noted([str(copy / os.path.basename(file)) for file in files]) == [6, 6, 6]


def test_files_that_the_note_does_not_know_are_counted(files):
    note(files[:2])
    assert record_counts.noted(files[:2]) == [6, 6] and record_counts.noted(files) is None
    assert record_counts.counts(files) == [6, 6, 6]
    note(files[2:])  # Adds to the note.
    assert record_counts.noted(files) == [6, 6, 6]


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "3", '{"format": 2, "files": {}}', '{"format": 1, "files": {"a": [1]}}',
        '{"format": 1, "files": 7}',
    ],
)  # fmt: skip
def test_a_damaged_note_is_one_line(files, tmp_path, content):
    (tmp_path / record_counts.NAME).write_text(content)
    with pytest.raises(UserError, match=r"records.json: no note of records \(.*; remove it, then python -m"):
        record_counts.noted(files)


def test_the_command_refuses_what_is_no_folder_of_records(tmp_path, capsys):
    assert record_counts.main([str(tmp_path)]) == 2 and "holds no files" in capsys.readouterr().err
    assert record_counts.main([]) == 2 and "DATA_DIR" in capsys.readouterr().err
