"""Tests the journal of long tests: what has passed is left out, and other sources begin anew."""

import pathlib
import subprocess
import sys

import pytest

TESTS = """
import pathlib, pytest
def test_first(): pathlib.Path("first.log").open("a").write("x")
def test_second(): assert pathlib.Path("mended").exists()
"""
CONFTEST = """
import pathlib, sys
sys.path.insert(0, {root!r})
from tools.journal import Journal
def pytest_configure(config):
    config.pluginmanager.register(Journal(pathlib.Path("journal.txt"), pathlib.Path("sources").read_text()))
"""


def run(folder: pathlib.Path, processes: int) -> int:
    command = [
        sys.executable, "-m", "pytest", "-q", f"-n{processes}", "-p", "no:cacheprovider", "-c", "/dev/null",
        ".",
    ]  # fmt: skip
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode


@pytest.mark.parametrize("processes", [0, 2])
def test_a_second_run_leaves_out_what_has_passed(processes: int, tmp_path: pathlib.Path) -> None:
    root = str(pathlib.Path(__file__).resolve().parents[1])
    (tmp_path / "conftest.py").write_text(CONFTEST.format(root=root))
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "sources").write_text("one")
    first, journal = tmp_path / "first.log", tmp_path / "journal.txt"
    assert run(tmp_path, processes) == 1 and run(tmp_path, processes) == 1
    assert first.read_text() == "x" and journal.read_text().splitlines() == ["one", "test_it.py::test_first"]
    (tmp_path / "sources").write_text("two")
    assert run(tmp_path, processes) == 1 and first.read_text() == "xx"
    (tmp_path / "mended").touch()
    assert run(tmp_path, processes) == 0 and first.read_text() == "xx"
    assert journal.read_text().splitlines() == ["two", "test_it.py::test_first", "test_it.py::test_second"]
