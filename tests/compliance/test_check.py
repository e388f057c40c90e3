"""Tests `check` on files, results folders and trees, and the forms of its output."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

import compliance.log.lines
import compliance.submission.tree_runs
import systems
from common.errors import UserError
from compliance.api import PACKAGING_ERRORS, check
from compliance.log.check_log import check_log
from compliance.submission.coherence import compare
from systems import schema
from tests.compliance import made_logs, result_logs

SYSTEM = "dgx-1"


def tree(tmp_path, *benchmarks, description=True, code=True):
    """A whole submission tree of an organization."""
    org = tmp_path / "Example"
    for benchmark in benchmarks or ("resnet",):
        result_logs.write_logs(org / "results" / SYSTEM / benchmark, benchmark)
        if code:
            scripts = org / "benchmarks" / benchmark / SYSTEM
            scripts.mkdir(parents=True)
            for name in ("README.md", "setup.sh", "init_datasets.sh", "run_and_time.sh", f"{SYSTEM}_tf.json"):
                (scripts / name).write_text("x")
    if description:
        (org / "systems").mkdir()
        (org / "systems" / f"{SYSTEM}.json").write_text(json.dumps(described()))
    return org


def described(**changes):
    fields = {"submitter": "Example", "division": "closed", "status": "onprem"}
    return {**systems.load(SYSTEM), **fields, **changes}


def rules_of(findings, severity=None):
    return sorted({finding.rule for finding in findings if severity in (None, finding.severity)})


def only(findings, rule):
    return [finding for finding in findings if finding.rule == rule]


def test_a_proper_tree_has_no_finding(tmp_path):
    org = tree(tmp_path, "resnet", "gnmt")
    assert schema.validate(described()) == []
    assert check([org]).findings == []
    outcome = check([tmp_path])
    assert (len(outcome.logs), len(outcome.files), outcome.findings) == (15, 16, [])


def test_both_published_layouts_of_the_code_are_taken(tmp_path):
    org = tree(tmp_path)
    inside = org / "benchmarks" / "resnet" / "implementations" / "tf"
    inside.mkdir(parents=True)
    shutil.move(org / "benchmarks" / "resnet" / SYSTEM, inside / SYSTEM)
    assert check([org]).findings == []
    shutil.move(inside / SYSTEM, inside.parent / SYSTEM)
    assert check([org]).findings == []


def test_missing_files_are_advice_and_errors_for_the_packager(tmp_path):
    org = tree(tmp_path, code=False, description=False)
    (org / "results" / SYSTEM / "resnet" / "result_4.txt").unlink()
    findings = check([org]).findings
    assert rules_of(findings) == ["tree.file-missing", "tree.run-count", "tree.system-missing"]
    assert rules_of(findings, "error") == ["tree.run-count", "tree.system-missing"]
    assert rules_of(check([org / "results"]).findings, "error") == []  # a part of a submission
    assert rules_of(check([org], packaging=True).findings, "error") == rules_of(findings)
    scripts = org / "benchmarks" / "resnet" / SYSTEM
    scripts.mkdir(parents=True)
    (scripts / "setup.sh").write_text("")
    (missing,) = only(check([org]).findings, "tree.file-missing")
    names = f"README.md, init_datasets.sh, run_and_time.sh, {SYSTEM}_<implementation>.json"
    assert missing.message == f"Missing: {names}."


def test_an_empty_tree_is_an_error(tmp_path):
    assert rules_of(check([tmp_path]).findings, "error") == ["tree.empty"]
    (tmp_path / "results" / SYSTEM / "resnet").mkdir(parents=True)
    assert rules_of(check([tmp_path]).findings, "error") == ["tree.empty", "tree.no-results"]


def test_a_benchmark_s_long_name_is_cut_to_a_line(tmp_path):
    org = tree(tmp_path)
    pattern = '"key": "submission_benchmark", "value": "{}"'
    text = result_logs.log("resnet").replace(pattern.format("resnet"), pattern.format("x" * 200))
    assert "x" * 200 in text
    (org / "results" / SYSTEM / "resnet" / "result_0.txt").write_text(text)
    (finding,) = only(check([org]).findings, "tree.benchmark")
    assert finding.found == "x" * 80


@pytest.mark.parametrize("content", ["", "[]", "{", "null", '{"a": ' + "[" * 100_000, b"\xff\xfe\x00"])
def test_a_description_that_is_no_object_is_one_finding(tmp_path, content):
    org = tree(tmp_path)
    path = org / "systems" / f"{SYSTEM}.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert rules_of(check([org]).findings) == ["system.json"]


@pytest.mark.parametrize(("rule", "value"), [("smoke_run", "true"), ("resumed_from_step", "40")])
def test_a_smoke_run_and_a_resumed_one_are_advice_and_errors_for_the_packager(tmp_path, rule, value):
    text = made_logs.with_record(result_logs.log("resnet"), rule, value)
    path = made_logs.write(tmp_path, text)
    (finding,) = check([path]).findings
    line = 1 + text[: text.index(f'"{rule}"')].count("\n")
    assert (finding.rule, finding.severity, finding.line) == (rule, "advice", line)
    assert [one.severity for one in check([path], packaging=True).findings] == ["error"]


@pytest.mark.parametrize(
    ("first", "count", "noticed"), [(5, 4, True), (4, 4, False), (1, 4, False), (0, 4, False)]
)
def test_a_first_block_that_is_not_the_first_epoch_is_asked_about(tmp_path, first, count, noticed):
    """A resumed run whose line resumed_from_step is gone; some published logs name a block by its end."""
    records = made_logs.records_of(result_logs.log("resnet"))
    at = next(index for index, record in enumerate(records) if record["key"] == "block_start")
    records[at]["metadata"] |= {"first_epoch_num": first, "epoch_count": count}
    path = made_logs.write(tmp_path, made_logs.lines(records))
    findings = only(check([path]).findings, "run.first-epoch") if noticed else check([path]).findings
    assert [one.line for one in findings if one.rule == "run.first-epoch"] == ([at + 1] if noticed else [])


def test_a_run_that_set_no_target_is_not_checked_and_never_packaged(tmp_path):
    path = tmp_path / "log.txt"
    text = result_logs.log("resnet", smoke=True, status="aborted")
    reason, digest = ("no_mlperf_result", '"no quality target was set"'), ("config_digest", '"ab12"')
    with_reason = made_logs.with_record(text, *reason)
    for log in (text, with_reason, made_logs.with_record(text, *digest)):
        path.write_text(log)  # only this project's logs of a run without target may miss it
        assert check([path]).verdict.answer == "no-go"
    whole = made_logs.with_record(with_reason, *digest)
    path.write_text(whole.replace('"status": "aborted"', '"status": "success"'))
    assert check([path]).verdict.answer == "no-go"
    path.write_text(whole)
    outcome = check([path])
    assert outcome.errors == [] and "no_mlperf_result" in rules_of(outcome.findings)
    assert outcome.verdict.line == "not checked: no quality target was set, so there is no result"
    assert not outcome.logs[0].passes
    assert "no_mlperf_result" in rules_of(check([path], packaging=True).findings, "error")


def test_a_folder_of_logs_with_other_names_is_checked(tmp_path):
    (tmp_path / "train.log").write_text("hello\n" + result_logs.log("ssd"))
    (tmp_path / "notes.txt").write_text("nothing")
    outcome = check([tmp_path])
    assert [log.benchmark for log in outcome.logs] == ["ssd"]


def test_many_logs_give_the_same_findings_as_one_by_one(tmp_path, monkeypatch):
    from compliance.log import check_log as module

    org = tree(tmp_path)
    place = org / "results" / SYSTEM / "resnet"
    (place / "result_2.txt").write_text(result_logs.log("resnet", 2, status="aborted"))
    alone = check([org]).findings
    monkeypatch.setattr(module, "_POOL_BYTES", 0)
    assert check([org]).findings == alone
    assert check_log(str(place / "result_2.txt")).passes is False


def test_what_the_packager_refuses_exists():
    from compliance.explain import known_rules

    assert set(known_rules()) >= PACKAGING_ERRORS


@pytest.mark.parametrize(
    ("platform", "directory", "says"),
    [
        ("1xGX2570M5", "PRIMERGY GX2570M5", "same"),
        ("1xNVIDIA DGX-1", "dgx1_ngc20.06_mxnet", "same"),
        ("tpu-v3-32", "tpu-v3-32-TF2.0", "same"),
        ("TPU v3-32", "tpu-v3-320", "other"),
        ("8xV100", "16xV100", "other"),
        ("reference_implementation", "1-node-4s-cpx-pytorch", "unclear"),
    ],
)
def test_names_of_systems_as_they_were_published(platform, directory, says):
    assert compare(platform, directory) == compare(directory, platform) == says


def test_a_placeholder_in_a_description_is_advice_and_an_error_for_the_packager(tmp_path):
    org = tree(tmp_path)
    (org / "systems" / f"{SYSTEM}.json").write_text(json.dumps(described(cooling="TODO")))
    (finding,) = check([org]).findings
    assert (finding.rule, finding.severity) == ("system.field", "advice")
    assert "cooling: 'TODO' is a placeholder" in finding.message
    assert [one.severity for one in check([org], packaging=True).findings] == ["error"]


def test_a_copy_in_another_directory_is_found(tmp_path):
    org = tree(tmp_path)
    other = org / "results" / "v100-8" / "resnet"
    shutil.copytree(org / "results" / SYSTEM / "resnet", other)
    findings = only(check([org]).findings, "tree.duplicate")
    assert len(findings) == 5 and all(one.path.startswith(str(other)) for one in findings)


def denied(*names):
    """Makes `open` and `os.listdir` refuse paths with these names, also for root, who may read everything."""
    listdir = os.listdir

    def refuse(path):
        if Path(os.fspath(path)).name in names:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    def refusing_open(path, *arguments, **options):
        refuse(path)
        return open(path, *arguments, **options)

    def refusing_listdir(path):
        refuse(path)
        return listdir(path)

    return refusing_open, refusing_listdir


def test_a_log_that_cannot_be_read_leaves_the_rest_of_the_tree_checked(tmp_path, monkeypatch):
    """The log has the size of another one, so that the search for copies would read it."""
    org = tree(tmp_path)
    place = org / "results" / SYSTEM / "resnet"
    for index in (1, 2, 3):
        shutil.copy(place / "result_0.txt", place / f"result_{index}.txt")
    refusing_open, _ = denied("result_1.txt")
    monkeypatch.setattr(compliance.submission.tree_runs, "open", refusing_open, raising=False)
    # Access fails either after the log's own check or from the beginning; both give one finding.
    for also in ([], [compliance.log.lines]):
        for module in also:
            monkeypatch.setattr(module, "open", refusing_open, raising=False)
        actual = check([org]).findings
        (unread,) = only(actual, "not-checked")
        assert unread.path.endswith("result_1.txt") and unread.severity == "error"
        assert "Permission denied" in unread.found
        copies = [Path(one.path).name for one in only(actual, "tree.duplicate")]
        assert copies == ["result_2.txt", "result_3.txt"]


@pytest.mark.parametrize("name", [SYSTEM, "implementations", "resnet"])
def test_a_directory_of_code_that_cannot_be_read_is_one_finding(tmp_path, monkeypatch, name):
    org = tree(tmp_path)
    monkeypatch.setattr(os, "listdir", denied(name)[1])
    (finding,) = check([org]).findings
    assert (finding.rule, finding.severity, finding.found) == ("not-checked", "error", "Permission denied")
    assert Path(finding.path).name == name and "make it readable" in finding.fix


def test_a_description_out_of_reach_is_one_finding(tmp_path, monkeypatch):
    org = tree(tmp_path)
    opened = os.open

    def refused(path, *how):
        if Path(path).name == f"{SYSTEM}.json":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *how)

    monkeypatch.setattr(os, "open", refused)
    (finding,) = check([org]).findings
    assert (finding.rule, finding.severity) == (
        "system.json",
        "error",
    ) and "Permission denied" in finding.found


def test_a_linked_directory_of_code_hides_no_logs(tmp_path):
    org = tree(tmp_path)
    code = org / "benchmarks" / "resnet"
    code.mkdir(parents=True, exist_ok=True)
    (code / "linked").symlink_to(tmp_path)
    assert only(check([org]).findings, "not-checked") == []


@pytest.mark.parametrize(("path", "says"), [("", "an empty path"), ("/dev/null", "is not a plain file")])
def test_a_path_that_is_no_log_is_one_clear_line(path, says):
    with pytest.raises(UserError, match=says):
        check([path])


def test_no_log_is_passed_over_in_silence(tmp_path):
    org = tree(tmp_path)
    (org / "results" / SYSTEM / "resnet" / "run.log").write_text(result_logs.log("resnet", 7))
    (finding,) = check([org]).findings
    assert (finding.rule, finding.severity) == ("not-checked", "advice") and finding.path.endswith("run.log")
    (tmp_path / "loose" / "deep").mkdir(parents=True)
    (tmp_path / "loose" / "result_0.txt").write_text(result_logs.log("resnet", 0))
    (tmp_path / "loose" / "deep" / "other.log").write_text(result_logs.log("ssd", 1))
    assert [log.benchmark for log in check([tmp_path / "loose"]).logs] == ["ssd", "resnet"]
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "log").write_text(result_logs.log("ssd", 1))
    assert [log.benchmark for log in check([tmp_path / "bare"]).logs] == ["ssd"]
