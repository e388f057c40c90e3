"""Tests the isolation of the stock checker: its known exploits harm neither this process nor the machine."""

import json
import os
import time
from pathlib import Path

import pytest

from compliance.log.check_log import check_log
from tests.compliance import result_logs, stock

EVIL = "../" * 20 + "proc/self/cwd/evil"


def log(tmp_path, **changes):
    """A proper resnet log, with the values of some keys replaced."""
    lines = []
    for line in result_logs.log("resnet").splitlines():
        record = json.loads(line.removeprefix(":::MLLOG "))
        record["value"] = changes.get(record["key"], record["value"])
        lines.append(":::MLLOG " + json.dumps(record))
    path = tmp_path / "log.txt"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_proper_log_passes_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = log(tmp_path)
    assert stock.verdict(path, "0.7.0") == ("pass", [], [])
    assert os.listdir(tmp_path) == ["log.txt"]


def test_a_division_that_walks_to_a_rule_file_of_the_attacker(tmp_path, monkeypatch):
    """The stock checker alone runs BEGIN code of ./evil_common.yaml for such a log."""
    marker = tmp_path / "marker"
    (tmp_path / "evil_common.yaml").write_text(f"- BEGIN:\n    CODE: \"open({str(marker)!r}, 'w')\"\n")
    monkeypatch.chdir(tmp_path)
    path = log(tmp_path, submission_division=EVIL)
    assert not check_log(path).passes
    assert stock.verdict(path, "0.7.0").result == "refused"
    monkeypatch.setattr(stock, "unsafe_selector", lambda *_: None)  # leaves only the worker's own guard
    assert stock.verdict(path, "0.7.0").result in ("fail", "crash")
    assert not marker.exists()


def test_a_benchmark_that_enqueues_itself_for_ever(tmp_path, monkeypatch):
    path = log(tmp_path, submission_benchmark="common")
    assert not check_log(path).passes
    assert stock.verdict(path, "0.7.0").result == "refused"
    monkeypatch.setattr(stock, "unsafe_selector", lambda *_: None)
    started = time.monotonic()
    assert stock.verdict(path, "0.7.0").result == "fail"
    assert time.monotonic() - started < stock.BASE_SECONDS


@pytest.mark.parametrize("key", ["submission_division", "submission_benchmark", "opt_name"])
@pytest.mark.parametrize("value", ["nonsense/..", "", None, ["closed"], 7, "common"])
def test_selectors_outside_the_allow_list_are_not_handed_over(tmp_path, key, value):
    path = log(tmp_path, **{key: value})
    expected = None if key == "opt_name" and value == "common" else key
    unsafe = stock.unsafe_selector(path, "0.7.0")
    assert (unsafe and unsafe.key) == expected
    assert not check_log(path).passes


def test_deep_json_breaks_the_stock_checker_only(tmp_path):
    path = log(tmp_path)
    with open(path, "a") as file:
        file.write(":::MLLOG " + "[" * 100_000 + "\n")
    assert [finding.rule for finding in check_log(path).findings] == ["line-json"]
    assert stock.verdict(path, "0.7.0").result in ("crash", "fail")


def test_a_crash_leaves_no_state_for_the_next_log(tmp_path):
    """In one process the stock checker would run the queue of a crashed log against the next log."""
    bad, good = tmp_path / "bad", tmp_path / "good"
    bad.mkdir()
    good.mkdir()
    crashing = log(bad)
    text = Path(crashing).read_text()
    accuracy = '"key": "eval_accuracy", "value": '
    Path(crashing).write_text(text.replace(accuracy + "0.7605", accuracy + '"x"'))
    path = good / "log.txt"
    path.write_text(result_logs.log("ssd"))
    assert stock.verdict(crashing, "0.7.0").result == "crash"
    assert stock.verdict(str(path), "0.7.0").result == "pass"
    assert (check_log(crashing).passes, check_log(str(path)).passes) == (False, True)


def test_a_line_that_would_keep_it_busy_for_hours_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(stock, "BASE_SECONDS", 2)
    path = log(tmp_path)
    with open(path, "a") as file:
        file.write(":::MLLOG {" + "x" * 2_000_000 + "\n")
    assert stock.verdict(path, "0.7.0").result == "timeout"
    assert [finding.rule for finding in check_log(path).findings] == ["line-json"]


def test_memory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(stock, "MEMORY_BYTES", 96 << 20)
    path = log(tmp_path)
    record = {"time_ms": 1, "key": "step", "value": "x" * 200, "metadata": {}}
    with open(path, "a") as file:
        file.write(f":::MLLOG {json.dumps(record)}\n" * 100_000)
    assert stock.verdict(path, "0.7.0").result == "crash"
    assert check_log(path).passes


@pytest.mark.parametrize("ruleset", ["1.0.0", "2.1.0", "4.1.0", "6.1.0"])
def test_later_rulesets_are_checked_by_it_in_plain_words(tmp_path, ruleset):
    known = sorted(stock.allowed(ruleset)["submission_benchmark"])
    benchmark = "resnet" if "resnet" in known else known[0]
    path = log(tmp_path, submission_benchmark=benchmark, submission_status="somewhere")
    findings = check_log(path, ruleset).findings
    assert findings
    for finding in findings:
        assert "v[" not in finding.message + finding.expected and "\n" not in finding.expected
        assert finding.fix and finding.message.endswith(".")
    status = [finding for finding in findings if finding.rule.startswith("submission_status")]
    for finding in status:
        assert finding.line == 5
