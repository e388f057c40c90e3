"""python -m lab.bench.processes.update_cost BENCHMARK SYSTEM OPTIMIZER REPLICAS whole|sharded STEPS: a line of JSON.

Measures the processor seconds of a training step, and of its update, on one of REPLICAS replicas whose wire costs
nothing: data from other replicas is already there. The replica does all of its own work: forward and backward pass,
joining gradients into buckets and splitting them, the update, writing the weights.
"""

import dataclasses
import importlib
import json
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


def main(
    benchmark: str, system: str, optimizer: str, replicas: int, sharded: bool, steps: int
) -> dict[str, float]:
    """Returns the figures to print."""
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


if __name__ == "__main__":
    name, preset_name, rule, count, mode, number = sys.argv[1:]
    print(json.dumps(main(name, preset_name, rule, int(count), mode == "sharded", int(number))))
