"""Tests ResNet's cpu-tiny through run_and_time.sh: target, log, determinism; broken models miss."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

from tests.benchmarks import (
    ROOT,
    assert_reaches_its_target,
    log_name,
    missed_with,
    missing,
    runner,
    untimed_misses,
)
from tests.docs.test_shell_blocks import blocks

LOG, run = log_name("resnet"), runner("resnet")


def test_reaches_its_target_with_a_log_that_passes(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    results = tmp_path / "results"
    output, values = assert_reaches_its_target(run, LOG, data_dir, results)
    assert values["eval_accuracy"]["value"] >= 0.759
    log = results / LOG
    run_json = json.loads((log.parent / "run.json").read_text())["runs"]["result_0.txt"]
    minutes = (values["run_stop"]["time_ms"] - values["run_start"]["time_ms"]) / 60000
    assert run_json["score_minutes"] == pytest.approx(minutes, abs=1e-4)
    assert run_json["config"]["global_batch_size"] == values["global_batch_size"]["value"]
    assert (log.parent / "curve_0.png").read_bytes().startswith(b"\x89PNG")
    printed = dict(
        line.split(None, 1) for line in output.splitlines() if re.match(r"result|score|verdict|curve", line)
    )
    assert printed["result"] == str(log) and printed["verdict"].startswith("passes")
    assert float(printed["score"].split()[0]) == pytest.approx(minutes, abs=1e-3)
    assert_the_pages_show_it(output.replace(f"{results}/", "results/"), results)


def assert_the_pages_show_it(output: str, results: pathlib.Path) -> None:
    """Asserts that a run prints what the pages show, and so do the commands that read its log."""
    for block in [*blocks("README.md"), *blocks("docs/getting-started.md")]:
        if block.words != "tests/resnet/test_end_to_end.py":
            continue
        if block.kind == "checked by":
            _, *words = block.text.replace("results/", f"{results}/").split()
            words = [str(results / word) if word == "report.html" else word for word in words]
            command = [sys.executable, *words]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout
            lines = missing(block.output, done.stdout.replace(f"{results}/report", "report"))
        else:
            expected = [line for line in block.output.splitlines() if not re.match(r"epoch|resnet on", line)]
            lines = missing("\n".join(expected), output)  # Progress goes to standard error.
        assert not lines, f"{block}: {lines}"


def test_equal_seeds_give_equal_logs(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    short = ["--config.train_epochs=0.5", "--config.epochs_per_block=0.25", "--config.width=8"]
    logs = untimed_misses(run, LOG, data_dir, tmp_path, {"a": 3, "b": 3, "c": 4}, *short)
    assert logs["a"] == logs["b"]
    losses = {name: [r["value"] for r in log if r["key"] == "train_loss"] for name, log in logs.items()}
    assert losses["a"] and losses["a"] != losses["c"]


@pytest.mark.e2e
@pytest.mark.parametrize("fault", ["residual", "freeze_batch_norm"])
def test_a_broken_model_misses_the_target(data_dir: pathlib.Path, tmp_path: pathlib.Path, fault: str) -> None:
    accuracies = missed_with("resnet", fault, data_dir, tmp_path)
    assert len(accuracies) == 6 and max(accuracies) < 0.5
