"""Backend on Horovod: one replica per process, on a CPU or a GPU of a cluster.

Horovod matches collectives by operation name, in any order. TensorFlow makes names unique within a graph, so all
processes must trace the same graph. That is why `replica_id` is a variable: a plain number would fold into constants,
and one process could drop a collective that the others wait for.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from common.distributed.process import no_launcher
from common.distributed.replicas.base import Groups, Replicas, Shard, UnsupportedError, all_groups, placement
from common.errors import UserError

_ENVIRONMENT = {
    # The groups of replicas become known only while the first step is traced.
    "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
    # Horovod would fuse whatever tensors happen to be ready, so sums over four or more processes would round
    # differently in each run. common/distributed/gradient_sum.py makes buckets that are the same in every run.
    "HOROVOD_FUSION_THRESHOLD": "0",
}
# Dtypes that Horovod's kernels add, and dtypes that they send (bfloat16 goes as a bit pattern).
_SUMMED = (tf.float64, tf.float32, tf.float16, tf.int64, tf.int32)
_MOVED = (*_SUMMED, tf.int16, tf.int8, tf.uint16, tf.uint8, tf.bool)


class Horovod(Replicas):
    """This process's replica, one of `num_replicas` processes.

    Raises UserError if Horovod is not installed, the launcher is missing, or it started another number of processes.
    """

    name = "horovod"
    loops_hold_collectives = True
    compiles_between = True

    def __init__(self, num_replicas: int):
        self._hvd = _start()
        self.num_replicas = self.num_processes = self._hvd.size()
        self.process_index = self._hvd.rank()
        gpus = tf.config.list_physical_devices("GPU")
        # Set only once per process.
        if len(gpus) > 1 and len(tf.config.get_visible_devices("GPU")) > 1:
            tf.config.set_visible_devices(gpus[self._hvd.local_rank() % len(gpus)], "GPU")
        self._rank = tf.Variable(self.process_index, trainable=False, name="rank")
        self.check_count(
            num_replicas,
            f"the launcher started {self.num_replicas} processes; set --config.num_replicas={self.num_replicas}, or "
            f"start {num_replicas}",
        )

    def close(self) -> None:
        # Without this, the processes that end last complain about the lost connection.
        self._hvd.shutdown()
        _start.cache_clear()
        _process_set.cache_clear()

    def peer_lost(self, error: BaseException) -> bool:
        # Messages of Horovod, or of Gloo for a broken connection; raised as UnknownError or Horovod's own exception.
        words = "Horovod has", "gloo/", "Process set does not exist"
        return super().peer_lost(error) or any(w in str(error) for w in words)

    def replica_id(self) -> tf.Tensor:
        return self._rank.read_value()

    def group(self, groups: Groups | None) -> _Group:
        groups = all_groups(groups, self.num_replicas)
        places = list(placement(groups, self.num_replicas))
        # All processes register all process sets in the same order; each then uses its own.
        sets = [_process_set(self._hvd, tuple(sorted(g))) for g in groups]
        positions = tf.gather(tf.constant([p for _, p in places]), self.replica_id())
        number = places[self.process_index][0]
        return _Group(self._hvd, groups[number], sets[number], positions)

    # -- outside `run` -----------------------------------------------------------------------------------------------

    def sum(self, value: Any) -> Any:
        return tf.nest.map_structure(self.group(None).sum, value)

    def gather(self, value: Any) -> Any:
        return tf.nest.map_structure(self._gather_uneven, value)

    def _gather_uneven(self, x: tf.Tensor) -> tf.Tensor:
        return _moved(self._hvd.allgather, tf.convert_to_tensor(x))

    def dataset(self, make: Callable[[Shard], tf.data.Dataset]) -> tf.data.Dataset:
        return make(Shard(self.process_index, self.num_processes))

    def _all_reduce_max(self, value: int) -> int:
        return int(self._hvd.allreduce(tf.constant(value, tf.int64), op=self._hvd.Max, name="all_reduce_max"))

    def all_values(self, variable: tf.Variable) -> np.ndarray:
        return self._gather_uneven(variable.read_value()[None]).numpy()


class _Group:
    """Exchanges of one group of processes; `position`, a tensor, is this process's place in `ranks`.

    `Replicas` gives them gradients: Horovod's own average over the processes or multiply by their number.
    """

    def __init__(self, hvd: Any, ranks: Sequence[int], process_set: Any, position: tf.Tensor):
        self._hvd, self._size, self._set, self._position = hvd, len(ranks), process_set, position
        # Horovod orders a process set by rank. These map a place in the group to a place in the set, and back.
        self._places = [sorted(ranks).index(r) for r in ranks]
        self._order = [list(ranks).index(r) for r in sorted(ranks)]
        self._sorted = self._places == list(range(self._size))

    def sum(self, x: tf.Tensor) -> tf.Tensor:
        """Sums over the group; sums bfloat16 in float32, because Horovod cannot add bfloat16.

        Raises UnsupportedError if Horovod cannot add the dtype.
        """
        if self._size == 1:
            return tf.identity(x)
        if x.dtype in _SUMMED:
            return self._hvd.allreduce(x, op=self._hvd.Sum, process_set=self._set)
        if x.dtype == tf.bfloat16:
            return tf.cast(self.sum(tf.cast(x, tf.float32)), x.dtype)
        raise UnsupportedError(f"horovod: cannot add tensors of {x.dtype.name}; cast to another dtype")

    def gather(self, x: tf.Tensor, axis: int) -> tf.Tensor:
        if axis == 0 and self._sorted and x.shape.rank:
            return self._set_shape(self._moved(self._hvd.allgather, x), x, 0, self._size)
        return tf.concat(tf.unstack(self._rows(x)), axis)

    def scatter(self, x: tf.Tensor, axis: int) -> tf.Tensor:
        """Reduce-scatter. For bfloat16, an exchange and a float32 sum, which sends half the bytes."""
        if self._size == 1:
            return tf.identity(x)
        rows = self._parts(x, axis)
        if x.dtype == tf.bfloat16:
            received = self._moved(self._hvd.alltoall, rows)
            total = tf.cast(tf.reduce_sum(tf.cast(received, tf.float32), 0), x.dtype)
        else:
            total = self._hvd.reducescatter(rows, op=self._hvd.Sum, process_set=self._set)[0]
        return self._set_shape(total, x, axis, 1 / self._size)

    def exchange(self, x: tf.Tensor, axis: int) -> tf.Tensor:
        if self._size == 1:
            return tf.identity(x)
        received = self._moved(self._hvd.alltoall, self._parts(x, axis))
        received.set_shape([self._size, *[None] * x.shape.rank])
        return self._set_shape(tf.concat([received[i] for i in self._places], axis), x, axis, 1)

    def shift(self, x: tf.Tensor, distance: int) -> tf.Tensor:
        """Shifts by an all-to-all in which every process sends to at most one neighbor."""
        if self._size == 1 or distance == 0:
            return tf.identity(x) if distance == 0 else tf.zeros_like(x)
        # All zeros if the neighbor lies outside the group.
        splits = tf.cast(tf.equal(tf.constant(self._order), self._position + distance), tf.int32)
        rows = x[None][: tf.reduce_sum(splits)]
        received = _moved(lambda x: self._hvd.alltoall(x, splits=splits, process_set=self._set)[0], rows)
        return tf.ensure_shape(tf.concat([received, tf.zeros_like(x)[None]], 0)[0], x.shape)

    def _rows(self, x: tf.Tensor) -> tf.Tensor:
        """Gathers every process's `x` as [k, *shape], in the group's order."""
        rows = self._set_shape(self._moved(self._hvd.allgather, x[None]), x[None], 0, self._size)
        return rows if self._sorted else tf.gather(rows, self._places)

    def _parts(self, x: tf.Tensor, axis: int) -> tf.Tensor:
        """Returns the parts of `x` along `axis`, [k, *shape of a part], in the set's order."""
        parts = tf.split(x, self._size, axis)
        return tf.stack([parts[i] for i in self._order])

    def _moved(self, function: Callable, x: tf.Tensor) -> tf.Tensor:
        if self._size == 1:
            return tf.identity(x)
        return _moved(functools.partial(function, process_set=self._set), x)

    @staticmethod
    def _set_shape(y: tf.Tensor, x: tf.Tensor, axis: int, factor: float) -> tf.Tensor:
        """Restores the static shape of `y`, which Horovod's operations drop."""
        shape = x.shape.as_list()
        if shape[axis] is not None:
            shape[axis] = round(shape[axis] * factor)
        return tf.ensure_shape(y, shape)


def _moved(function: Callable, x: tf.Tensor) -> tf.Tensor:
    """Returns `function(x)` for a function that only moves data; bfloat16 passes as a bit pattern."""
    if x.dtype == tf.bfloat16:
        return tf.bitcast(function(tf.bitcast(x, tf.uint16)), tf.bfloat16)
    if x.dtype not in _MOVED:
        raise UnsupportedError(f"horovod: cannot send tensors of {x.dtype.name}; cast to another dtype")
    return function(x)


@functools.cache
def _start() -> Any:
    """Returns horovod.tensorflow, initialized once per process."""
    if "HOROVOD_RANK" not in os.environ:
        raise no_launcher("horovod")
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import horovod.tensorflow as hvd
    except ImportError as error:
        fix = "run `make horovod`"
        raise UserError(f"config.replicas=horovod: Horovod does not load ({error}); {fix}") from None
    hvd.init()
    return hvd


@functools.cache
def _process_set(hvd: Any, ranks: tuple[int, ...]) -> Any:
    """Returns the process set of `ranks` (the global set for all or one); all processes call it in one order."""
    if len(ranks) == hvd.size() or len(ranks) == 1:
        return hvd.global_process_set
    return hvd.add_process_set(ranks)
