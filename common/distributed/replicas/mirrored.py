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
from tensorflow.python.distribute import values as distribute_values
from tensorflow.python.eager import record

from common.distributed.replicas.base import Groups, Shard, placement
from common.distributed.replicas.strategy import StrategyReplicas, assign_in_merge_call
from common.errors import UserError

Values = list[tf.Tensor]


class Mirrored(StrategyReplicas):
    """`num_replicas` replicas in this process.

    Raises:
      UserError: TensorFlow has already started with fewer CPU devices, or there are fewer GPUs.
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

    def all_reduce(self, x: tf.Tensor, groups: Groups | None = None) -> tf.Tensor:
        return self._collective(_add, _add, groups)(x)

    def all_gather(self, x: tf.Tensor, axis: int = 0, groups: Groups | None = None) -> tf.Tensor:
        return self._collective(_gather(axis), _scatter(axis), groups)(x)

    def reduce_scatter(self, x: tf.Tensor, axis: int = 0, groups: Groups | None = None) -> tf.Tensor:
        return self._collective(_scatter(axis), _gather(axis), groups)(x)

    def all_to_all(self, x: tf.Tensor, axis: int = 0, groups: Groups | None = None) -> tf.Tensor:
        return self._collective(_exchange(axis), _exchange(axis), groups)(x)

    def shift(self, x: tf.Tensor, distance: int, groups: Groups | None = None) -> tf.Tensor:
        return self._collective(_shift(distance), _shift(-distance), groups)(x)

    def sum_bucket(self, tensors: Sequence[tf.Tensor]) -> Values:
        # Within a process, joining the tensors gains nothing.
        def merge(strategy: tf.distribute.Strategy, values: list[Any]) -> list[Any]:
            sums = [tf.add_n(strategy.experimental_local_results(v)) for v in values]
            return [
                distribute_values.PerReplica(self._on_each(strategy, [s] * self.num_replicas)) for s in sums
            ]

        return tf.distribute.get_replica_context().merge_call(merge, args=(list(tensors),))

    def sum(self, value: Any) -> Any:
        return tf.nest.map_structure(lambda x: tf.add_n(self.local_results(x)), value)

    def gather(self, value: Any) -> Any:
        return tf.nest.map_structure(lambda x: tf.concat(self.local_results(x), 0), value)

    def dataset(self, make: Callable[[Shard], tf.data.Dataset]) -> Any:
        # Consecutive batches go to consecutive replicas, so that together they see one replica's input.
        return self.strategy.distribute_datasets_from_function(lambda _: make(Shard(0, 1)))

    def _on_each(self, strategy: tf.distribute.Strategy, values: Values) -> Values:
        """Copies each value i to replica i's device."""
        copies = []
        for device, value in zip(strategy.extended.worker_devices, values, strict=True):
            with tf.device(device):
                copies.append(tf.identity(value))
        return copies

    def _collective(self, forward: Callable, backward: Callable, groups: Groups | None) -> Callable:
        groups = groups or [range(self.num_replicas)]
        places = list(placement(groups, self.num_replicas))

        def merged(function: Callable, x: tf.Tensor) -> tf.Tensor:
            def merge(strategy: tf.distribute.Strategy, values: Any) -> Any:
                values = list(strategy.experimental_local_results(values))
                results = [function([values[r] for r in group]) for group in groups]
                per_replica = [results[group][position] for group, position in places]
                return distribute_values.PerReplica(self._on_each(strategy, per_replica))

            return tf.distribute.get_replica_context().merge_call(merge, args=(x,))

        def collective(x: tf.Tensor) -> tf.Tensor:
            # Not tf.custom_gradient: it searches the graph behind all replicas' values for variables. For a ResNet
            # that takes minutes, and it finds none.
            x = tf.convert_to_tensor(x)
            with record.stop_recording():
                y = merged(forward, x)
            record.record_operation("Collective", [y], [x], lambda upstream: [merged(backward, upstream)])
            return y

        return collective


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


def _add(values: Values) -> Values:
    return [tf.add_n(values)] * len(values)


def _gather(axis: int) -> Callable[[Values], Values]:
    return lambda values: [tf.concat(values, axis)] * len(values)


def _scatter(axis: int) -> Callable[[Values], Values]:
    return lambda values: tf.split(tf.add_n(values), len(values), axis)


def _exchange(axis: int) -> Callable[[Values], Values]:
    def exchange(values: Values) -> Values:
        parts = [tf.split(v, len(values), axis) for v in values]
        return [tf.concat([p[i] for p in parts], axis) for i in range(len(values))]

    return exchange


def _shift(distance: int) -> Callable[[Values], Values]:
    def shift(values: Values) -> Values:
        n = len(values)
        return [values[i - distance] if 0 <= i - distance < n else tf.zeros_like(values[i]) for i in range(n)]

    return shift
