"""Whole runs on the card, if TensorFlow is installed: to a target, and ResNet-50's loop fed with photographs."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.bench.gpu.child import Turn
from lab.bench.harness import ROOT

_VALIDATION = 512  # Photographs of an evaluation.
# The first block fills the input's caches, the next one counts.
_BLOCKS = 2


def train(job: dict, turn: Turn) -> dict[str, Any]:
    """Trains a tiny preset through pjrt to its target, beside others; returns accuracies and seconds."""
    name, folder = job["benchmark"], Path(job["scratch"]) / "train" / job["row"]
    run = subprocess.run(
        [sys.executable, "-m", f"{name}.tiny", str(folder / "data")], cwd=ROOT, capture_output=True, text=True
    )
    if run.returncode:
        sys.exit(f"error: {name}.tiny: {(run.stderr.strip().splitlines() or ['no message'])[-1]}")
    flags = ["--system=cpu-tiny", f"--data_dir={folder / 'data'}", *job["arguments"]]
    with turn.together():
        log, seconds = _run(name, flags, folder / "results")
    accuracies = [e["value"] for e in log if e["key"] == "eval_accuracy"]
    stop = [e["metadata"].get("status") for e in log if e["key"] == "run_stop"]
    return {
        "status": stop[-1] if stop else "none",
        "accuracies": accuracies,
        "clock_seconds": (_time(log, "run_stop") - _time(log, "run_start")) / 1000,
        "start_seconds": (_time(log, "run_start") - _time(log, "init_start")) / 1000,
        "all_seconds": seconds,
    }


def loop(job: dict, turn: Turn) -> dict[str, Any]:
    """Trains full-size ResNet-50 on JPEG records; returns rates and startup time."""
    folder, batch, count = Path(job["scratch"]) / "loop", job["batch"], job["images"]
    # This run is not a result. Without --cache_cleared, which the rules require, there would be no log.
    flags = ["--target=none", "--config.smoke_run=true", "--cache_cleared", *job["arguments"]]
    flags += [
        f"--data_dir={job['data']}",
        f"--config.num_train_examples={count}",
        f"--config.num_eval_examples={min(count, _VALIDATION)}",
        f"--config.steps_per_block={job['steps']}",
        f"--config.train_steps={_BLOCKS * job['steps']}",
    ]
    with turn.alone():
        log, seconds = _run("resnet", flags, folder / "results")
    began = [e["time_ms"] for e in log if e["key"] == "block_start"]
    block_ends = [e["time_ms"] for e in log if e["key"] == "eval_start"]
    rates = [job["steps"] * batch / (end - start) * 1000 for start, end in zip(began, block_ends)]
    first, examples = _time(log, "init_start"), _BLOCKS * job["steps"] * batch
    return {
        "images_per_second": rates[-1],
        "images_per_second_of_blocks": rates,
        "images_per_second_of_run": 1000 * examples / (_time(log, "run_stop") - began[0]),
        "ms": 1000 * batch / rates[-1],
        "batch": batch,
        "start_seconds": (began[0] - first) / 1000,
        "all_seconds": seconds,
    }


def _run(name: str, flags: list[str], results: Path) -> tuple[list[dict], float]:
    """Returns the events in a training run's log, and the seconds that its process took."""
    results.mkdir(parents=True, exist_ok=True)
    began, before = time.monotonic(), set(results.rglob("result_*.txt"))
    command = [sys.executable, "-m", name, *flags, "--replicas=pjrt", f"--result_dir={results}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    log = [event for path in set(results.rglob("result_*.txt")) - before for event in _events(path)]
    if not any(event["key"] == "run_stop" for event in log):
        lines = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        sys.exit(f"error: {name}: exit status {done.returncode}: {lines[-1]}")
    return log, seconds


def _events(path: Path) -> Iterator[dict]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith(":::MLLOG"):
            yield json.loads(line.removeprefix(":::MLLOG"))


def _time(log: list[dict], key: str) -> int:
    return next((event["time_ms"] for event in log if event["key"] == key), 0)
