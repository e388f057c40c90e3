"""Tests that files and folders are written whole or left as they were."""

import os
import pathlib
import stat
import subprocess
import sys

import pytest

from common import files
from common.errors import UserError
from timetotrain import figures


def picture(path: pathlib.Path) -> None:
    from matplotlib.figure import Figure

    figures.write(path, Figure())


WRITERS = {
    "results.csv": lambda path: files.write_csv(path, ("a", "b"), [(1, None), ("x,y", 2.5)]),
    "table.md": lambda path: files.write_text(path, "| µ |\n"),
    "curve.png": picture,
    "log.txt": lambda path: files.copy(pathlib.Path(__file__), path),
}


@pytest.fixture
def full(monkeypatch):
    """Simulates a disk that is full after some bytes."""
    write = pathlib.Path.write_bytes

    def some(self: pathlib.Path, data: bytes) -> int:
        write(self, data[:3])
        raise OSError(28, "No space left on device")

    return lambda: monkeypatch.setattr(pathlib.Path, "write_bytes", some)


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_one_line_and_leaves_what_was_there(tmp_path, full, name) -> None:
    path = tmp_path / "study" / name
    WRITERS[name](path)
    before = path.read_bytes()
    full()
    with pytest.raises(UserError, match=f"{name}: cannot write: No space left on device; free space there"):
        WRITERS[name](path)
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == [name]


def test_a_table_is_what_the_csv_module_writes_into_a_file(tmp_path) -> None:
    WRITERS["results.csv"](tmp_path / "results.csv")
    assert (tmp_path / "results.csv").read_bytes() == b'a,b\r\n1,\r\n"x,y",2.5\r\n'


def test_a_failure_in_the_middle_leaves_the_old_file_and_nothing_else(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), files.whole(path) as partial:
        partial.write_text("ne")
        assert path.read_text() == "old"
        raise RuntimeError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError), files.whole(path):
        pass  # The body makes no folder.
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_folder_replaces_an_empty_one_and_no_other(tmp_path) -> None:
    path = tmp_path / "folder"
    for there in (False, True):
        if there:
            path.mkdir()
        with files.whole(path) as partial:
            partial.mkdir()
            (partial / "file").write_text("a")
        assert [p.name for p in path.iterdir()] == ["file"]
        if not there:
            (path / "file").unlink()
            path.rmdir()
    with pytest.raises(OSError, match="not empty"), files.whole(path) as partial:
        partial.mkdir()
    with pytest.raises(RuntimeError), files.whole(tmp_path / "other") as partial:
        partial.mkdir()
        (partial / "file").write_text("a")
        raise RuntimeError
    assert list(tmp_path.rglob("*")) == [path, path / "file"]


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path) -> None:
    with pytest.raises(UserError, match="cannot write: Is a directory; name a folder"):
        files.write_atomically(tmp_path, b"a")
    assert list(tmp_path.iterdir()) == []


def test_a_link_stays_a_link(tmp_path) -> None:
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link", tmp_path / "there" / "target"
    link.symlink_to("there/target")
    for data in (b"a", b"b"):  # The link is broken at first.
        files.write_atomically(link, data)
        assert link.is_symlink() and target.read_bytes() == data
    assert sorted(tmp_path.rglob("*")) == [link, target.parent, target]


def test_a_device_and_a_pipe_stay_what_they_are(tmp_path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        files.write_atomically(pipe, b"a")
        assert os.read(reader, 9) == b"a"
    finally:
        os.close(reader)
    files.write_atomically(pathlib.Path("/dev/null"), b"a")
    assert pipe.is_fifo() and pathlib.Path("/dev/null").is_char_device()
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("umask", [0o022, 0o007, 0o077])
def test_permissions_are_those_that_the_umask_leaves(tmp_path, umask) -> None:
    before = os.umask(umask)
    try:
        files.write_atomically(tmp_path / "file", b"a")
        with files.whole(tmp_path / "folder") as partial:
            partial.mkdir()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "folder")]
    assert modes == [0o666 & ~umask, 0o777 & ~umask]


def test_two_writers_at_a_time_do_not_meet(tmp_path) -> None:
    path = tmp_path / "file"
    with files.whole(path) as first:
        first.write_text("first")
        with files.whole(path) as second:
            second.write_text("second")
        assert first != second and path.read_text() == "second"
    assert path.read_text() == "first" and list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_found_by_its_name(tmp_path) -> None:
    code = f"""
import time
from common.files import whole
with whole({str(tmp_path / "file")!r}) as made:
    made.write_text("half")
    print("now", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=files.ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"now\n"
        process.kill()
    assert [p.name for p in files.left_behind(tmp_path, "f*")] == [p.name for p in tmp_path.iterdir()]
    assert not files.left_behind(tmp_path, "other") and not (tmp_path / "file").exists()
    files.write_atomically(tmp_path / "file", b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole" and len(files.left_behind(tmp_path, "file")) == 1


def test_a_name_that_no_folder_can_have_is_one_line(tmp_path) -> None:
    with pytest.raises(UserError, match="--out=.*: cannot write: File name too long"):
        files.try_to_write(tmp_path / ("x" * 300) / "out", "--out")
