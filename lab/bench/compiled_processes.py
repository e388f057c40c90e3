"""A training step of two processes, compiled between the exchanges by XLA, over the same step uncompiled.

Also the same in segments (common/train/segments.py), over one program of forward and backward pass, and how much of the
exchanges' time a program runs beside them.

    python -m lab.bench.compiled_processes [--benchmarks mnist resnet transformer] [--backends horovod multiworker]
    [--rounds N] [--steps N] [--quick] [--output FILE] [--add]

The presets are cpu-tiny, batch norm local to a replica. On a CPU a ratio above 1 is expected: `compile=auto` is off
there (docs/sources.md, tf 3). On GPUs it was never measured.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from lab.bench.harness import arguments
from lab.bench.harness.processes import output_of
from lab.bench.harness.results import head, write

PROCESSES = 2


def measured(backend: str, benchmark: str, rounds: int, steps: int) -> dict:
    """Seconds of a step both ways, and compiled over uncompiled."""
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
