"""Holds the hand-written faults to the sources: each applies in one place, and its tests exist."""

import pathlib
import subprocess
import sys

import pytest

from tools.mutate import faults

FAULTS = faults.hand_written()


def test_there_are_faults_of_the_papers_and_their_names_differ() -> None:
    assert len(FAULTS) >= 100
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_applies_and_its_tests_exist(fault: faults.Fault) -> None:
    text = fault.applied((faults.ROOT / fault.file).read_text(encoding="utf-8"))
    compile(text, fault.file, "exec")
    assert fault.tests and fault.why
    for test in fault.tests:
        assert (faults.ROOT / test.partition("::")[0]).exists()


def test_no_fault_uses_a_name_that_is_not_there(tmp_path: pathlib.Path) -> None:
    """Any test would notice a NameError."""
    for fault in (f for f in FAULTS if f.file.endswith(".py")):
        text = fault.applied((faults.ROOT / fault.file).read_text(encoding="utf-8"))
        (tmp_path / f"{fault.name}.py").write_text(text, encoding="utf-8")
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F821", "--output-format=concise"]
    run = subprocess.run([*ruff, "."], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
