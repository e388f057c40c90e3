"""Tests how the tests are divided: the parts of `make test`, and what `make quick` leaves out."""

import pathlib

import pytest

from tools import run_tests, slow_tests

ROOT = pathlib.Path(__file__).resolve().parents[1]


def test_every_folder_of_a_part_exists_and_the_last_part_is_the_rest():
    *named, rest = run_tests.parts()
    folders = [name for part in named for name in part]
    assert all((ROOT / name).is_dir() for name in folders) and len(set(folders)) == len(folders)
    assert rest == ["tests", *(f"--ignore={name}" for name in folders)]


def test_make_quick_leaves_out_files_that_exist():
    head, *names = (ROOT / "tests/slow.txt").read_text().splitlines()
    assert head == slow_tests.HEAD.format(limit=slow_tests.LIMIT)
    assert [name for name in names if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize(
    ("argument", "names"),
    [("tests/test_parts.py", True), ("tests/common", True), ("-x", False), ("not study", False)],
)
def test_arguments_that_name_tests_run_these_alone(argument, names):
    assert run_tests.names_tests(argument) == names
