"""Backend on MultiWorkerMirroredStrategy: processes on one host or many, with no software but TensorFlow.

A process has one replica on CPUs, or one per visible GPU. The strategy starts the servers, places variables and makes
them equal at the start. Collectives call TensorFlow's kernels directly (`collective_kernels.py`), because the
strategy's own collectives have no groups.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from common.distributed import server_address
from common.distributed.replicas.base import Groups, Shard, all_groups, placement
from common.distributed.replicas.cluster import LAUNCH, START_SECONDS, Cluster, from_environment, rendezvous
from common.distributed.replicas.collective_kernels import KeyedCollectives
from common.distributed.replicas.strategy import StrategyReplicas, assign_in_merge_call
from common.distributed.tensorflow_private import PerReplica, context, coordination_config_pb2
from common.errors import NoAnswerError, UserError

# Seconds without a sign of life after which a process counts as lost; the others then fail.
HEARTBEAT_SECONDS = 20
# How long a process waits at the end of the run for the others, of which the first may still write a checkpoint.
_LEAVE_SECONDS = 600
# TensorFlow's shared libraries, one of which holds its server.
_LIBRARIES = "libtensorflow_framework.so.2", "libtensorflow_cc.so.2"

_closings = itertools.count()


class MultiWorker(StrategyReplicas):
    """This process's replicas, of `num_replicas` over all processes that TF_CONFIG names.

    Collectives are numbered as they are traced, so every process must trace the same functions in the same order. If a
    process has several replicas, call collectives only from traced functions: run eagerly, the first replica would wait
    for the second, which has not begun. Control flow within `run` cannot contain collectives either. Raises UserError
    if TF_CONFIG is missing or wrong, it names another number of processes, or a process does not come up.
    """

    name = "multiworker"

    def __init__(self, num_replicas: int):
        cluster = from_environment(os.environ.get("TF_CONFIG"))
        self.num_replicas = len(cluster.workers) * self.devices_here()
        self.process_index, self.num_processes = cluster.index, len(cluster.workers)
        self.strategy, self._collectives = _join(cluster)
        self._local = len(self.strategy.extended.worker_devices)
        self.loops_hold_collectives = self.compiles_between = self._local == 1
        self.check_count(
            num_replicas,
            f"TF_CONFIG names {len(cluster.workers)} processes with {self.devices_here()} devices each; "
            f"set --config.num_replicas={self.num_replicas}, or {LAUNCH}",
        )

    @staticmethod
    def devices_here() -> int:
        """Number of replicas in a process: its GPUs, or one."""
        return len(tf.config.list_physical_devices("GPU")) or 1

    def replica_id(self) -> int:
        """This replica's number, known while tracing because every replica traces its own function."""
        local = tf.distribute.get_replica_context().replica_id_in_sync_group if self._local > 1 else 0
        return self._first + int(tf.get_static_value(local)) % self._local

    @property
    def _first(self) -> int:
        return self.process_index * self._local

    def run(self, function: Callable, args: tuple = ()) -> Any:
        self._collectives.align()
        return super().run(function, args)

    def assign(self, variables: list[tf.Variable], values: list[tf.Tensor]) -> None:
        assign_in_merge_call(variables, values)

    def group(self, groups: Groups | None) -> _Group:
        groups, replica = all_groups(groups, self.num_replicas), self.replica_id()
        number, position = list(placement(groups, self.num_replicas))[replica]
        self._collectives.register(groups)
        return _Group(self._collectives, groups[number], replica, position)

    # -- outside `run` -----------------------------------------------------------------------------------------------

    def sum(self, value: Any) -> Any:
        return self._between_processes(
            value, lambda local, leaders: self._collectives.reduce(tf.add_n(local), leaders, self._first)
        )

    def gather(self, value: Any) -> Any:
        def gather(local: list[tf.Tensor], leaders: Sequence[int]) -> tf.Tensor:
            rows = self._collectives.gather(tf.concat(local, 0), leaders, self._first)
            return tf.concat(tf.unstack(rows, len(leaders)), 0)

        return self._between_processes(value, gather)

    def _all_reduce_max(self, value: int) -> int:
        return int(
            self._between_processes(
                tf.constant(value, tf.int64),
                lambda local, leaders: self._collectives.reduce(local[0], leaders, self._first, merge="Max"),
            )
        )

    def close(self) -> None:
        # Process 0 serves the others' heartbeats and barriers, so it leaves last.
        peers, name = context.context(), f"closed{next(_closings)}"
        peers.wait_at_barrier(name, _LEAVE_SECONDS * 1000)
        with contextlib.suppress(tf.errors.OpError):  # A process has already left.
            if not self.main:
                peers.set_config_key_value(f"{name}/{self.process_index}", "left")
                return
            for other in range(1, self.num_processes):
                peers.get_config_key_value(f"{name}/{other}", HEARTBEAT_SECONDS * 1000)

    def all_values(self, variable: tf.Variable) -> np.ndarray:
        local = [tf.convert_to_tensor(x) for x in self.local_results(variable)]
        return self._between_processes(
            PerReplica(local) if len(local) > 1 else local[0],
            lambda local, leaders: tf.concat(
                tf.unstack(self._collectives.gather(tf.stack(local), leaders, self._first)), 0
            ),
        ).numpy()

    def _between_processes(
        self, value: Any, function: Callable[[list[tf.Tensor], list[int]], tf.Tensor]
    ) -> Any:
        """Applies `function` to the local values of each tensor in `value`, on every process's first device."""
        leaders = list(range(0, self.num_replicas, self._local))
        self._collectives.register([leaders])
        with tf.device(self.strategy.extended.worker_devices[0]):
            return tf.nest.map_structure(lambda x: function(self.local_results(x), leaders), value)

    def dataset(self, make: Callable[[Shard], tf.data.Dataset]) -> Any:
        shard = Shard(self.process_index, self.num_processes)
        if self._local == 1:
            return make(shard)
        # Consecutive batches go to consecutive replicas, so that together they see one replica's input.
        return self.strategy.distribute_datasets_from_function(lambda _: make(shard))


@dataclasses.dataclass(frozen=True)
class _Group:
    """Exchanges of `replica`'s group, in which it has the place `position`."""

    collectives: KeyedCollectives
    ranks: Sequence[int]
    replica: int
    position: int

    def sum(self, x: tf.Tensor) -> tf.Tensor:
        return self.collectives.reduce(x, self.ranks, self.replica)

    def gather(self, x: tf.Tensor, axis: int) -> tf.Tensor:
        rows = self.collectives.gather(x, self.ranks, self.replica)
        return tf.concat(tf.unstack(rows, len(self.ranks)), axis)

    def scatter(self, x: tf.Tensor, axis: int) -> tf.Tensor:
        """Reduce-scatter as an exchange and a local sum: CPUs have no kernel for it, and the bytes sent are equal."""
        return tf.reduce_sum(self._exchanged(x, axis), axis=0)

    def exchange(self, x: tf.Tensor, axis: int) -> tf.Tensor:
        return tf.concat(tf.unstack(self._exchanged(x, axis)), axis)

    def _exchanged(self, x: tf.Tensor, axis: int) -> tf.Tensor:
        parts = tf.stack(tf.split(x, len(self.ranks), axis))
        return self.collectives.exchange(parts, self.ranks, self.replica)

    def shift(self, x: tf.Tensor, distance: int) -> tf.Tensor:
        # Every replica joins an all-gather, even one without a neighbor: the kernel that sends to one device
        # (CollectiveBcastSendV2) takes no ordering token (docs/sources.md, tf 1).
        rows, source = self.collectives.gather(x, self.ranks, self.replica), self.position - distance
        return rows[source] if 0 <= source < len(self.ranks) else tf.zeros_like(x)


@functools.cache
def _join(cluster: Cluster) -> tuple[tf.distribute.Strategy, KeyedCollectives]:
    """Returns the strategy and the collectives, one of each per process: servers and keys cannot be restarted.

    Raises UserError if TensorFlow has already started, or another process does not come up in time.
    """
    if context.context()._context_handle is not None:
        raise UserError("multiworker: TensorFlow has already started in this process; start anew")
    rendezvous(cluster)
    job = coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=len(cluster.workers))
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        cluster_register_timeout_in_ms=START_SECONDS * 1000,
        heartbeat_timeout_in_ms=HEARTBEAT_SECONDS * 1000,
        coordinated_jobs=[job],
    )
    try:
        libraries = [os.path.join(tf.sysconfig.get_lib(), name) for name in _LIBRARIES]
        with server_address.bound_to(cluster.local_address(), cluster.port, libraries):
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
    except (tf.errors.OpError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise NoAnswerError(
            f"multiworker: process {cluster.index} could not join the others: {reason}; is each of them running?"
        ) from error
    # Turns off a collective per batch that checks for the data set's end. All processes have equal work.
    strategy.extended.experimental_enable_get_next_as_optional = False
    devices = strategy.extended.worker_devices
    return strategy, KeyedCollectives(cluster.index, devices)
