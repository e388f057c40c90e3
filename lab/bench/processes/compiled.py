"""One process of lab/bench/compiled_processes.py: times training steps uncompiled, compiled, and compiled in segments.

Process 0 writes JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from common.config.schema import RunConfig
from common.distributed import replicas as backends
from common.train import trace
from common.train.loop import Loop
from lab.bench.harness.rounds import alternate, ratio

# A network so small that XLA's CPU compiler takes only seconds; other settings are cpu-tiny's.
CHANGES = {"resnet": {"batch_norm_span": 0}, "transformer": {}, "mnist": {}}
SEGMENTS, BUCKET_BYTES = 4, 2**16  # For networks this small; all three runs use these buckets.


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
    loops = {how: Loop(task(changed(config, how), None), replicas) for how in ("off", "on", "segments")}
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
            "segments": SEGMENTS,
            "segments_seconds": statistics.median(times["segments"]),
            "segments_over_on": ratio(times["segments"], times["on"]),
        }
    for how in ("on", "segments"):
        beside = exchange_beside_programs(calls[how], replicas.main)
        if replicas.main:
            found[f"{how}_exchange_beside_programs"] = beside
    if replicas.main:
        options.output.write_text(json.dumps(found))


def changed(config: RunConfig, how: str) -> RunConfig:
    """Returns the configuration of one of the compared runs."""
    segments = SEGMENTS if how == "segments" else 1
    communication = dataclasses.replace(config.communication, segments=segments, bucket_bytes=BUCKET_BYTES)
    return dataclasses.replace(config, compile="off" if how == "off" else "on", communication=communication)


def exchange_beside_programs(call: Callable[[], float], main: bool) -> float | None:
    """Returns the fraction of the exchanges' time when a program also runs, from a trace of `call`; None elsewhere."""
    if not main:
        call()
        return None
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        call()
        tf.profiler.experimental.stop()
        found = trace.operations(Path(folder))
    exchanges = [(e.begin, e.end) for e in found if re.search("Horovod|Collective", e.kind)]
    programs = [(e.begin, e.end) for e in found if e.kind == "StatefulPartitionedCall"]
    # Exchanges of one process may overlap, so merge them into the time in which any is running.
    whole = trace.covered(exchanges, [(found[0].begin, max(e.end for e in found))])
    return trace.covered(exchanges, programs) / whole if whole else None


def seconds(loop: Loop, steps: int) -> float:
    """Returns the mean seconds of a training step on synthetic data, over `steps` in one block."""
    train, evaluation = loop._synthetic(True), loop._synthetic(False)
    began = time.perf_counter()
    loop._call(train, evaluation, steps, 0)
    return (time.perf_counter() - began) / steps


if __name__ == "__main__":
    main()
