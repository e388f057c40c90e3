"""Tables and pictures of studies: whole, or as they were."""

from __future__ import annotations

import pathlib

import pytest

from common import files
from common.errors import UserError


def picture(path: pathlib.Path) -> None:
    from matplotlib.figure import Figure

    files.write_picture(path, Figure())


WRITERS = {
    "results.csv": lambda path: files.write_csv(path, ("a", "b"), [(1, None), ("x,y", 2.5)]),
    "table.md": lambda path: files.write_text(path, "| µ |\n"),
    "curve.png": picture,
    "log.txt": lambda path: files.copy(pathlib.Path(__file__), path),
}


@pytest.fixture
def full(monkeypatch):
    """A disk that is full after some bytes."""
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
    with pytest.raises(
        UserError, match=f"{name}: cannot write: No space left on device; free some space there"
    ):
        WRITERS[name](path)
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == [name]


def test_a_table_is_what_the_csv_module_writes_into_a_file(tmp_path) -> None:
    WRITERS["results.csv"](tmp_path / "results.csv")
    assert (tmp_path / "results.csv").read_bytes() == b'a,b\r\n1,\r\n"x,y",2.5\r\n'


def test_rows_are_a_table_for_programs_and_one_for_people(tmp_path, capsys) -> None:
    files.write_rows(tmp_path, [{"seed": 0, "top1": 0.5}, {"seed": 1, "top1": "diverged"}])
    assert (tmp_path / "results.csv").read_bytes() == b"seed,top1\r\n0,0.5\r\n1,diverged\r\n"
    want = "| seed | top1 |\n|---|---|\n| 0 | 0.5 |\n| 1 | diverged |\n"
    assert (tmp_path / "table.md").read_text() == want and want in capsys.readouterr().out
