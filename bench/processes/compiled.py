"""One process of bench/compiled_processes.py: times uncompiled and compiled training steps; process 0 writes JSON."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import json
import statistics
import time
from pathlib import Path

from bench.harness.rounds import alternate, ratio
from common.distributed import replicas as backends
from common.train.loop import Loop

# A network small enough that XLA's CPU compiler takes seconds; the others' settings are those of cpu-tiny.
CHANGES = {"resnet": {"batch_norm_span": 0}, "transformer": {}, "mnist": {}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("backend", "benchmark"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("processes", "rounds", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    preset = importlib.import_module(f"{options.benchmark}.presets").PRESETS["cpu-tiny"]
    config = dataclasses.replace(
        preset, replicas=options.backend, num_replicas=options.processes, **CHANGES[options.benchmark]
    )
    replicas = backends.make(config)
    task = importlib.import_module(f"{options.benchmark}.task").Task
    loops = {
        how: Loop(task(dataclasses.replace(config, compile=how), None), replicas) for how in ("off", "on")
    }
    calls = {how: functools.partial(seconds, loop, options.steps) for how, loop in loops.items()}
    for call in calls.values():
        call()  # Traces and compiles.
    times = alternate(calls, options.rounds)
    if replicas.main:
        found = {
            "batch": config.global_batch_size,
            "off_seconds": statistics.median(times["off"]),
            "on_seconds": statistics.median(times["on"]),
            "ratio": ratio(times["on"], times["off"]),
            "compiled": str(loops["on"].compiled),
        }
        options.output.write_text(json.dumps(found))


def seconds(loop: Loop, steps: int) -> float:
    """Of a training step on synthetic data, the mean over `steps` in one block."""
    train, evaluation = loop._synthetic(True), loop._synthetic(False)
    began = time.perf_counter()
    loop._call(train, evaluation, steps, 0)
    return (time.perf_counter() - began) / steps


if __name__ == "__main__":
    main()
