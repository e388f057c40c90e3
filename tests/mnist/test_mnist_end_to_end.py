"""Tests that MNIST's cpu-tiny reaches its target through run_and_time.sh, with a valid log."""

import pathlib

from compliance.api import check_paths
from tests.benchmarks import log_name, records, runner

LOG, run = log_name("mnist"), runner("mnist", timeout=600)


def test_reaches_its_target_with_a_log_that_passes(tmp_path: pathlib.Path) -> None:
    done = run(tmp_path / "tiny", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [f for f in check_paths([tmp_path / LOG]) if f.severity == "error"] == []
    values = {r["key"]: r["value"] for r in records(tmp_path / LOG)}
    assert values["eval_accuracy"] >= 0.985 and values["smoke_run"] is True
    assert values["train_samples"] == 4000 and values["model"] == "lstm"
