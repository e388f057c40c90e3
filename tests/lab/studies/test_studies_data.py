"""Tests where studies find their data: in an archive, or in a folder that a user filled."""

import pathlib
import tarfile
import zipfile

import pytest

from common.errors import UserError
from lab.studies import data
from lab.studies.legw_values import FILES, PTB


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch) -> pathlib.Path:
    monkeypatch.setenv("TTT_SHARED", str(tmp_path / "shared"))
    monkeypatch.setenv("TTT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "shared" / "data").mkdir(parents=True)
    return tmp_path


def test_an_archive_is_unpacked_into_the_cache(places) -> None:
    folder = places / "made" / "text"
    folder.mkdir(parents=True)
    (folder / "words").write_text("a b")
    with tarfile.open(places / "shared" / "data" / "text.tar.xz", "w:xz") as archive:
        archive.add(folder, "text")
    assert (data.unpack("text") / "words").read_text() == "a b"
    assert data.unpack("text").parent == places / "cache" and list((places / "cache").iterdir()) == [
        places / "cache" / "text"
    ]


def test_a_folder_is_taken_as_it_is_and_nothing_is_written_beside_it(places) -> None:
    ready = places / "shared" / "data" / "text" / "ptb"
    ready.mkdir(parents=True)
    for name in FILES:
        (ready / name).write_text("a b")
    for _ in range(2):
        assert data.unpack("text") == places / "cache" / "text"
        assert (PTB.data() / "ptb.test.txt").read_text() == "a b"
    ready.parent.rename(places / "moved")
    with pytest.raises(UserError, match="data/text.tar.xz is not there"):
        data.unpack("text")
    (places / "moved").rename(places / "shared" / "data" / "text")
    assert (data.unpack("text") / "ptb").is_dir()


def test_a_data_set_that_is_not_there_is_one_line(places) -> None:
    with pytest.raises(UserError, match=r"set TTT_SHARED to the folder .* or data/mnist \(docs/studies.md"):
        data.unpack("mnist")


@pytest.mark.parametrize("damage", ["cut", "foreign", "another"])
def test_a_damaged_archive_is_one_line_and_leaves_nothing(places, damage) -> None:
    path = places / "shared" / "data" / "text.tar.xz"
    folder = places / "made" / "text"
    folder.mkdir(parents=True)
    (folder / "words").write_bytes(bytes(range(256)) * 400)
    with tarfile.open(path, "w:xz") as archive:
        archive.add(folder, "words" if damage == "another" else "text")
    if damage != "another":
        path.write_bytes(path.read_bytes()[:-60] if damage == "cut" else b"no archive")
    with pytest.raises(UserError, match="text.tar.xz: cannot unpack it: .*; get it again"):
        data.unpack("text")
    assert not list((places / "cache").iterdir())


def test_an_archive_of_links_or_of_paths_that_leave_is_refused(places, monkeypatch) -> None:
    """Also by a Python whose tarfile has no filters."""
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    for member in (tarfile.TarInfo("text/../../outside"), tarfile.TarInfo("text/link")):
        if member.name.endswith("link"):
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        with tarfile.open(places / "shared" / "data" / "text.tar.xz", "w:xz") as archive:
            archive.addfile(member)
        with pytest.raises(UserError, match="is a link or a device, or leaves the folder"):
            data.unpack("text")
    assert not list(places.rglob("outside"))


@pytest.fixture
def zipped(places) -> pathlib.Path:
    """The Penn Treebank as a zip file, in a folder that a user filled."""
    folder = places / "shared" / "data" / "text" / "ptb"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "ptb.zip", "w") as archive:
        for name in FILES:
            archive.writestr(name, "a b")
    return folder


def test_a_zip_file_is_unpacked_into_the_cache_and_not_beside_it(places, zipped) -> None:
    for _ in range(2):
        folder = PTB.data()
        assert folder.parent == places / "cache" and sorted(p.name for p in folder.iterdir()) == sorted(FILES)
    assert [p.name for p in zipped.iterdir()] == ["ptb.zip"]


@pytest.mark.parametrize("damage", ["gone", "cut", "another"])
def test_a_zip_file_that_is_not_whole_is_one_line_and_leaves_nothing(places, zipped, damage) -> None:
    path = zipped / "ptb.zip"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:100])
    else:
        path.unlink()
    if damage == "another":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("ptb.train.txt", "a b")
    with pytest.raises(UserError, match="ptb.zip: cannot unpack ptb.train.txt, .*; get it again"):
        PTB.data()
    assert [p.name for p in (places / "cache").iterdir()] == ["text"]
