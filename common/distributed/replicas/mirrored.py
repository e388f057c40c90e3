"""Backend on MirroredStrategy: N GPUs of one process or, for tests, N logical devices of a CPU.

Collectives are data flow through `merge_call`, not collective kernels. They need no keys, ordering tokens or timeouts,
accept any group and any dtype, and are differentiable (docs/sources.md, tf 1). Control flow inside `run` and compiled
functions cannot contain them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import tensorflow as tf

from common.distributed.replicas.base import Groups, Shard, all_groups, placement
from common.distributed.replicas.strategy import StrategyReplicas, assign_in_merge_call
from common.distributed.tensorflow_private import PerReplica
from common.errors import UserError

Values = list[tf.Tensor]


class Mirrored(StrategyReplicas):
    """`num_replicas` replicas in this process.

    Raises UserError if TensorFlow has already started with fewer CPU devices, or there are fewer GPUs.
    """

    name = "mirrored"

    def __init__(self, num_replicas: int):
        self.num_replicas = num_replicas
        gpus = tf.config.list_physical_devices("GPU")
        if gpus:
            if len(gpus) < num_replicas:
                raise UserError(f"config.num_replicas={num_replicas}: this machine has {len(gpus)} GPUs")
            devices = [f"GPU:{i}" for i in range(num_replicas)]
        else:
            _logical_cpus(num_replicas)
            devices = [f"CPU:{i}" for i in range(num_replicas)]
        self.strategy = tf.distribute.MirroredStrategy(devices)

    def assign(self, variables: list[tf.Variable], values: Values) -> None:
        assign_in_merge_call(variables, values)

    def group(self, groups: Groups | None) -> _Groups:
        return _Groups(all_groups(groups, self.num_replicas), self.num_replicas)

    def sum_bucket(self, tensors: Sequence[tf.Tensor]) -> Values:
        # Within a process, joining the tensors gains nothing.
        def merge(strategy: tf.distribute.Strategy, values: list[Any]) -> list[Any]:
            sums = [tf.add_n(strategy.experimental_local_results(v)) for v in values]
            return [PerReplica(_on_each(strategy, [s] * self.num_replicas)) for s in sums]

        return tf.distribute.get_replica_context().merge_call(merge, args=(list(tensors),))

    def sum(self, value: Any) -> Any:
        return tf.nest.map_structure(lambda x: tf.add_n(self.local_results(x)), value)

    def gather(self, value: Any) -> Any:
        return tf.nest.map_structure(lambda x: tf.concat(self.local_results(x), 0), value)

    def dataset(self, make: Callable[[Shard], tf.data.Dataset]) -> Any:
        # Consecutive batches go to consecutive replicas, so that together they see one replica's input.
        return self.strategy.distribute_datasets_from_function(lambda _: make(Shard(0, 1)))


class _Groups:
    """Exchanges of all groups at once: functions of a group's values, in its order."""

    def __init__(self, groups: list[list[int]], num_replicas: int):
        self._groups, self._places = groups, list(placement(groups, num_replicas))

    def merged(self, function: Callable[[Values], Values], x: tf.Tensor) -> tf.Tensor:
        def merge(strategy: tf.distribute.Strategy, values: Any) -> Any:
            values = list(strategy.experimental_local_results(values))
            results = [function([values[r] for r in group]) for group in self._groups]
            per_replica = [results[group][position] for group, position in self._places]
            return PerReplica(_on_each(strategy, per_replica))

        return tf.distribute.get_replica_context().merge_call(merge, args=(x,))

    def sum(self, x: tf.Tensor) -> tf.Tensor:
        return self.merged(lambda values: [tf.add_n(values)] * len(values), x)

    def gather(self, x: tf.Tensor, axis: int) -> tf.Tensor:
        return self.merged(lambda values: [tf.concat(values, axis)] * len(values), x)

    def scatter(self, x: tf.Tensor, axis: int) -> tf.Tensor:
        return self.merged(lambda values: tf.split(tf.add_n(values), len(values), axis), x)

    def exchange(self, x: tf.Tensor, axis: int) -> tf.Tensor:
        def exchange(values: Values) -> Values:
            rows = [tf.split(v, len(values), axis) for v in values]
            return [tf.concat([row[i] for row in rows], axis) for i in range(len(values))]

        return self.merged(exchange, x)

    def shift(self, x: tf.Tensor, distance: int) -> tf.Tensor:
        def shift(values: Values) -> Values:
            places = range(-distance, len(values) - distance)
            return [values[i] if 0 <= i < len(values) else tf.zeros_like(values[0]) for i in places]

        return self.merged(shift, x)


def _on_each(strategy: tf.distribute.Strategy, values: Values) -> Values:
    """Copies each value i to replica i's device."""
    copies = []
    for device, value in zip(strategy.extended.worker_devices, values, strict=True):
        with tf.device(device):
            copies.append(tf.identity(value))
    return copies


def _logical_cpus(count: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    if tf.config.get_logical_device_configuration(cpu) is None and count > 1:
        with suppress(RuntimeError):  # TensorFlow has started; the code below counts its devices.
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    have = len(tf.config.list_logical_devices("CPU"))
    if have < count:
        raise UserError(
            f"mirrored with {count} replicas: TensorFlow already runs with {have} CPU devices; start anew"
        )
