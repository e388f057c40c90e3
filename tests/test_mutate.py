"""Holds the hand-written faults to the sources: each applies in one place, and its tests exist."""

from __future__ import annotations

import pathlib

import pytest

from tools.mutate import faults, mechanical, runner

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


def test_a_fault_whose_text_is_gone_is_an_error() -> None:
    fault = faults.Fault("gone", "common/errors.py", "no such text", "", ("tests",))
    with pytest.raises(ValueError, match="gone: 0 places in common/errors.py"):
        fault.applied("text")


def test_mechanical_faults_change_one_thing_and_compile() -> None:
    found = mechanical.faults("common/config/legw.py", ("tests/common/config/test_legw.py",))
    assert len(found) >= 15 and len({fault.name for fault in found}) == len(found)
    for fault in found:
        text = fault.applied(fault.old)
        compile(text, fault.file, "exec")
        assert text != fault.old


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
