"""Tests the library: `from compliance import check`, its typed outcome, the verdict in one line, and output forms."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import compliance
from common.errors import UserError
from compliance import Outcome, Verdict, api, check, formats
from compliance.findings import Finding, FindingGroups
from compliance.log.check_log import LogResult
from tests.compliance import made_logs, result_logs

ROOT = Path(__file__).parents[2]


def finding(rule, severity="error", path="a"):
    return Finding(rule, severity, path, 1, "", "m", "e", "f", "x")


def test_check_is_a_function_with_typed_results(tmp_path):
    path = made_logs.write(tmp_path, result_logs.log("resnet"))
    outcome = check([path])
    assert isinstance(outcome, Outcome) and isinstance(outcome.logs[0], LogResult)
    assert outcome.verdict == Verdict("go") and outcome.verdict.exit_status == 0
    assert outcome.files == [str(path)] and outcome.errors == outcome.advice == []
    path.write_text(result_logs.log("resnet", status="aborted"))
    outcome = check([path])
    assert outcome.verdict.answer == "no-go" and "eval_accuracy.target" in outcome.verdict.reasons
    assert not outcome.logs[0].passes


def test_files_are_judged_together_and_keep_their_order(tmp_path, monkeypatch):
    paths = [tmp_path / name for name in ("b.txt", "a.txt", "tree")]
    for path, status in zip(paths, ("success", "aborted")):
        path.write_text(result_logs.log("resnet", status=status))
    paths[2].mkdir()
    called = []
    together = api.check_logs
    monkeypatch.setattr(
        api, "check_logs", lambda files, *rest, **how: called.append(files) or together(files, *rest, **how)
    )
    outcome = check([paths[1], paths[2], paths[0]])
    assert called == [[str(paths[1]), str(paths[0])]]
    assert [log.path for log in outcome.logs] == called[0]
    assert [log.passes for log in outcome.logs] == [False, True]
    with pytest.raises(UserError, match="missing.txt: no such file"):
        check([paths[0], tmp_path / "missing.txt"])
    assert len(called) == 1


def test_the_package_offers_what_it_lists_and_nothing_else():
    assert all(getattr(compliance, name) for name in compliance.__all__)
    with pytest.raises(AttributeError, match="no attribute 'checks'"):
        compliance.checks  # noqa: B018


def test_check_stays_a_function_after_the_command_ran():
    code = (
        "import compliance, timetotrain.cli\n"
        "timetotrain.cli.main(['check', 'README.md'])\n"
        "assert callable(compliance.check)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        (Verdict("go"), "go: 1 file checked, 1 error, 1 piece of advice"),
        (Verdict("no-go", ("x", "y")), "no-go: 1 file checked, 1 error, 1 piece of advice: x; y"),
        (
            Verdict("no-go", tuple("abcdefg")),
            "no-go: 1 file checked, 1 error, 1 piece of advice: a; b; c; d; e; and 2 more",
        ),
    ],
)
def test_the_verdict_in_one_line(verdict, line):
    outcome = Outcome(["a"], [finding("x"), finding("y", "advice")], [], verdict=verdict)
    assert formats.verdict_line(outcome) == line == formats.as_text(outcome).splitlines()[-1]


def test_the_verdict_of_several_paths_names_the_path(tmp_path):
    for name, options in {"good": {}, "bad": {"status": "aborted"}, "smoke": {"smoke": True}}.items():
        (tmp_path / name).write_text(result_logs.log("resnet", **options))
    good, bad, smoke = (tmp_path / name for name in ("good", "bad", "smoke"))
    assert check([good, good]).verdict == Verdict("go")
    assert check([good, smoke]).verdict == Verdict(
        "not checked", (f"{smoke}: smoke runs are practice, not results",)
    )
    verdict = check([good, bad, smoke]).verdict
    assert verdict.answer == "no-go" and verdict.exit_status == 1
    assert f"{bad}: eval_accuracy.target" in verdict.reasons


def test_equal_findings_are_grouped_with_every_line(tmp_path):
    path = made_logs.write(tmp_path, result_logs.log("resnet") + ":::MLLOG nonsense\n" * 1000, "log.txt")
    (finding,) = check([path]).findings
    assert (finding.rule, len(finding.lines), finding.lines[1] - finding.lines[0]) == ("line-json", 1000, 1)
    groups = FindingGroups()
    one = Finding("a", "error", "p", 1, "", "m", "e", "f", "x")
    groups.add([one, one._replace(line=5), one._replace(rule="b")])
    assert [list(finding.lines) for finding in groups.findings()] == [[1, 5], []]


HOSTILE = Finding(
    "a.b", "error", "<p>&\x00", 2, "<script>\x1b[2J\ud800", 'm "<&>"', "e", "\x07f", "x", (2, 9)
)


def test_every_form_is_well_formed_whatever_the_log_holds():
    advice = HOSTILE._replace(severity="advice", path="q")
    outcome = Outcome(["<p>&\x00", "r"], [HOSTILE, advice], [])
    data = json.loads(formats.as_json(outcome))
    assert (data["errors"], data["advice"], data["findings"][0]["lines"]) == (1, 1, [2, 9])
    text = formats.as_text(outcome)
    assert "\x1b" not in text and "lines 2, 9 (2 in all)" in text
