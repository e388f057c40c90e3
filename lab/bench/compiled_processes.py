"""A training step of two processes, compiled by XLA between the exchanges, against the same step uncompiled.

Also compares the step in segments (common/train/segments.py) with a single program for the forward and backward pass,
and measures for how much of the exchanges' time a program runs at the same time.

    python -m lab.bench.compiled_processes [--benchmarks mnist resnet transformer] [--backends horovod multiworker]
    [--rounds N] [--steps N] [--quick] [--output FILE] [--add]

The presets are cpu-tiny with batch norm local to each replica. On a CPU a ratio above 1 is expected: `compile=auto` is
off there (docs/sources.md, tf 3). It was never measured on GPUs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from lab.bench.harness import arguments
from lab.bench.harness.results import head, write
from lab.bench.harness.scripts import output_of

PROCESSES = 2


def measured(backend: str, benchmark: str, rounds: int, steps: int) -> dict:
    """Returns the seconds of a step both ways, and the ratio compiled / uncompiled."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        launch = ["-m", "common.launch", f"--replicas={backend}", f"--processes={PROCESSES}", "--"]
        flags = {"backend": backend, "benchmark": benchmark, "processes": PROCESSES}
        flags |= {"rounds": rounds, "steps": steps, "output": output}
        process = [
            sys.executable,
            "-m",
            "lab.bench.processes.compiled",
            *(f"--{k}={v}" for k, v in flags.items()),
        ]
        output_of("compiled_processes", [sys.executable, *launch, *process])
        found = {"rounds": rounds, "steps": steps, "machine": head("horovod")["machine"]}
        return json.loads(output.read_text()) | found


def main() -> None:
    parser = arguments.parser(__doc__, "compiled_processes.json", rounds=7)
    parser.add_argument("--benchmarks", nargs="+", default=["mnist", "resnet", "transformer"])
    parser.add_argument("--backends", nargs="+", default=["horovod", "multiworker"])
    parser.add_argument("--steps", type=int, default=20, help="steps of a round")
    parser.add_argument(
        "--add", action="store_true", help="keep other networks of the output; each has its machine"
    )
    arguments.add_quick(parser)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps, options.benchmarks = 1, 2, options.benchmarks[:1]
    result = {**head("horovod"), "processes": PROCESSES}
    found = {
        backend: {name: measured(backend, name, options.rounds, options.steps) for name in options.benchmarks}
        for backend in options.backends
    }
    print(json.dumps(found, indent=1))
    kept = json.loads(options.output.read_text())["steps_of"] if options.add else {}
    result["steps_of"] = kept | {backend: kept.get(backend, {}) | rows for backend, rows in found.items()}
    if not options.quick:
        write(result, options.output)


if __name__ == "__main__":
    main()
