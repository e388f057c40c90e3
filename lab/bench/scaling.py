"""From gradients to weights: the traffic and cost of each way to sum and update, on local processes.

There are two measurements. *Exchange*: 2 and 4 processes sum the gradients of a full-size network and update its
weights, under Horovod and multiworker, with the variants in alternating rounds. *Update*: the processor time of one
replica's update and of its whole step, whole and sharded, over a wire that costs nothing; the bar is 1.3 / N for Adam
on the Transformer.

    python -m lab.bench.scaling [--processes 2 4] [--backends horovod multiworker] [--rounds N] [--update-rounds N]
    [--steps N] [--replicas 2 4 8] [--quick] [--output FILE]

`--quick` runs one small round of everything. `make docs` makes tables of the result.
"""

import functools
import importlib.util
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from lab.bench.harness import scripts
from lab.bench.harness.rounds import alternate, ratio
from lab.bench.harness.scripts import head, output_of, write

BAR = 1.3
# (benchmark, system, optimizer) of the largest systems in the TPU-v3 paper.
NETWORKS = [("resnet", "tpu-v3-2048", "lars"), ("transformer", "tpu-v3-2048", "adam")]
QUICK = [("mnist", "cpu-tiny", "adam")]


def exchange(backend: str, processes: int, network: tuple[str, str, str], rounds: int, steps: int) -> dict:
    """Returns for every variant: seconds per step, bytes sent, bytes of slots."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        launch = ["-m", "timetotrain", "launch", f"--replicas={backend}", f"--processes={processes}", "--"]
        process = [sys.executable, "-m", "lab.bench.processes.exchange"]
        flags = {"backend": backend, "processes": processes}
        flags |= dict(zip(("benchmark", "system", "optimizer"), network))
        flags |= {"rounds": rounds, "steps": steps, "output": str(output)}
        output_of("scaling", [sys.executable, *launch, *process, json.dumps(flags)])
        return json.loads(output.read_text())


def update(network: tuple[str, str, str], replicas: int, rounds: int, steps: int) -> dict[str, Any]:
    """Measures processor seconds of the update and the step, whole and sharded, in alternating rounds."""

    def run(mode: str) -> dict[str, float]:
        settings = [*network, str(replicas), mode, str(steps)]
        process = [sys.executable, "-m", "lab.bench.processes.update_cost", *settings]
        return json.loads(output_of("scaling", process).splitlines()[-1])

    rows = alternate({mode: functools.partial(run, mode) for mode in ("whole", "sharded")}, rounds)
    result = {
        mode: {key: statistics.median(row[key] for row in measured) for key in measured[0]}
        for mode, measured in rows.items()
    }
    sharded, whole = ([row["update_cpu_seconds"] for row in rows[mode]] for mode in ("sharded", "whole"))
    return {**result, "ratio": ratio(sharded, whole), "bar": BAR / replicas}


def main() -> None:
    parser = scripts.parser(__doc__, "scaling.json", rounds=5)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--backends", nargs="+", default=["horovod", "multiworker"])
    parser.add_argument("--update-rounds", type=int, default=2, help="rounds of the update's measurement")
    parser.add_argument("--steps", type=int, default=3, help="steps per variant and round")
    parser.add_argument(
        "--replicas", type=int, nargs="+", default=[2, 4, 8], help="of the update's measurement"
    )
    scripts.add_quick(parser)
    options = parser.parse_args()
    if "horovod" in options.backends and importlib.util.find_spec("horovod") is None:
        sys.exit("scaling: Horovod is not installed; run `make horovod`, or use --backends multiworker")
    networks = QUICK if options.quick else NETWORKS
    if options.quick:
        options.rounds = options.update_rounds = options.steps = 1
    settings = {
        key: getattr(options, key) for key in ("rounds", "update_rounds", "steps", "processes", "replicas")
    }
    result: dict[str, Any] = {
        **head("horovod"),
        "settings": settings,
        "exchange": {},
        "update": {},
    }
    for processes in options.processes:
        for backend in options.backends:
            measured = exchange(backend, processes, networks[0], options.rounds, options.steps)
            result["exchange"][f"{backend}, {processes}"] = measured
            for name, row in measured.items():
                print(f"{backend}, {processes}: {name}: {row['seconds']:.3f} s a step", flush=True)
    for network in networks:
        rows = {str(n): update(network, n, options.update_rounds, options.steps) for n in options.replicas}
        result["update"][network[0]] = rows
        for count, row in rows.items():
            print(f"{network[0]} on {count}: {row['ratio']:.3f} (bar {row['bar']:.3f})", flush=True)
    if not options.quick:
        write(result, options.output)


if __name__ == "__main__":
    main()
