"""Tests logs of both rulesets against the stock checker, full disks, forbidden lines and concurrent writers."""

import dataclasses
import errno
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

import pytest

from common.config.overrides import override
from common.config.run_length import RunLength
from common.errors import UserError
from common.train import events
from compliance.log.engine import StreamChecker
from lab.bench.harness.stock_checker import verdict
from resnet.presets import PRESETS, hyperparameters
from tests.benchmarks import scripted_log, small_disk
from timetotrain.run import locks, mllog, recorder
from timetotrain.run.mllog import RunLog
from timetotrain.run.options import RunOptions

ROOT = pathlib.Path(__file__).resolve().parents[3]
TINY = PRESETS["cpu-tiny"]


def checker(config):
    return StreamChecker(config.ruleset, config.benchmark, config.division)


def logged(config, path, blocks, **how):
    """A whole log of so many blocks, checked as it is written."""
    return scripted_log(config, path, stop_at=blocks - 1, checker=checker(config), **how)


def keys(path):
    return [json.loads(line.split(" ", 1)[1])["key"] for line in path.read_text().splitlines()]


def last_record(path):
    return json.loads(path.read_text().splitlines()[-1].split(" ", 1)[1])


@pytest.mark.parametrize("name, key", [("cpu-tiny", "eval_accuracy"), ("tpu-v3-2048", "run_stop")])
def test_a_run_stopped_before_its_target_has_one_finding(tmp_path, name, key):
    """The finding is the quality; under ruleset 0.6.0, without a rule for it, that run_stop must not be a failure."""
    config = PRESETS[name]
    path = logged(config, tmp_path / "result_0.txt", 2, aborted="the target was not reached")
    result, messages = verdict(path, config.ruleset)
    assert result == "fail" and len(messages) == 1 and key in messages[0]
    assert '"status": "aborted"' in path.read_text().splitlines()[-1]


def test_header_in_order_and_true(tmp_path):
    path = logged(TINY, tmp_path / "result_0.txt", 1)
    actual = keys(path)
    start = ["submission_benchmark", "submission_division", "submission_org", "submission_platform"]
    start += ["submission_status", "cache_clear", "init_start", "smoke_run", "seed"]
    assert actual[: len(start)] == start
    assert actual.index("train_samples") < actual.index("eval_samples") < actual.index("init_stop")
    assert actual[actual.index("init_stop") + 1] == "run_start"
    values = {r["key"]: r["value"] for r in (json.loads(line.split(" ", 1)[1]) for line in path.open())}
    assert values["smoke_run"] is True and values["train_samples"] == TINY.num_train_examples
    assert values["global_batch_size"] == TINY.global_batch_size


def test_a_resumed_run_says_so(tmp_path):
    path = logged(TINY, tmp_path / "a.txt", 1, resumed=40)
    assert "resumed_from_step" in keys(path)
    assert verdict(path, TINY.ruleset)[0] == "pass"


def test_partial_until_published_and_gone_when_discarded(tmp_path):
    log = RunLog(tmp_path / "result_0.txt", TINY, checker(TINY))
    log.header(hyperparameters(TINY), False)
    assert not (tmp_path / "result_0.txt").exists() and (tmp_path / "result_0.txt.partial").exists()
    log.discard()
    assert list(tmp_path.iterdir()) == []


def test_abort_writes_run_stop_once_with_the_time_of_the_failure(tmp_path):
    log = RunLog(tmp_path / "result_0.txt", TINY, checker(TINY))
    log.header(hyperparameters(TINY), False)
    log.init_stop()
    log.record(events.RunStarted(time.time(), 0))
    failed = time.time()
    log.abort("train-00000-of-00001: record 3 is damaged", failed)
    assert keys(tmp_path / "result_0.txt").count("run_stop") == 1
    record = last_record(tmp_path / "result_0.txt")
    assert record["metadata"]["status"] == "aborted" and "record 3" in record["metadata"]["reason"]
    assert record["time_ms"] == round(failed * 1000)

    log = RunLog(tmp_path / "result_1.txt", TINY)
    log.record(events.RunStopped(time.time(), "aborted", 5, "SIGTERM"))
    log.abort("an error after the end")
    assert keys(tmp_path / "result_1.txt") == ["run_stop"]


def test_a_line_the_rules_forbid_fails_as_it_is_written(tmp_path):
    """A forbidden header line fails in the first second, before TensorFlow starts."""
    config = dataclasses.replace(PRESETS["tpu-v3-8192"], submission_status="no status of ours")
    log = RunLog(tmp_path / "result_0.txt", config, checker(config))
    with pytest.raises(UserError, match=r"result_0.txt.partial:5: .*submission_status"):
        log.header(hyperparameters(config), True)
    log.discard()

    closed = override(PRESETS["tpu-v3-8192"], "optimizer.epsilon", "0.5")
    log = RunLog(tmp_path / "result_0.txt", closed, checker(closed))
    with pytest.raises(UserError, match="lars_epsilon"):
        log.header(hyperparameters(closed), True)
        raise AssertionError("not refused")
    log.discard()
    assert list(tmp_path.iterdir()) == []


def test_two_runs_cannot_write_one_log(tmp_path):
    log = RunLog(tmp_path / "result_0.txt", TINY)
    log.event("seed", 1)
    with pytest.raises(UserError, match="another run is writing it; give another --run"):
        RunLog(tmp_path / "result_0.txt", TINY)
    log.abort("stopped")
    assert keys(tmp_path / "result_0.txt") == ["seed", "run_stop"]


@pytest.mark.parametrize(
    "code, message",
    [
        (errno.ENOLCK, r"its file system has no locks \(No locks available\).*mount it with locks"),
        (errno.EIO, "cannot write the log: Input/output error"),
    ],
)
def test_a_log_that_cannot_be_locked_is_left_to_its_run(tmp_path, monkeypatch, code, message):
    partial = tmp_path / "result_0.txt.partial"
    partial.write_text("another run's")
    partial.with_name(partial.name + ".reserve").write_bytes(b"0")

    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(UserError, match=message):
        RunLog(tmp_path / "result_0.txt", TINY)
    assert partial.read_text() == "another run's" and len(list(tmp_path.iterdir())) == 2


def test_a_log_that_another_run_ends_meanwhile_stays(tmp_path, monkeypatch):
    path, lock = tmp_path / "result_0.txt", fcntl.flock

    def end_first(*arguments):
        path.with_name("result_0.txt.partial").replace(path)
        lock(*arguments)

    monkeypatch.setattr("fcntl.flock", end_first)
    path.with_name("result_0.txt.partial").write_text("a result")
    with pytest.raises(UserError, match="another run has just ended it"):
        RunLog(path, TINY)
    assert path.read_text() == "a result"


def test_a_log_left_by_a_killed_run_is_overwritten(tmp_path):
    (tmp_path / "result_0.txt.partial").write_text("half a line of a run that was killed" * 100)
    (tmp_path / "result_0.txt.partial.reserve").write_bytes(b"0" * 5)
    path = logged(TINY, tmp_path / "result_0.txt", 1)
    assert verdict(path, TINY.ruleset)[0] == "pass"
    assert [p.name for p in tmp_path.iterdir()] == ["result_0.txt"]


def test_full_disk_while_a_run_is_on(tmp_path):
    """The error names the disk, the log still ends in run_stop, and all its lines are complete."""
    with small_disk(tmp_path / "disk", 64) as disk:
        log = RunLog(disk / "result_0.txt", TINY)
        log.record(events.RunStarted(time.time(), 0))
        with pytest.raises(UserError, match="No space left on device; free some space"):
            for _ in range(10_000):
                log.event("train_loss", 1.0, {"text": "x" * 300})
        log.abort("the disk is full")
        assert [p.name for p in disk.iterdir()] == ["result_0.txt"]
        lines = (disk / "result_0.txt").read_text().splitlines()
        assert len(lines) > 50 and all(json.loads(line.removeprefix(":::MLLOG ")) for line in lines)
        assert last_record(disk / "result_0.txt")["metadata"] == {
            **last_record(disk / "result_0.txt")["metadata"],
            "status": "aborted",
            "reason": "the disk is full",
        }


@pytest.mark.parametrize("folder_too", [False, True])
def test_a_log_that_is_removed_during_the_run_is_written_again(tmp_path, folder_too):
    log = RunLog(tmp_path / "out/result_0.txt", TINY)
    log.event("seed", 1)
    shutil.rmtree(tmp_path / "out") if folder_too else log._file.path.unlink()
    log.event("train_samples", 2)
    with pytest.raises(UserError, match="another run is writing it"):
        RunLog(tmp_path / "out/result_0.txt", TINY)
    log._file.path.unlink()
    log.abort("stopped")
    assert keys(tmp_path / "out/result_0.txt") == ["seed", "train_samples", "run_stop"]


def test_a_folder_that_became_immutable_is_one_line(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    log = RunLog(tmp_path / "result_0.txt", TINY)
    monkeypatch.setattr(pathlib.Path, "replace", refuse)
    with pytest.raises(UserError, match="cannot write the log: Operation not permitted; choose a folder"):
        log.publish()


def test_a_wall_clock_that_was_set_during_the_run_is_said_in_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr(mllog, "jump", lambda: -60.0)
    path = logged(TINY, tmp_path / "result_0.txt", 1)
    assert keys(path)[-2:] == ["wall_clock_set_seconds", "run_stop"]
    assert verdict(path, TINY.ruleset)[0] == "pass"


@pytest.mark.parametrize("name, key", [("cpu-tiny", "eval_accuracy"), ("tpu-v3-2048", "global_batch_size")])
def test_a_resumed_log_may_begin_with_the_result_of_an_earlier_evaluation(tmp_path, name, key):
    config = PRESETS[name]
    log = RunLog(tmp_path / "result_0.txt", config, checker(config))
    log.header(hyperparameters(config), True)
    first, second = list(RunLength.of(config).intervals())[:2]
    log.init_stop(second.first_step)
    log.record(events.RunStarted(time.time(), second.first_step))
    log.record(events.BlockStarted(time.time(), second))
    log.record(events.Evaluated(first, time.time(), 0.1, False, {}))
    with pytest.raises(UserError, match=key):  # Its lines are checked, but for the order of epochs.
        log.event(key, 0.1)
    log.abort("stopped")
    assert "eval_accuracy" in (tmp_path / "result_0.txt").read_text()


def test_a_folder_that_another_run_writes_is_refused_and_free_after_it(tmp_path):
    folder_lock = locks.FolderLock(tmp_path, "--checkpoint_dir")
    with pytest.raises(UserError, match="another run is writing it; give another --checkpoint_dir"):
        locks.FolderLock(tmp_path, "--checkpoint_dir")
    folder_lock.release()
    assert list(tmp_path.iterdir()) == []
    locks.FolderLock(tmp_path, "--checkpoint_dir").release()
    with pytest.raises(UserError, match="--checkpoint_dir=.*: cannot lock: No such file"):
        locks.FolderLock(tmp_path / "none", "--checkpoint_dir")


def test_the_lock_of_a_lost_machine_is_waited_for(tmp_path, monkeypatch, capsys):
    """A file server frees it after a lease; here another process holds it for a while, as if on another machine."""
    folder_lock = locks.FolderLock(tmp_path, "--checkpoint_dir")
    name, _, process = (tmp_path / locks.NAME).read_text().split()
    with pytest.raises(UserError, match=f"it is process {process} on {name}") as caught:
        locks.FolderLock(tmp_path, "--checkpoint_dir")
    assert caught.value.exit_code == 2 and "waiting" not in capsys.readouterr().err
    (tmp_path / locks.NAME).write_text("far another-boot 7")
    monkeypatch.setattr(locks, "LEASE_SECONDS", 1)
    monkeypatch.setattr(locks, "_POLL_SECONDS", 0.1)
    with pytest.raises(UserError, match="it is process 7 on far") as caught:
        locks.FolderLock(tmp_path, "--checkpoint_dir")
    assert caught.value.exit_code == 75
    monkeypatch.setattr(locks, "LEASE_SECONDS", 60)
    threading.Timer(0.3, folder_lock._file.close).start()
    locks.FolderLock(tmp_path, "--checkpoint_dir").release()
    assert capsys.readouterr().err.count("held by process 7 on far, which may be lost; waiting") == 2


def test_the_log_of_a_run_that_was_lost_with_its_machine_ends_as_aborted(tmp_path):
    """The launcher, which would have ended it, was lost too. Logs that are still written, or are no logs, stay."""
    folder = tmp_path / TINY.system / TINY.benchmark
    write = (
        "import sys; from tests.timetotrain.launch.watch import fake_worker as w; import pathlib, os; "
        "w.log(pathlib.Path(sys.argv[1])); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", write, folder / "result_0.txt"], cwd=ROOT, timeout=120)
    lost = (folder / "result_0.txt.partial").read_text()
    (folder / "result_3.txt.partial").write_bytes(b"\xff\xfe: no log\n")
    live = RunLog(folder / "result_1.txt", TINY)
    live.record(events.RunStarted(time.time(), 0))
    record = recorder.Recorder(TINY, RunOptions(result_dir=str(tmp_path)), 1, [], {})
    assert record.index == 2
    assert (folder / "result_0.txt").read_text().startswith(lost[: lost.rfind("\n") + 1])
    assert last_record(folder / "result_0.txt")["metadata"]["status"] == "aborted"
    live.publish()


def test_full_disk_from_the_start(tmp_path):
    with small_disk(tmp_path / "disk", 4) as disk:
        with pytest.raises(UserError, match="No space left on device"):
            RunLog(disk / "result_0.txt", TINY)
        assert list(disk.iterdir()) == []
