"""cpu-tiny through run_and_time.sh: target and log; broken models miss."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
from mlperf_logging.compliance_checker import mlp_compliance

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOG = "cpu-tiny/gnmt/result_0.txt"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("tiny")


def run(data_dir: pathlib.Path, results: pathlib.Path, *flags: str) -> subprocess.CompletedProcess:
    environment = {
        **os.environ,
        "SYSTEM": "cpu-tiny",
        "DATA_DIR": str(data_dir),
        "RESULT_DIR": str(results),
        "PYTHON": sys.executable,
    }
    command = [str(ROOT / "gnmt" / "run_and_time.sh"), *flags]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, check=False)


def records(log: pathlib.Path) -> list[dict]:
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in log.read_text().splitlines()]


def stock_findings(log: pathlib.Path) -> list[str]:
    mlp_compliance.enqueued_configs.clear()
    checker = mlp_compliance.make_checker("training", "0.7.0", quiet=False, werror=True)
    checker.check_file(str(log), "training_0.7.0/common.yaml")
    return [*checker.overwritable, *checker.not_overwritable]


@pytest.mark.e2e
def test_reaches_its_target_with_a_log_that_passes(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = run(data_dir, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    log = tmp_path / LOG
    assert stock_findings(log) == []
    values = {r["key"]: r for r in records(log)}
    assert values["run_stop"]["metadata"]["status"] == "success"
    assert 0.24 <= values["eval_accuracy"]["value"] < 1
    assert values["smoke_run"]["value"] is True and values["submission_division"]["value"] == "open"
    assert "verdict  passes" in done.stdout


@pytest.mark.e2e
def test_equal_seeds_give_equal_logs(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Also: a run that misses says so, and its log is right but for the target."""
    short = ["--config.train_steps=4", "--config.steps_per_block=4", "--config.width=16"]
    short += ["--config.bucket_limits=36"]
    short += ["--config.decode.beam_size=1", "--config.decode.target_length=4"]
    logs = []
    for name in ("a", "b"):
        done = run(data_dir, tmp_path / name, "--seed=3", *short)
        assert done.returncode == 1, done.stderr
        logs.append([{k: v for k, v in r.items() if k != "time_ms"} for r in records(tmp_path / name / LOG)])
    assert logs[0] == logs[1]
    assert [m.split(" :")[0] for m in stock_findings(tmp_path / "a" / LOG)] == [
        "Failed checks for eval_accuracy"
    ]


@pytest.mark.e2e
@pytest.mark.parametrize("fault", ["attend", "shift_targets"])
def test_a_broken_model_misses_the_target(data_dir: pathlib.Path, tmp_path: pathlib.Path, fault: str) -> None:
    done = run(data_dir, tmp_path, f"--config.{fault}=false")
    assert done.returncode == 1, done.stderr
    assert max(r["value"] for r in records(tmp_path / LOG) if r["key"] == "eval_accuracy") < 0.24
