"""cpu-tiny through run_and_time.sh: target and log; broken models miss."""

from __future__ import annotations

import pathlib

import pytest

from tests.benchmarks import log_name, records, runner, stock_findings, untimed, values

LOG, run = log_name("transformer"), runner("transformer", timeout=1800)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.mark.e2e
def test_reaches_its_target_with_a_log_that_passes(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = run(data_dir, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    log = tmp_path / LOG
    assert stock_findings(log) == []
    last = {r["key"]: r for r in records(log)}
    assert last["run_stop"]["metadata"]["status"] == "success"
    assert 0.25 <= last["eval_accuracy"]["value"] < 1
    assert last["smoke_run"]["value"] is True and last["submission_division"]["value"] == "open"
    assert "verdict  passes" in done.stdout


def test_equal_seeds_give_equal_logs(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Also: a run that misses says so, and its log is right but for the target."""
    short = ["--config.train_steps=4", "--config.steps_per_block=4", "--config.layers=1"]
    short += ["--config.decode.beam_size=1", "--config.decode.extra_length=0", "--config.eval_batch_size=200"]
    logs = []
    for name in ("a", "b"):
        done = run(data_dir, tmp_path / name, "--seed=3", *short)
        assert done.returncode == 1, done.stderr
        assert "leaked" not in done.stderr  # By the evaluation's worker.
        logs.append(untimed(tmp_path / name / LOG))
    assert logs[0] == logs[1]
    assert [m.split(" :")[0] for m in stock_findings(tmp_path / "a" / LOG)] == [
        "Failed checks for eval_accuracy"
    ]


@pytest.mark.e2e
@pytest.mark.parametrize("fault", ["positions", "attend_source", "shift_targets"])
def test_a_broken_model_misses_the_target(data_dir: pathlib.Path, tmp_path: pathlib.Path, fault: str) -> None:
    done = run(data_dir, tmp_path, f"--config.{fault}=false")
    assert done.returncode == 1, done.stderr
    assert max(values(tmp_path / LOG, "eval_accuracy")) < 0.25
