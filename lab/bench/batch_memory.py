"""Measures the memory per example of a training batch; `--system=here` uses it to choose a batch that fits.

Runs two dry runs of a preset, with a small and a large batch. The difference of their peak resident memory, divided by
the difference of the batches, is the memory of an example. Writes no file; prints a row for each benchmark.
Each BENCHMARK/presets.py has the figures, rounded up, as `HERE`.

    python -m lab.bench.batch_memory [BENCHMARK ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence

# The preset for a user's own data, and two batches.
CASES = {
    "resnet": ("cpu-photos", 64, 512),
    "ssd": ("cpu-nuclei", 8, 32),
    "maskrcnn": ("cpu-nuclei", 4, 12),
    "transformer": ("cpu-multi30k", 32, 96),
    "gnmt": ("cpu-multi30k", 128, 512),
    "tsm_kinetics": ("cpu-ucf101", 16, 64),
    "mnist": ("cpu-128", 128, 4096),
    "ptb": ("cpu-20", 20, 640),
}


def peak(benchmark: str, preset: str, batch: int) -> int:
    """Returns the peak resident memory of a dry run, in bytes."""
    flags = [f"--system={preset}", "--dry_run", f"--config.global_batch_size={batch}"]
    flags += ["--config.division=open"]
    command = [sys.executable, "-m", benchmark, *flags]
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    )
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)}: exit status {os.waitstatus_to_exitcode(status)}")
    return usage.ru_maxrss * 1024


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("benchmarks", nargs="*", help=f"of {', '.join(CASES)}; all by default")
    for benchmark in parser.parse_args(argv).benchmarks or CASES:
        preset, small, large = CASES[benchmark]
        peaks = [peak(benchmark, preset, batch) for batch in (small, large)]
        row = {
            "benchmark": benchmark,
            "preset": preset,
            "batches": [small, large],
            "peak_bytes": peaks,
            "bytes_per_example": round((peaks[1] - peaks[0]) / (large - small)),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
