"""Tests the runner of faults."""

import pathlib
import subprocess

import pytest

from common.errors import UserError
from tools.mutate import faults, runner
from tools.mutate.__main__ import changed_since


def test_a_fault_whose_text_is_gone_is_an_error() -> None:
    fault = faults.Fault("gone", "common/errors.py", "no such text", "", ("tests",))
    with pytest.raises(ValueError, match="gone: 0 places in common/errors.py"):
        fault.applied("text")


@pytest.mark.parametrize(
    ("root", "outcome"), [("math.sqrt(ratio)", runner.SURVIVED), ("float(ratio)", runner.CAUGHT)]
)
def test_a_run_tells_faults_that_tests_notice(root: str, outcome: str, tmp_path: pathlib.Path) -> None:
    """The first change is none."""
    old = "root = math.sqrt(ratio)"
    fault = faults.Fault(
        "rate", "common/config/legw.py", old, f"root = {root}", ("tests/common/config/test_legw.py",)
    )
    (result,) = runner.run([fault], tmp_path, slots=1)
    assert result.outcome == outcome, result.log


def test_a_test_that_fails_without_the_fault_has_not_caught_it(tmp_path: pathlib.Path) -> None:
    """A change that changes nothing: one test fails in any case, the other passes."""
    old = "root = math.sqrt(ratio)"
    tests = (
        "tests/test_mutate.py::test_fails_in_a_copy",
        "tests/common/config/test_legw.py::test_the_flag_wants_a_number",
    )
    fault = faults.Fault("none", "common/config/legw.py", old, f"{old}  # The same.", tests)
    (result,) = runner.run([fault], tmp_path, slots=1)
    assert (result.outcome, result.by) == (runner.SURVIVED, "")


def test_fails_in_a_copy() -> None:
    """A copy is no checkout, so this fails there, for the test above."""
    assert (faults.ROOT / ".git").exists()


def test_the_test_that_caught_a_fault_is_run_first_and_the_others_where_it_notices_no_more(
    tmp_path: pathlib.Path,
) -> None:
    tests = "tests/common/config/test_legw.py"
    fault = faults.Fault(
        "rate", "common/config/legw.py", "root = math.sqrt(ratio)", "root = float(ratio)", (tests,)
    )
    before = f"{tests}::test_the_flag_wants_a_number"
    (result,) = runner.run([fault], tmp_path, slots=1, by={"rate": before})
    assert result.outcome == runner.CAUGHT and result.by not in ("", before)


def test_what_changed_is_told_since_a_revision_and_an_unknown_one_is_one_line(tmp_path: pathlib.Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-b", "main")
    for name in ("first", "second"):
        (tmp_path / name).write_text(name)
        git("add", name)
        git("commit", "-m", name)
    (tmp_path / "first").write_text("edited")
    assert changed_since("HEAD", tmp_path) == {"first"}
    assert changed_since("HEAD~1", tmp_path) == {"first", "second"}
    with pytest.raises(UserError, match="--changed_since=gone: .*; name a commit or branch"):
        changed_since("gone", tmp_path)
