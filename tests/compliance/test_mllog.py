"""Tests the log that `compliance.mllog.Run` writes from a loop of anyone's, beside both checkers."""

import itertools
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.errors import UserError
from compliance.log.check_log import check_log
from compliance.log.logs import Record, read_log
from compliance.log.preflight import newest_round
from compliance.mllog import Run
from lab.bench.harness import stock_checker
from tests.compliance import llama_logs, made_logs, published_logs

ROOT = Path(__file__).parents[2]
CASES = list(made_logs.every_case())
EVENTS = {"init_start", "init_stop", "run_start", "run_stop", "block_start", "block_stop", "epoch_start"}
EVENTS |= {"epoch_stop", "eval_start", "eval_stop", "eval_accuracy"}
HEADER = {
    "submission_benchmark": "llama2_70b_lora", "submission_division": "closed", "submission_org": "Example",
    "submission_platform": "box", "submission_status": "onprem", "cache_clear": True, "seed": 7,
    **llama_logs.HEADER,
}  # fmt: skip


@pytest.fixture
def clock(monkeypatch):
    """Five milliseconds between two records."""
    ticks = itertools.count(1_700_000_000_000_000_000, 5_000_000)
    monkeypatch.setattr(time, "time_ns", lambda: next(ticks))


def keys(path):
    """The (key, metadata status) of each record of a log."""
    records = made_logs.records_of(path.read_text())
    return [record["key"] for record in records], records[-1]


def parts(case):
    """The header and the results of a case's made-up log."""
    header, results = {}, []
    for record in made_logs.log(*case):
        if record["key"] == "eval_accuracy":
            results.append(record)
        elif record["key"].startswith("submission_") or record["key"] == "cache_clear":
            header[record["key"]] = record["value"]
        elif record["key"] not in EVENTS:
            header.setdefault(record["key"], []).append((record["value"], record["metadata"]))
    return header, results


def write(case, path):
    """Writes the log of a case's made-up header and results through `Run`."""
    header, results = parts(case)
    run = Run(path, header, ruleset=case[0], tell=lambda finding: None)
    value = results[0]["value"] if results else 1
    with run:
        if len(results) > 1:  # metrics in records of their own
            value = {record["metadata"]["metric"]: record["value"] for record in results}
            run.evaluated({"FID": 400.0, "CLIP": 0.1}, **{run.unit: 2})
        run.evaluated(value, **{run.unit: results[0]["metadata"].get(run.unit, 1) if results else 1})
    return run


def test_a_log_of_every_benchmark_of_every_round_passes(tmp_path, clock):
    for number, case in enumerate(CASES):
        path = tmp_path / f"{number}.txt"
        run = write(case, path)
        result = check_log(str(path), case[0])
        assert result.passes and run.reached, (case, result.findings)


@pytest.mark.parametrize(
    "case",
    [
        ("6.0.0", "closed", "llama31_8b", ""),
        ("5.1.0", "closed", "retinanet", ""),
        ("4.0.0", "closed", "dlrm_dcnv2", ""),
        ("0.7.0", "closed", "resnet", "sgd"),
    ],
)
def test_the_stock_checker_passes_it(case, tmp_path, clock, monkeypatch):
    stock_checker.keep_rules(monkeypatch.setattr)
    path = tmp_path / "result_0.txt"
    write(case, path)
    verdict, messages = stock_checker.verdict(path, case[0])
    assert verdict == "pass", messages


def test_a_run_that_meets_its_target(tmp_path, clock, capsys):
    path = tmp_path / "runs" / "result_0.txt"
    run = Run(path, HEADER, ruleset="5.1.0")
    with run:
        reached = [
            run.evaluated(loss, samples_count=n) for loss, n in ((0.95, 1536), (0.95, 1920), (0.92, 2304))
        ]
    assert reached == [False, False, True] and not run.findings and not capsys.readouterr().err
    assert check_log(str(path), "5.1.0").findings == []
    names, last = keys(path)
    assert names[-4:] == ["eval_start", "eval_accuracy", "eval_stop", "run_stop"]
    assert last["metadata"]["status"] == "success" and last["metadata"]["file"] == __file__
    assert run.evaluated(0.9, samples_count=9984)  # after the end nothing more is written
    assert keys(path)[0] == names


@pytest.mark.parametrize(("offline", "status"), [(False, "aborted"), (True, "success")])
def test_success_without_a_met_target_needs_results_that_may_follow(tmp_path, clock, offline, status):
    path = tmp_path / "result_0.txt"
    with Run(path, HEADER, ruleset="5.1.0") as run:
        run.evaluated(0.95, samples_count=1536)
        run._checker.info["offline_evaluation"] = offline
        run.stop("success")
    assert keys(path)[1]["metadata"]["status"] == status


def test_a_checkpoint_that_is_evaluated_later_gives_run_stop_the_time_of_its_update(tmp_path, clock):
    """mlcommons/training_policies #596: training goes on, then the checkpoints are evaluated until one passes."""
    case = next(one for one in CASES if one[2] == "qwen35_397b_grpo" and one[1] == "closed")
    path, (header, results) = tmp_path / "result_0.txt", parts(case)
    at, ((batch, _),) = results[0]["metadata"]["samples_count"], header["global_batch_size"]
    with Run(path, header, ruleset=case[0], tee=False) as run:
        for number in range(3):
            run.checkpoint(1_800_000_000_000 + number * 60_000, samples_count=at + number * batch)
        assert not run.evaluated(0.5, samples_count=at) and run.evaluated(0.8, samples_count=at + batch)
    result, last = check_log(str(path), case[0]), keys(path)[1]
    assert result.passes and not result.stock and not any(one.rule == "line.order" for one in result.findings)
    assert (last["key"], last["time_ms"]) == ("run_stop", 1_800_000_060_000)
    assert result.run.stopped == last["time_ms"] and result.run.to_converge == at + batch
    with (
        pytest.raises(UserError, match="stop the clock"),
        Run(tmp_path / "b.txt", HEADER, ruleset="5.1.0") as run,
    ):
        run.checkpoint(samples_count=8)


def test_the_output_of_the_program_goes_into_the_log_and_a_try_that_broke_off_aside(tmp_path):
    path = made_logs.write(tmp_path, ':::MLLOG {"key": "init_start"}\n')
    code = (
        "import json, os, sys\nfrom compliance.mllog import Run\n"
        "with Run(sys.argv[1], json.loads(sys.argv[2]), ruleset='5.1.0', tee=True, again=True) as run:\n"
        "    print('step 1 :::MLLOG x'); os.system('echo of a child >&2')\n"
        "    run.evaluated(0.9, samples_count=1536)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), json.dumps(HEADER)], cwd=ROOT, capture_output=True
    )
    assert done.returncode == 0 and done.stdout == b"step 1 :::MLLOG x\n" and b"of a child" in done.stderr
    lines = path.read_text().splitlines()
    assert {"step 1 ::MLLOG x", "of a child"} <= {*lines} and check_log(str(path), "5.1.0").passes
    assert (tmp_path / "result_0.txt.1").read_text().count("init_start") == 1
    with pytest.raises(UserError, match="a log holds one run"):
        Run(path, HEADER, ruleset="5.1.0", again=True)  # it has ended


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_is_written_and_goes_on(tmp_path, clock, error):
    path = tmp_path / "result_0.txt"
    with pytest.raises(type(error)), Run(path, HEADER, ruleset="5.1.0"):
        raise error
    last = keys(path)[1]
    assert (last["key"], last["metadata"]["status"]) == ("run_stop", "aborted")
    assert last["metadata"]["reason"].startswith(type(error).__name__)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_is_written_and_goes_on(tmp_path, name):
    path = tmp_path / "result_0.txt"
    code = (
        "import json, signal, sys, time\nfrom compliance.mllog import Run\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # It is ignored if nohup runs the tests.
        "with Run(sys.argv[1], json.loads(sys.argv[2]), ruleset='5.1.0'):\n    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(path), json.dumps(HEADER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(getattr(signal, name))
        assert process.wait(30) == -getattr(signal, name)
    last = keys(path)[1]
    assert (last["metadata"]["status"], last["metadata"]["reason"]) == ("aborted", name)


def test_signals_are_as_before_after_a_run(tmp_path, clock):
    before = signal.getsignal(signal.SIGTERM)
    with Run(tmp_path / "result_0.txt", HEADER, ruleset="5.1.0"):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("handler", [signal.SIG_IGN, None])
def test_ignored_signals_and_handlers_of_c_stay(tmp_path, clock, monkeypatch, handler):
    """Python gives None for a handler that it did not set."""
    numbers, getsignal = [], signal.getsignal
    monkeypatch.setattr(
        signal, "getsignal", lambda number: handler if number == signal.SIGHUP else getsignal(number)
    )
    monkeypatch.setattr(signal, "signal", lambda number, new: numbers.append(number) or getsignal(number))
    with Run(tmp_path / "result_0.txt", HEADER, ruleset="5.1.0"):
        assert numbers == [signal.SIGTERM]
    assert numbers == [signal.SIGTERM] * 2


def test_a_signal_while_run_stop_is_written_waits_for_it(tmp_path, clock, monkeypatch):
    last_keys, path, write_event = [], tmp_path / "result_0.txt", Run.event

    def interrupted(run, key, *more, **others):
        if key == "run_stop":
            signal.raise_signal(signal.SIGTERM)
        write_event(run, key, *more, **others)

    monkeypatch.setattr(Run, "event", interrupted)
    before = signal.signal(signal.SIGTERM, lambda number, frame: last_keys.append(keys(path)[0][-1]))
    try:
        with Run(path, HEADER, ruleset="5.1.0") as run:
            assert run.evaluated(0.92, samples_count=1536)
            assert keys(path)[0].count("run_stop") == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert last_keys == ["run_stop"] and keys(path)[1]["metadata"]["status"] == "success"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"submission_benchmark": None}, "the header lacks submission_benchmark"),
        ({"submission_benchmark": "llama2_70b"}, "did you mean llama2_70b_lora"),
        ({"opt_base_learning_rate": None}, "asks for opt_base_learning_rate"),
        ({"cache_clear": None}, "asks for cache_clear"),
        ({"lora_rank": 8}, "expected 16, found 8"),
        ({"note": {1, 2}}, "note: Object of type set"),
    ],
)
def test_a_refused_header_never_starts_the_clock_and_leaves_the_name_to_the_corrected_one(
    tmp_path, clock, changes, says
):
    header = {key: value for key, value in {**HEADER, **changes}.items() if value is not None}
    path = tmp_path / "result_0.txt"
    with pytest.raises(UserError, match=re.escape(says)), Run(path, header, ruleset="5.1.0"):
        raise AssertionError("the clock started")
    assert not path.exists()
    with Run(path, HEADER, ruleset="5.1.0") as run:
        run.evaluated(0.92, samples_count=1536)
    assert keys(path)[1]["metadata"]["status"] == "success"


def test_a_finding_is_told_while_the_run_goes(tmp_path, clock):
    findings = []
    with Run(tmp_path / "result_0.txt", HEADER, ruleset="5.1.0", tell=findings.append) as run:
        run.evaluated(float("nan"), samples_count=1536)
        assert [finding.rule for finding in findings] == ["eval_accuracy.nan"]
        with pytest.raises(UserError, match="give samples_count="):
            run.evaluated(0.9, epoch_num=1)


def test_a_log_that_exists_is_not_appended_to(tmp_path, clock):
    path = made_logs.write(tmp_path, "earlier\n")
    with pytest.raises(UserError, match="a log holds one run"):
        Run(path, HEADER)
    assert path.read_text() == "earlier\n"


def test_other_processes_write_nothing_and_end_together(tmp_path, clock):
    path = tmp_path / "result_0.txt"
    with Run(path, HEADER, ruleset="5.1.0", write=False) as run:
        assert run.evaluated(0.92, samples_count=1536)
    assert not path.exists()


def test_the_newest_round_is_the_default():
    assert newest_round("resnet", "closed") == "4.0.0" and newest_round("gpt_oss_20b", "closed") == "6.1.0"


def blocks():
    """The Python blocks of the page, by the framework that they import first."""
    text = (ROOT / "docs" / "log-from-any-framework.md").read_text()
    blocks_of_page = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    return {re.search(r"import (\w+)", block)[1]: block for block in blocks_of_page}


def run_page(folder, monkeypatch, *texts):
    """Runs parts of the page in a folder, one after another."""
    monkeypatch.chdir(folder)
    names = {}
    for text in texts:
        exec(compile(text, "page.py", "exec"), names)


@pytest.mark.parametrize(
    ("framework", "number", "ruleset"), [("torch", 0, "6.1.0"), ("jax", 1, "6.0.0"), ("numpy", 2, "5.1.0")]
)
def test_the_loops_on_the_page(tmp_path, monkeypatch, framework, number, ruleset):
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    header = re.search(r"^BATCH.*?^}\n", blocks()["torch"], re.M | re.S)[0]  # the other loops use it, too
    run_page(tmp_path, monkeypatch, *([] if framework == "torch" else [header]), blocks()[framework])
    result = check_log(str(tmp_path / f"result_{number}.txt"), ruleset)
    assert result.passes and result.met and result.findings == []


# What published logs of v6.0 have on the clock and `Run` does not write: no rule of their rounds asks for it.
_NOT_WRITTEN = {
    "epoch_start",
    "epoch_stop",
    "run_duration",
    "throughput",
    "train_samples",
    "tracked_stats",
    "cache_clear",
}


# Logs of AMD's code, which give a block's first and last sample, and of NVIDIA's, which give a block's length twice.
# (NVIDIA's own logs of v5.1, theia_ngpu8_ngc25.09_nemo, have the same keys and metadata as these.)
@pytest.mark.parametrize(
    ("folder", "lengths"),
    [
        ("AMD/results/MI350X_EPYC_9575F_primus/llama2_70b_lora", False),
        ("MiTAC/results/MI325X_1node/llama31_8b", None),  # its results are 32 samples before its blocks' ends
        ("Inventec/results/P9000IG7_ngc26.04_nemo/gpt_oss_20b", True),
        ("CoreWeave/results/CoreWeave_GB300_2048x4/deepseekv3_671b", True),
    ],
)
def test_it_writes_what_published_logs_write_of_the_same_run(folder, lengths, tmp_path, clock):
    """Keys on the clock, their events and metadata, and the places of results and blocks."""
    source = published_logs.folder() / "v6.0" / folder / "result_0.txt"
    theirs = [one for one in read_log(source, "6.0.0") if isinstance(one, Record)]
    start = next(at for at, one in enumerate(theirs) if one.key == "run_start")
    header = {one.key: one.value for one in theirs[:start] if not one.key.startswith("init_")}
    path = tmp_path / "result_0.txt"
    with Run(path, {"train_samples": 1, **header}, ruleset="6.0.0", tell=lambda finding: None) as run:
        step = {}
        for one in theirs[start:]:
            step = (
                {"step": one.metadata["step"]} if one.key == "eval_start" and "step" in one.metadata else step
            )
            if one.key == "eval_accuracy":
                run.evaluated(one.value, samples_count=one.metadata["samples_count"], **step)
    ours = [one for one in read_log(path, "6.0.0") if isinstance(one, Record)]

    def clock_records(records):
        on = records[next(at for at, one in enumerate(records) if one.key == "run_start") :]
        names = [(one.key, one.event_type) for one in on if one.key not in _NOT_WRITTEN]
        return names, [one.metadata.get("samples_count") for one in on if one.key == "eval_accuracy"]

    assert clock_records(ours)[1] == clock_records(theirs)[1]
    assert dict.fromkeys(clock_records(ours)[0]) == dict.fromkeys(clock_records(theirs)[0])
    assert [one for one in clock_records(ours)[0] if one[0] != "block_start" and one[0] != "block_stop"] == [
        one for one in clock_records(theirs)[0] if one[0] != "block_start" and one[0] != "block_stop"
    ]
    bounds = [[one.metadata["samples_count"] for one in log if one.key in ("block_start", "block_stop")]
              for log in (ours, theirs)]  # fmt: skip
    if lengths is not None:
        mine, published = (list(zip(one[::2], one[1::2])) for one in bounds)
        assert published == ([(stop - start,) * 2 for start, stop in mine] if lengths else mine)
    first = {one.key: set(one.metadata) - {"file", "lineno"} for one in reversed(ours)}
    for one in theirs[start:]:
        if one.key in first and one.key.startswith("eval_"):
            assert set(one.metadata) - {"file", "lineno"} <= first[one.key], one.key
