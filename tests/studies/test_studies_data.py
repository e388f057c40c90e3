"""Where studies find their data: an archive, or a folder that somebody filled."""

from __future__ import annotations

import pathlib
import tarfile

import pytest

from common.errors import UserError
from studies import data, legw_ptb


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch) -> pathlib.Path:
    monkeypatch.setenv("TTT_SHARED", str(tmp_path / "shared"))
    monkeypatch.setenv("TTT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "shared" / "data").mkdir(parents=True)
    return tmp_path


def test_an_archive_is_unpacked_into_the_cache(places) -> None:
    made = places / "made" / "text"
    made.mkdir(parents=True)
    (made / "words").write_text("a b")
    with tarfile.open(places / "shared" / "data" / "text.tar.xz", "w:xz") as archive:
        archive.add(made, "text")
    assert (data.unpack("text") / "words").read_text() == "a b"
    assert data.unpack("text").parent == places / "cache" and list((places / "cache").iterdir()) == [
        places / "cache" / "text"
    ]


def test_a_folder_is_taken_as_it_is_and_nothing_is_written_beside_it(places) -> None:
    ready = places / "shared" / "data" / "text" / "ptb"
    ready.mkdir(parents=True)
    for name in legw_ptb.FILES:
        (ready / name).write_text("a b")
    for _ in range(2):
        assert data.unpack("text") == places / "cache" / "text"
        assert (legw_ptb.STUDY.data() / "ptb.test.txt").read_text() == "a b"
    ready.parent.rename(places / "moved")
    with pytest.raises(UserError, match="data/text.tar.xz is not there"):
        data.unpack("text")
    (places / "moved").rename(places / "shared" / "data" / "text")
    assert (data.unpack("text") / "ptb").is_dir()


def test_a_data_set_that_is_not_there_is_one_line(places) -> None:
    with pytest.raises(UserError, match=r"set TTT_SHARED to the folder .* or data/mnist \(docs/data.md"):
        data.unpack("mnist")
