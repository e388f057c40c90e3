"""Runs a contender as a process: prints facts about it, then answers each input line "N" with the times of N steps.

    python -m lab.bench.contenders MODULE ARGUMENT...

A contender is a network that lab/bench/ times, ours or a peer's: `MODULE.make(*ARGUMENTS)` returns a function that runs
N steps, and facts. Modules named torch_* and jax_* run in interpreters that have PyTorch or JAX but none of this
project's dependencies. Answers are lines of JSON; harness/rounds.py reads them. This module imports neither.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable


def serve(run: Callable[[int], object], **about: object) -> None:
    """Prints `about`, then for each line "N" the seconds and processor seconds that `run(N)` takes."""
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        began, processor_began = time.perf_counter(), time.process_time()
        run(int(line))
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - processor_began
        print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds}), flush=True)


def main(arguments: list[str]) -> None:
    module = importlib.import_module(f"lab.bench.contenders.{arguments[0]}")
    run, about = module.make(*arguments[1:])
    serve(run, **about)


if __name__ == "__main__":
    main(sys.argv[1:])
