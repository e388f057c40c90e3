"""The cost of the weight update, whole and sharded: processor time of one replica's update and of its whole step.

The replica is one of REPLICAS over a wire that costs nothing: data from the others is already there. It does all of its
own work: forward and backward pass, joining gradients into buckets and splitting them, the update, writing the weights.
The bar is 1.3 / N for Adam on the Transformer.

    python -m lab.bench.scaling [--rounds N] [--steps N] [--replicas 2 4 8] [--quick] [--output FILE]

`--quick` runs one small round. `make docs` makes a table of the result.
"""

import dataclasses
import functools
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from common.config.clock import Clock
from common.config.rules import renamed
from common.distributed.replicas.base import Groups
from common.distributed.replicas.single import Single
from common.layers.precision import precision
from common.train.state import State
from common.train.step import make_train_step
from lab.bench.harness import scripts
from lab.bench.harness.rounds import alternate, ratio
from lab.bench.harness.scripts import head, output_of, write

BAR = 1.3
# (benchmark, system, optimizer) of the largest systems in the TPU-v3 paper.
NETWORKS = [("resnet", "tpu-v3-2048", "lars"), ("transformer", "tpu-v3-2048", "adam")]
QUICK = [("mnist", "cpu-tiny", "adam")]


class OneOfMany(Single):
    """Replica 0 of `num_replicas`. All others hold the same values, and a sum is as large as one summand.

    Updates run as in backends of many replicas: with the rule's operations.
    """

    updates_in_place = False

    def __init__(self, num_replicas: int):
        self.num_replicas = num_replicas
        self._received: dict[int, tf.Variable] = {}

    def all_reduce(self, x: tf.Tensor, groups: Groups | None = None) -> tf.Tensor:
        return tf.identity(x)

    def reduce_scatter(self, x: tf.Tensor, axis: int = 0, groups: Groups | None = None) -> tf.Tensor:
        return x[: x.shape[0] // self.num_replicas]

    def all_gather(self, x: tf.Tensor, axis: int = 0, groups: Groups | None = None) -> tf.Tensor:
        size = x.shape[0] * self.num_replicas
        if size not in self._received:
            with tf.init_scope():
                self._received[size] = tf.Variable(tf.random.normal([size], stddev=0.02), trainable=False)
        with tf.control_dependencies([x]):
            return self._received[size].read_value()


def seconds(function: Callable[[], Any], steps: int) -> float:
    """Returns the processor seconds per call, after a first call that traces."""
    function()
    began = time.process_time()
    for _ in range(steps):
        function()
    return (time.process_time() - began) / steps


def measure(
    benchmark: str, system: str, optimizer: str, replicas: int, sharded: bool, steps: int
) -> dict[str, float]:
    """Measures one replica's update and its whole step in this process."""
    preset = importlib.import_module(f"{benchmark}.presets").PRESETS[system]
    batch = max(preset.global_batch_size // preset.num_replicas, 1)
    config = dataclasses.replace(
        preset,
        num_replicas=replicas,
        global_batch_size=batch * replicas,
        accumulation_steps=1,
        partitions=1,
        optimizer=renamed(preset.optimizer, optimizer),
        communication=dataclasses.replace(
            preset.communication, algorithm="flat", group_size=0, wire="full", shard_weight_update=sharded
        ),
        **({"batch_norm_span": 0} if hasattr(preset, "batch_norm_span") else {}),
    )
    task = importlib.import_module(f"{benchmark}.task").Task(config, None)
    policy = precision(config.precision)
    state = State(task, OneOfMany(replicas), policy)
    inputs = next(iter(task.synthetic_input(batch)))
    train = make_train_step(task, state, Clock.of(config))
    step = tf.constant(5, tf.int64)
    weights = state.model.trainable_variables
    gradients = [tf.random.normal(w.shape, stddev=0.01, dtype=w.dtype) for w in weights]

    def update() -> tf.Tensor:
        with tf.control_dependencies(state.update.apply(gradients, tf.constant(1e-4), step)):
            return tf.constant(0)

    slots = [x for slots in state.update.slots for x in slots.values()]
    return {
        "batch": batch,
        "parameters": sum(w.shape.num_elements() for w in weights),
        "slot_bytes": sum(x.shape.num_elements() * x.dtype.size for x in slots),
        "update_cpu_seconds": seconds(tf.function(update, autograph=False), steps),
        "step_cpu_seconds": seconds(tf.function(lambda: train(inputs, step), autograph=False), steps),
    }


def compare(network: tuple[str, str, str], replicas: int, rounds: int, steps: int) -> dict[str, Any]:
    """Measures the whole and the sharded update, each in a process of its own, in alternating rounds."""

    def run(sharded: bool) -> dict[str, float]:
        told = json.dumps([*network, replicas, sharded, steps])
        process = [sys.executable, "-m", "lab.bench.scaling", f"--one={told}"]
        return json.loads(output_of("scaling", process).splitlines()[-1])

    calls = {mode: functools.partial(run, mode == "sharded") for mode in ("whole", "sharded")}
    rows = alternate(calls, rounds)
    medians = {
        mode: {key: statistics.median(row[key] for row in measured) for key in measured[0]}
        for mode, measured in rows.items()
    }
    sharded, whole = ([row["update_cpu_seconds"] for row in rows[mode]] for mode in ("sharded", "whole"))
    return {**medians, "ratio": ratio(sharded, whole), "bar": BAR / replicas}


def main() -> None:
    parser = scripts.parser(__doc__, "scaling.json", rounds=2)
    parser.add_argument("--steps", type=int, default=3, help="steps per round")
    parser.add_argument(
        "--replicas", type=int, nargs="+", default=[2, 4, 8], help="how many replicas there are"
    )
    parser.add_argument(
        "--one", type=json.loads, metavar="JSON", help="arguments of `measure`, in this process"
    )
    scripts.add_quick(parser)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one)))
        return
    if options.quick:
        options.rounds = options.steps = 1
    settings = {key: getattr(options, key) for key in ("rounds", "steps", "replicas")}
    result: dict[str, Any] = {**head(), "settings": settings, "update": {}}
    for network in QUICK if options.quick else NETWORKS:
        rows = {str(n): compare(network, n, options.rounds, options.steps) for n in options.replicas}
        result["update"][network[0]] = rows
        for count, row in rows.items():
            print(f"{network[0]} on {count}: {row['ratio']:.3f} (bar {row['bar']:.3f})", flush=True)
    if not options.quick:
        write(result, options.output)


if __name__ == "__main__":
    main()
