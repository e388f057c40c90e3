"""Tests TFRecord streams: exact partition, one order for every cache, entry at any record, damage by file name."""

import itertools
import os
import shutil

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from common.data import record_stream, tfrecords
from common.distributed.replicas.base import Shard
from common.errors import UserError


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    for file in range(5):
        number = tfrecords.write(
            folder / tfrecords.shard_name("train", file, 5), [b"%d-%d" % (file, r) for r in range(20 + file)]
        )
        assert number == 20 + file
    return tfrecords.list_files(folder, "train-*", "make them")


def take(dataset, n):
    return [(int(epoch), value.numpy()) for epoch, _, _, value in itertools.islice(dataset, n)]


ALL = sorted(b"%d-%d" % (file, r) for file in range(5) for r in range(20 + file))


@given(st.integers(0, 40), st.integers(1, 40), st.integers(0, 30))
def test_shards_partition_the_records(num_files, num_shards, per_file):
    records, sizes = set(), []
    for index in range(num_shards):
        mine = {
            (part.file, record)
            for part in record_stream.assign(num_files, Shard(index, num_shards))
            for record in range(per_file)
            if record % part.stride == part.offset
        }
        parts = record_stream.assign(num_files, Shard(index, num_shards))
        assert len(mine) == sum(part.size(per_file) for part in parts)
        assert not records & mine
        records |= mine
        sizes.append(len(mine))
    assert len(records) == num_files * per_file
    # Sizes differ only by the rounding of files that several shards read.
    assert max(sizes) - min(sizes) <= num_files % num_shards + 1


@pytest.mark.parametrize("num_shards", [2, 5, 7])
def test_shards_read_their_part_and_nothing_else(files, num_shards):
    records = []
    for index in range(num_shards):
        shard = Shard(index, num_shards)
        mine = [value.numpy() for _, _, value in record_stream.once(files, shard)]
        assert len(mine) == record_stream.size(files, shard)
        records += mine
    assert sorted(records) == ALL


def test_a_process_without_a_record_is_one_line_and_no_endless_wait(files):
    """A file of 20 records gives the processes 20 and above none."""
    for start in (0, 3):
        with pytest.raises(UserError, match="no record for process 24 of 25; use fewer processes"):
            record_stream.endless(files[:1], Shard(24, 25), 1, 1, start)


def test_files_are_read_whole_where_their_number_allows():
    assert record_stream.assign(8, Shard(1, 4)) == [record_stream.Part(1), record_stream.Part(5)]
    assert record_stream.assign(1024, Shard(1500, 2048)) == [
        record_stream.Part(1500 % 1024, 2, (1 + 476) % 2)
    ]


def test_every_epoch_is_another_permutation(files):
    n = len(ALL)
    stream = take(record_stream.endless(files, Shard(), seed=1, shuffle_buffer=16), 3 * n)
    orders = [[value for _, value in stream[i * n : (i + 1) * n]] for i in range(3)]
    assert [epoch for epoch, _ in stream] == [0] * n + [1] * n + [2] * n
    assert all(sorted(order) == ALL for order in orders)
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_files_in_groups_are_a_permutation_too_and_the_same_with_a_cache(files, monkeypatch):
    monkeypatch.setattr(record_stream, "_GROUPS", 3)
    n = len(ALL)
    plain, cached = (
        take(record_stream.endless(files, Shard(), 1, 16, cache=c), 2 * n) for c in (False, True)
    )
    assert plain == cached
    assert sorted(value for _, value in plain[:n]) == sorted(value for _, value in plain[n:]) == ALL


def test_order_depends_on_the_seed_and_on_nothing_else(files):
    def stream(seed, **more):
        return take(record_stream.endless(files, Shard(), seed, 16, **more), 150)

    first = stream(1)
    tf.random.set_seed(1234)
    assert stream(1) == first
    assert stream(1, cache=True) == first
    assert stream(2) != first
    assert stream(2**40 + 1) != first


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("start", [1, len(ALL), len(ALL) + 17])
@pytest.mark.parametrize("shard", [Shard(), Shard(1, 3)])
def test_a_stream_can_be_entered_at_any_record(files, cache, start, shard):
    whole = take(record_stream.endless(files, shard, 3, 16, cache=cache), start + 60)
    assert take(record_stream.endless(files, shard, 3, 16, start=start, cache=cache), 60) == whole[start:]


def test_cache_transforms_each_record_once(files):
    calls = tf.Variable(0)

    def transform(file, record, value):
        calls.assign_add(1)
        return value

    dataset = record_stream.endless(files, Shard(), 1, 16, transform=transform, cache=True)
    take(dataset, 3 * len(ALL))
    assert calls.numpy() == len(ALL)


def test_records_carry_their_place(files):
    for _, file, record, value in itertools.islice(record_stream.endless(files, Shard(1, 2), 1, 16), 100):
        assert value.numpy() == b"%d-%d" % (file, record)


def test_count_gives_the_number_of_records_of_each_file(files):
    assert [tfrecords.count(file) for file in files] == [20, 21, 22, 23, 24]


@pytest.fixture
def damaged(files, tmp_path):
    copies = []
    for file in files:
        copy = tmp_path / os.path.basename(file)
        shutil.copy(file, copy)
        copies.append(str(copy))
    return copies


def test_diagnose_names_file_and_record_of_a_corrupt_one(damaged):
    with open(damaged[2], "r+b") as file:
        # Each of the first records takes 12 + 3 + 4 bytes, so that this is inside record 7.
        file.seek(7 * 19 + 13)
        file.write(b"x")
    with pytest.raises(tf.errors.DataLossError):
        take(record_stream.endless(damaged, Shard(), 1, 16), 200)
    assert f"{damaged[2]}: record 7 is damaged" in str(tfrecords.diagnose(damaged))


@pytest.mark.parametrize("rest", [1, 9, 14, 18])  # In the header, in the payload, in the checksum.
def test_diagnose_names_file_and_record_of_a_truncated_one(damaged, rest):
    os.truncate(damaged[3], 5 * 19 + rest)
    assert f"{damaged[3]}: record 5 is damaged" in str(tfrecords.diagnose(damaged))
    with pytest.raises(UserError, match="record 5 is damaged"):
        tfrecords.count(damaged[3])


def test_diagnose_reports_what_the_check_finds(files):
    error = tfrecords.diagnose(files, lambda record: "odd" if record == b"1-4" else None)
    assert str(error) == f"{files[1]}: record 4: odd; replace the file"
    assert tfrecords.diagnose(files) is None


def test_missing_folder_and_missing_files_name_the_fix(tmp_path):
    with pytest.raises(UserError, match="does not exist; run the script"):
        tfrecords.list_files(tmp_path / "none", "train-*", "run the script")
    with pytest.raises(UserError, match="no file matches 'train-\\*'; run the script"):
        tfrecords.list_files(tmp_path, "train-*", "run the script")


def test_no_half_written_file_appears(tmp_path):
    def fails():
        yield b"one"
        raise RuntimeError("source broke")

    with pytest.raises(RuntimeError):
        tfrecords.write(tmp_path / "train-00000-of-00001", fails())
    assert list(tmp_path.iterdir()) == []


def test_unwritable_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        tfrecords.write(tmp_path / "file" / "train-00000-of-00001", [b"x"])


def test_example_round_trip():
    serialized = tfrecords.example({"a": b"\xff", "b": "text", "c": 7, "d": [0.5, 1.5]})
    parsed = tf.train.Example.FromString(serialized).features.feature
    assert parsed["a"].bytes_list.value[0] == b"\xff"
    assert parsed["b"].bytes_list.value[0] == b"text"
    assert parsed["c"].int64_list.value[0] == 7
    assert list(parsed["d"].float_list.value) == [0.5, 1.5]
