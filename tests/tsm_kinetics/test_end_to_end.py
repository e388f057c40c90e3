"""Tests cpu-tiny through run_and_time.sh on real mp4 files: TSM reaches its target, TSN cannot; the log is valid."""

import pathlib

import pytest

from compliance.findings import ERROR
from compliance.log.check_log import check_log
from tests.benchmarks import log_name, missed, records, runner, untimed

LOG, run = log_name("tsm_kinetics"), runner("tsm_kinetics")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("tiny") / "data"


def test_reaches_its_target_with_a_log_that_passes(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = run(data_dir, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    log = tmp_path / LOG
    assert [f.message for f in check_log(str(log)).findings if f.severity == ERROR] == []
    last = {record["key"]: record for record in records(log)}
    assert last["run_stop"]["metadata"]["status"] == "success" and last["eval_accuracy"]["value"] >= 0.74
    assert last["smoke_run"]["value"] is True and last["submission_division"]["value"] == "open"
    assert (last["train_samples"]["value"], last["eval_samples"]["value"]) == (640, 203)
    assert (log.parent / "curve_0.png").read_bytes().startswith(b"\x89PNG")


def test_damaged_data_are_named(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    if not data_dir.is_dir():
        pytest.skip("the run before this one made no data")
    shard = data_dir / "train-00003-of-00004"
    whole = shard.read_bytes()
    try:
        shard.write_bytes(whole[:100_000] + b"\0" * 50_000 + whole[150_000:])
        done = run(data_dir, tmp_path)
    finally:
        shard.write_bytes(whole)
    assert done.returncode not in (0, 1) and "Traceback" not in done.stderr
    assert f"{shard.name}: record" in done.stderr and "is damaged" in done.stderr


@pytest.mark.e2e
def test_without_the_shift_the_same_steps_miss(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A single frame holds no information: TSN, which averages single frames, stays near the chance of 25 %."""
    assert max(missed(run, LOG, data_dir, tmp_path, "--config.model=tsn")) < 0.45


@pytest.mark.e2e
def test_equal_seeds_give_equal_logs(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    logs = {}
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        done = run(
            data_dir,
            tmp_path / name,
            f"--seed={seed}",
            "--config.train_epochs=1",
            "--config.epochs_per_block=0.5",
        )
        assert done.returncode == 1, done.stderr
        logs[name] = untimed(tmp_path / name / LOG)
    assert logs["a"] == logs["b"] != logs["c"]
