"""One process of lab/bench/scaling.py: sums gradients and updates weights in several ways; process 0 writes JSON.

Argument: JSON with benchmark, system, optimizer, backend, processes, rounds, steps, output.
"""

import dataclasses
import functools
import importlib
import json
import statistics
import sys
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from common.config.optimizer import Adam, Lars
from common.config.schema import Communication
from common.distributed import replicas as backends
from common.distributed.gradient_sum import bytes_moved, route_of
from common.distributed.sharded_update import ShardedUpdate
from common.distributed.weight_update import WholeUpdate
from common.layers.precision import precision
from common.layers.variable_kinds import kind_of
from lab.bench.harness.rounds import Times, alternate

VARIANTS = {
    "plain": Communication(bucket_bytes=1),
    "bucketed": Communication(),
    "bf16": Communication(wire="bf16"),
    "hierarchical": Communication("hierarchical", 2),
    "2d": Communication("2d"),
    "sharded": Communication(shard_weight_update=True),
    "sharded bf16": Communication(shard_weight_update=True, wire="bf16"),
}
OPTIMIZERS = {
    "lars": Lars(weight_decay=1e-4),
    "adam": Adam(epsilon=1e-9),
}


def main() -> None:
    options = types.SimpleNamespace(**json.loads(sys.argv[1]))
    preset = importlib.import_module(f"{options.benchmark}.presets").PRESETS[options.system]
    config = dataclasses.replace(
        preset,
        replicas=options.backend,
        num_replicas=options.processes,
        global_batch_size=options.processes,
        accumulation_steps=1,
        partitions=1,
        optimizer=OPTIMIZERS[options.optimizer],
        **({"batch_norm_span": 0} if hasattr(preset, "batch_norm_span") else {}),
    )
    replicas = backends.make(config)
    with replicas.scope():
        task = importlib.import_module(f"{options.benchmark}.task").Task(config, None)
        model = task.build(replicas, precision(config.precision))
        variants = {
            name: Variant(model, replicas, dataclasses.replace(config, communication=communication))
            for name, communication in VARIANTS.items()
        }
    calls = {name: functools.partial(c.times, options.steps) for name, c in variants.items()}
    times = alternate(calls, options.rounds)
    if replicas.main:
        found = {name: variant.result(times[name]) for name, variant in variants.items()}
        Path(options.output).write_text(json.dumps(found))


class Variant:
    """One way to get from gradients to weights. Several variants update the same model."""

    def __init__(self, model: Any, replicas: Any, config: Any):
        self._config, self._replicas, weights = config, replicas, model.trainable_variables
        make = ShardedUpdate if config.communication.shard_weight_update else WholeUpdate
        self._update = make(weights, kind_of(model), replicas, config)
        self._elements = sum(w.shape.num_elements() for w in weights)
        gradients = [tf.random.stateless_normal(w.shape, [0, 1], stddev=1e-3, dtype=w.dtype) for w in weights]

        def one(step: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies(self._update.apply(gradients, tf.constant(1e-4), step)):
                return tf.constant(0.0)

        self._step = tf.function(lambda step: replicas.sum(replicas.run(one, (step,))), autograph=False)
        self._step(tf.constant(0, tf.int64)).numpy()

    def times(self, count: int) -> Times:
        """Returns the mean times of a step over `count` steps; each step's sum keeps the processes in sync."""
        wall, cpu = time.perf_counter(), time.process_time()
        for i in range(count):
            self._step(tf.constant(i + 1, tf.int64)).numpy()
        return Times((time.perf_counter() - wall) / count, (time.process_time() - cpu) / count)

    def result(self, times: Sequence[Times]) -> dict[str, float]:
        """Returns medians over the rounds, the bytes that a replica sends, and the bytes of its slots."""
        communication = self._config.communication
        moved = bytes_moved(communication, route_of(self._replicas, communication), self._elements)
        local = self._replicas.local_results
        slots = [local(x)[0] for slots in self._update.slots for x in slots.values()]
        return {
            "seconds": statistics.median(t.seconds for t in times),
            "cpu_seconds": statistics.median(t.cpu_seconds for t in times),
            "bytes_inside": moved.inside,
            "bytes_across": moved.across,
            "slot_bytes": sum(x.shape.num_elements() * x.dtype.size for x in slots),
        }


if __name__ == "__main__":
    main()
