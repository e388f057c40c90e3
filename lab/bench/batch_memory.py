"""Measures the memory of an example in a training step and in an evaluation, beside what `here` predicts.

For each case, a step runs on synthetic data with a small batch and then with a large one, with the allocator's settings
of a run. The difference of the peaks of resident memory, divided by the difference of the batches, is the memory of an
example. The cases vary what memory depends on: classes, lengths, frames and sizes. Writes no file; prints a row for
each case, with the ratio of predicted to measured bytes. Needs Linux.

    python -m lab.bench.batch_memory [BENCHMARK ...]
"""

import argparse
import ctypes
import dataclasses
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from common.config import fitting_batch, overrides
from common.config.schema import RunConfig

# Benchmark: the preset for a user's own data, and (fields, batches in training, in evaluation).
CASES: dict[str, tuple[str, list[tuple[dict[str, str], tuple[int, int], tuple[int, int]]]]] = {
    "resnet": ("cpu-photos", [
        ({}, (64, 256), (64, 512)),
        ({"num_classes": "2", "image_size": "224"}, (8, 24), (8, 48)),
        ({"num_classes": "10000"}, (64, 256), (64, 512)),
        ({"precision": "fp32"}, (64, 192), (64, 512)),
    ]),
    "ssd": ("cpu-nuclei", [
        ({}, (8, 32), (8, 32)),
        ({"num_classes": "201"}, (2, 8), (2, 10)),
        ({"num_classes": "1201"}, (1, 3), (1, 3)),
        ({"num_classes": "5001"}, (1, 2), (1, 2)),
        ({"num_classes": "10000", "image_size": "192"}, (1, 2), (1, 2)),
    ]),
    "maskrcnn": ("cpu-nuclei", [
        ({}, (4, 12), (4, 12)),
        ({"num_classes": "201"}, (2, 6), (2, 6)),
        ({"num_classes": "1201"}, (1, 3), (1, 3)),
        ({"num_classes": "5001"}, (1, 2), (1, 2)),
    ]),
    "transformer": ("cpu-multi30k", [
        ({}, (16, 64), (32, 128)),
        ({"packed_length": "16", "max_sequence_length": "16"}, (128, 512), (32, 128)),
        ({"packed_length": "1024", "max_sequence_length": "1024"}, (2, 8), (32, 128)),
    ]),
    "gnmt": ("cpu-multi30k", [
        ({"bucket_limits": "48"}, (64, 256), (256, 1024)),
        ({"max_sequence_length": "16", "bucket_limits": "16"}, (512, 2048), (256, 1024)),
        ({"max_sequence_length": "128", "bucket_limits": "128"}, (16, 64), (256, 1024)),
    ]),
    "tsm_kinetics": ("cpu-ucf101", [
        ({}, (16, 64), (4, 16)),
        ({"num_frames": "512"}, (1, 2), (1, 2)),
        ({"num_classes": "10000"}, (16, 64), (4, 16)),
        ({"image_size": "224", "precision": "fp32"}, (1, 4), (1, 3)),
    ]),
    "mnist": ("cpu-128", [
        ({}, (128, 2048), (1000, 8000)),
        ({"num_classes": "10000"}, (128, 1024), (1000, 4000)),
        ({"image_size": "112"}, (128, 512), (200, 1000)),
    ]),
    "ptb": ("cpu-20", [
        ({}, (20, 320), (20, 320)),
        ({"num_steps": "1024"}, (2, 8), (2, 8)),
        ({"vocabulary_size": "2", "num_steps": "16"}, (500, 8000), (500, 8000)),
    ]),
}  # fmt: skip


def peak(benchmark: str, config: RunConfig, training: bool) -> int:
    """Returns the peak of resident bytes of two training steps, or of an evaluation step, in a process of its own."""
    # After the imports, which take longer than the steps, and before TensorFlow starts threads.
    child = os.fork()
    if child == 0:
        try:
            _step(benchmark, config, training)
        except BaseException as error:
            print(f"{type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit(f"the step ended with {os.waitstatus_to_exitcode(status)}")
    return usage.ru_maxrss * 1024


def _step(benchmark: str, config: RunConfig, training: bool) -> None:
    from common.distributed import replicas
    from common.train.loop import Loop
    from timetotrain.run import allocator

    allocator.keep_freed_by_steps(config)
    loop = Loop(importlib.import_module(f"{benchmark}.task").Task(config, None), replicas.make(config))
    arguments = loop.synthetic(True), loop.synthetic(False), *((2, 0) if training else (0, 1))
    loop.call(*arguments)
    # The compiler may have needed more than the step: frees that, and begins the peak again.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    loop.call(*arguments)


def measure(benchmark: str) -> None:
    """Prints the rows of a benchmark's cases."""
    for module in (f"{benchmark}.task", "common.train.loop", "common.distributed.replicas"):
        importlib.import_module(module)
    presets = importlib.import_module(f"{benchmark}.presets")
    name, cases = CASES[benchmark]
    for fields, *both in cases:
        for kind, batches in zip(("training", "evaluation"), both):
            config = presets.PRESETS[name]
            for path, value in {"division": "open", "num_train_examples": "1000000", **fields}.items():
                config = overrides.override(config, path, value)
            size = "global_batch_size" if kind == "training" else "eval_batch_size"
            peaks = [
                peak(benchmark, dataclasses.replace(config, **{size: n}), kind == "training") for n in batches
            ]
            measured = (peaks[1] - peaks[0]) / (batches[1] - batches[0])
            predicted = fitting_batch.example_bytes(presets.HERE, config)[kind == "evaluation"]
            row = {
                "benchmark": benchmark,
                "fields": fields,
                "of": kind,
                "batches": batches,
                "peak_mb": [round(p / 1e6) for p in peaks],
                "mb_an_example": round(measured / 1e6, 3),
                "predicted": round(predicted / 1e6, 3),
                "ratio": round(predicted / max(measured, 1), 2),
            }
            print(json.dumps(row), flush=True)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("benchmarks", nargs="*", help=f"of {', '.join(CASES)}; all by default")
    chosen = parser.parse_args(argv).benchmarks or list(CASES)
    if len(chosen) == 1:
        measure(chosen[0])
        return
    for benchmark in chosen:  # Each in a process of its own.
        subprocess.run([sys.executable, "-m", "lab.bench.batch_memory", benchmark], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
