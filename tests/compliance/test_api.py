"""Tests the library: `from compliance import check`, its typed outcome, and the verdict in one line."""

import subprocess
import sys
from pathlib import Path

import pytest

import compliance
from compliance import Outcome, Verdict, check, formats
from compliance.findings import Finding
from compliance.log.check_log import LogResult
from tests.compliance import result_logs

ROOT = Path(__file__).parents[2]


def finding(rule, severity="error", path="a"):
    return Finding(rule, severity, path, 1, "", "m", "e", "f", "x")


def test_check_is_a_function_with_typed_results(tmp_path):
    path = tmp_path / "result_0.txt"
    path.write_text(result_logs.log("resnet"))
    outcome = check([path])
    assert isinstance(outcome, Outcome) and isinstance(outcome.logs[0], LogResult)
    assert outcome.verdict == Verdict("go", [], []) and outcome.verdict.go
    assert outcome.files == [str(path)] and outcome.errors == outcome.advice == []
    path.write_text(result_logs.log("resnet", status="aborted"))
    outcome = check([path])
    assert outcome.verdict.answer == "no-go" and "eval_accuracy.target" in outcome.verdict.reasons
    assert not outcome.logs[0].passes


def test_the_package_offers_what_it_lists_and_nothing_else():
    assert all(getattr(compliance, name) for name in compliance.__all__)
    with pytest.raises(AttributeError, match="no attribute 'checks'"):
        compliance.checks  # noqa: B018


def test_check_stays_a_function_after_the_command_ran():
    code = (
        "import compliance, compliance.cli\n"
        "compliance.cli.main(['check', 'README.md'])\n"
        "assert callable(compliance.check)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize(
    ("findings", "line"),
    [
        ([], "go: 1 file checked, 0 errors, 0 pieces of advice"),
        ([finding("x", "advice")], "go: 1 file checked, 0 errors, 1 piece of advice"),
        (
            [finding("x"), finding("y"), finding("y", path="b")],
            "no-go: 1 file checked, 3 errors, 0 pieces of advice: y, x",
        ),
        (
            [finding("not-checked"), finding("not-checked", path="b")],
            "not checked: 1 file checked, 2 errors, 0 pieces of advice; a and 1 more",
        ),
        (
            [finding("x"), finding("not-checked", path="b")],
            "no-go: 1 file checked, 2 errors, 0 pieces of advice: x; not checked: b",
        ),
    ],
)
def test_the_verdict_in_one_line(findings, line):
    assert formats.verdict_line(Outcome(["a"], findings, [])) == line
    assert formats.as_text(Outcome(["a"], findings, [])).splitlines()[-1] == line
