"""Seconds of a training step with each optimizer, beside momentum's: four networks on this machine.

Seconds are of the clock and of the processor; ratios are of the processor's, which other programs change less. The runs
use synthetic batches. Each optimizer has its own program; the rounds alternate between the optimizers, and a
round's steps include the roots or bases of Shampoo and SOAP at their interval.

    python -m lab.bench.optimizers [--networks mnist ptb resnet transformer] [--rounds N] [--quick]
"""

import dataclasses
import statistics
import time
from typing import Any

from common.config import benchmarks
from common.config.optimizer import Optimizer, Sgd
from common.config.rules import LATER_OPTIMIZERS, named
from common.config.schema import RunConfig, Schedule
from lab.bench.harness import scripts
from lab.bench.harness.scripts import head, write

# The presets of the studies of large batches.
PRESETS = {"mnist": "cpu-128", "ptb": "cpu-20", "resnet": "cpu-photos", "transformer": "cpu-multi30k"}
STEPS = 20  # Twice the default `root_interval`.
BASE = "momentum"
RATE = 1e-7  # So small that nothing diverges.
CHANGES: dict[str, dict[str, Any]] = {"shampoo": {"nesterov": True}}  # As its authors' code.


def rule(name: str, skip_kinds: tuple[str, ...]) -> Optimizer:
    """Returns the optimizer of a row; "momentum", "nesterov" and "adam" are the rules of before."""
    if name in (BASE, "nesterov"):
        return Sgd(RATE, nesterov=name == "nesterov", scaled_momentum=True)
    changes = CHANGES.get(name, {})
    return named(name, base_learning_rate=RATE, weight_decay=0.01, skip_kinds=skip_kinds, **changes)


def names(network: str) -> list[str]:
    """Returns the rows of a network; the Transformer takes no momentum, so its base is Adam."""
    first = ["adam"] if network == "transformer" else [BASE, "nesterov"]
    return [*first, *LATER_OPTIMIZERS]


def config_of(network: str, name: str) -> RunConfig:
    """Returns the configuration of a row."""
    preset = benchmarks.module(network, "presets").PRESETS[PRESETS[network]]
    config = dataclasses.replace(
        preset,
        division="open",
        optimizer=rule(name, preset.optimizer.skip_kinds),
        schedule=Schedule(kind="constant", warmup_epochs=0.0),
    )
    config.validate()
    return config


def measure(network: str, rounds: int, steps: int) -> dict[str, dict[str, float]]:
    """Returns {optimizer: its row}.

    A row has the median `seconds` and `cpu_seconds` of a step, `ratio` of the latter to the first row's, and `slots`:
    the numbers that the optimizer keeps for each weight.
    """
    from common.distributed import replicas
    from common.train.loop import Loop
    from common.train.probe import Probe

    loops, rows = {}, {}
    for name in names(network):
        config = config_of(network, name)
        task = benchmarks.module(network, "task").Task(config, None)
        loop = loops[name] = Loop(task, replicas.make(config))
        Probe(loop).one_step()
        update, weights = loop.state.update, loop.state.model.trainable_variables
        slots = sum(v.shape.num_elements() for one in update.slots for v in one.values())
        elements = sum(w.shape.num_elements() for w in weights)
        rows[name] = {"slots": slots / elements, "seconds": [], "cpu_seconds": []}
    for _ in range(rounds):
        for name, loop in loops.items():
            began = time.process_time()
            times = Probe(loop).times_of(steps)
            rows[name]["cpu_seconds"].append((time.process_time() - began) / (steps + 1))
            rows[name]["seconds"].append(statistics.mean(times))
    for row in rows.values():
        row |= {key: statistics.median(row[key]) for key in ("seconds", "cpu_seconds")}
    first = next(iter(rows.values()))["cpu_seconds"]
    return {name: {**row, "ratio": row["cpu_seconds"] / first} for name, row in rows.items()}


def main() -> None:
    parser = scripts.parser(__doc__, "optimizers.json", rounds=5)
    parser.add_argument("--networks", nargs="+", default=list(PRESETS), choices=list(PRESETS))
    scripts.add_quick(parser)
    options = parser.parse_args()
    rounds, steps = (1, 10) if options.quick else (options.rounds, STEPS)
    result: dict[str, Any] = {**head(), "settings": {"rounds": rounds, "steps": steps}, "networks": {}}
    for network in options.networks:
        rows = result["networks"][network] = measure(network, rounds, steps)
        for name, row in rows.items():
            cpu = f"{1e3 * row['cpu_seconds']:.1f} ms of processor, {row['ratio']:.2f}"
            print(f"{network} {name:20} {1e3 * row['seconds']:.1f} ms/step, {cpu}", flush=True)
    if not options.quick:
        write(result, options.output)


if __name__ == "__main__":
    main()
