"""cpu-tiny through run_and_time.sh: its target and its log."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

from compliance.check import check_paths

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOG = "cpu-tiny/ptb/result_0.txt"


def run(data_dir: pathlib.Path, results: pathlib.Path, *flags: str) -> subprocess.CompletedProcess:
    environment = {
        **os.environ,
        "SYSTEM": "cpu-tiny",
        "DATA_DIR": str(data_dir),
        "RESULT_DIR": str(results),
        "PYTHON": sys.executable,
    }
    command = [str(ROOT / "ptb" / "run_and_time.sh"), *flags]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


def records(log: pathlib.Path) -> list[dict]:
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in log.read_text().splitlines()]


def test_reaches_its_target_with_a_log_that_passes(tmp_path: pathlib.Path) -> None:
    done = run(tmp_path / "tiny", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [f for f in check_paths([tmp_path / LOG]) if f.severity == "error"] == []
    values = {r["key"]: r["value"] for r in records(tmp_path / LOG)}
    assert 1 < values["eval_accuracy"] <= 4.0 and values["smoke_run"] is True
    assert values["train_samples"] == 40000 and values["global_batch_size"] == 20
