"""Tests of Megatron's indexed data sets: bytes written out by hand, pieces read, and every kind of damage."""

import os
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from common.errors import UserError
from llama31_8b import indexed

DOCUMENTS = [np.array([7, 70000, 3]), np.array([1]), np.array([], np.int64), np.array([5, 6])]


def by_hand(documents, code: int, kind: str) -> tuple[bytes, bytes]:
    """(.idx, .bin) of documents, one sequence each, packed number by number."""
    size, place, places = struct.calcsize(kind), 0, []
    for document in documents:
        places.append(place)
        place += len(document) * size
    count = len(documents)
    index = b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) + struct.pack("<B", code)
    index += struct.pack("<QQ", count, count + 1)
    index += b"".join(struct.pack("<i", len(document)) for document in documents)
    index += b"".join(struct.pack("<q", place) for place in places)
    index += b"".join(struct.pack("<q", number) for number in range(count + 1))
    return index, b"".join(struct.pack("<" + kind, int(t)) for document in documents for t in document)


@pytest.fixture
def text_prefix(tmp_path):
    prefix = tmp_path / "text"
    assert indexed.write(prefix, DOCUMENTS, np.dtype(np.int32)) == 6
    return prefix


def test_files_equal_the_format_written_by_hand(text_prefix):
    index, tokens = indexed.paths(text_prefix)
    assert (index.read_bytes(), tokens.read_bytes()) == by_hand(DOCUMENTS, 4, "i")
    assert index.stat().st_size == 42 + 20 * len(DOCUMENTS)


@pytest.mark.parametrize(
    ("code", "kind"), [(1, "B"), (2, "b"), (3, "h"), (4, "i"), (5, "q"), (8, "H")], ids="Bbhiqh"
)
def test_every_type_of_integers_is_read_alike(code, kind, tmp_path):
    documents = [np.array([1, 2, 3]), np.array([4])]
    index, tokens = by_hand(documents, code, kind)
    (tmp_path / "t.idx").write_bytes(index)
    (tmp_path / "t.bin").write_bytes(tokens)
    index_read = indexed.read_index(tmp_path / "t")
    assert index_read.tokens == 4 and list(index_read.lengths) == [3, 1]
    read = indexed.Reader(index_read, 5).read([(1, 0, 1), (0, 1, 2)])
    assert read.dtype == np.int32 and list(read) == [4, 2, 3]


def test_the_type_of_a_vocabulary_is_megatrons():
    kinds = [indexed.dtype_for(size) for size in (256, 65_499, 65_500, 128_256)]
    assert kinds == [np.uint16, np.uint16, np.int32, np.int32]


def replaced(content: bytes, place: int, kind: str, value: int) -> bytes:
    part = struct.pack(kind, value)
    return content[:place] + part + content[place + len(part) :]


DAMAGE = {
    "magic": (lambda b: b"x" + b[1:], "is not an index of Megatron's format"),
    "empty": (lambda b: b"", "is not an index of Megatron's format"),
    "version": (lambda b: replaced(b, 9, "<Q", 2), "version 2, this program reads 1"),
    "float": (lambda b: replaced(b, 17, "<B", 7), "code 7 of the tokens' type is not an integer's"),
    "unknown": (lambda b: replaced(b, 17, "<B", 77), "code 77 of the tokens' type"),
    "other type": (lambda b: replaced(b, 17, "<B", 8), "lengths do not match their places"),
    "count": (lambda b: replaced(b, 18, "<Q", 5), "122 bytes, but 5 sequences"),
    "cut": (lambda b: b[:-3], "119 bytes, but 4 sequences"),
    "length": (lambda b: replaced(b, 34, "<i", 2), "lengths do not match their places"),
    "last length": (lambda b: replaced(b, 46, "<i", 3), "24 bytes, must have 28 bytes by text.idx"),
    "negative": (lambda b: replaced(b, 46, "<i", -2), "lengths do not match their places"),
    "place": (lambda b: replaced(b, 58, "<q", 13), "lengths do not match their places"),
    "documents": (lambda b: replaced(b, 114, "<q", 3), "its documents do not cover its 4 sequences"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_index_is_refused_in_one_line(name, text_prefix):
    damage, message = DAMAGE[name]
    path, _ = indexed.paths(text_prefix)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=message) as error:
        indexed.read_index(text_prefix)
    assert "\n" not in str(error.value) and str(text_prefix) in str(error.value)


@pytest.mark.parametrize("suffix", [".idx", ".bin"])
def test_a_prefix_without_one_of_its_files_is_refused(suffix, text_prefix):
    (text_prefix.parent / f"text{suffix}").unlink()
    with pytest.raises(UserError, match=rf"text\{suffix}: no such file; fill the folder"):
        indexed.read_index(text_prefix)


@pytest.mark.parametrize("change", [-1, 4], ids=["truncated", "longer"])
def test_tokens_of_another_size_than_the_index_says_are_refused(change, text_prefix):
    _, path = indexed.paths(text_prefix)
    content = path.read_bytes()
    path.write_bytes(content[:change] if change < 0 else content + bytes(change))
    with pytest.raises(UserError, match=f"text.bin: {24 + change} bytes, must have 24 bytes by text.idx"):
        indexed.read_index(text_prefix)


def test_a_token_beyond_the_vocabulary_is_refused_and_kept_as_the_fault(text_prefix):
    reader = indexed.Reader(indexed.read_index(text_prefix), 70_000)
    assert list(reader.read([(3, 0, 2)])) == [5, 6] and reader.fault is None
    with pytest.raises(indexed.BadTokensError, match="token 70000 is not in the vocabulary of 70000"):
        reader.read([(0, 0, 3)])
    assert "text.bin" in str(reader.fault)


def test_a_negative_token_is_refused(tmp_path):
    indexed.write(tmp_path / "t", [np.array([1, -2])], np.dtype(np.int32))
    with pytest.raises(indexed.BadTokensError, match="token -2 is not in the vocabulary"):
        indexed.Reader(indexed.read_index(tmp_path / "t"), 9).read([(0, 0, 2)])


def test_tokens_that_become_fewer_while_they_are_read_are_noticed(text_prefix):
    reader = indexed.Reader(indexed.read_index(text_prefix), 70_001)
    indexed.paths(text_prefix)[1].write_bytes(bytes(10))
    with pytest.raises(indexed.BadTokensError, match="ends at byte 10, too early"):
        reader.read([(0, 0, 3)])


def test_threads_that_read_first_open_the_file_once(text_prefix, monkeypatch):
    opened, really = [], os.open

    def slow(path, flags):
        opened.append(path)
        time.sleep(0.05)
        return really(path, flags)

    monkeypatch.setattr(indexed.os, "open", slow)
    reader = indexed.Reader(indexed.read_index(text_prefix), 70_001)
    with ThreadPoolExecutor(8) as pool:
        assert all(list(x) == [7, 70000] for x in pool.map(reader.read, [[(0, 0, 2)]] * 8))
    assert len(opened) == 1
