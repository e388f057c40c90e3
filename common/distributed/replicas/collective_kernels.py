"""Collectives between devices of several processes, by direct calls to TensorFlow's collective kernels.

The kernels match operations by a group key (which devices) and an instance key (which of the group's operations). This
file chooses the keys, the order of operations, the order of ranks and the dtype sent. docs/sources.md, tf 1, traps a
to d, gives the reasons.
"""

from collections.abc import Sequence

import tensorflow as tf

from common.distributed.replicas.base import UnsupportedError

# No collective has a time limit: TensorFlow parks a thread for the limit's whole length with each one, even if it ends
# at once (SchedNonBlockingClosureAfter in tensorflow/core/common_runtime/base_collective_executor.cc). A missing
# heartbeat reports a dead or frozen peer; the launcher watches progress (timetotrain/launch/watch/progress.py).
_NO_LIMIT = 0.0

# TensorFlow's strategies number their own groups from 1.
_FIRST_GROUP_KEY = 1 << 20

# Dtypes that the moving and the adding kernels accept; other dtypes are sent as the dtype paired with them below.
_MOVED = (tf.float32, tf.float64, tf.float16, tf.int32, tf.int64)
_ADDED = (*_MOVED, tf.bfloat16)
_SAME_BITS = {tf.bfloat16: tf.float16, tf.uint32: tf.int32, tf.uint64: tf.int64}
_WIDER = dict.fromkeys((tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16), tf.int32)


class KeyedCollectives:
    """Collectives of groups of devices, `len(devices)` in each process.

    Every process must request the same collectives in the same order: the keys count operations as a function is
    traced (or run eagerly), and they must agree.
    """

    def __init__(self, process_index: int, devices: Sequence[str]):
        """Creates the ordering tokens.

        Args:
          process_index: index of this process.
          devices: of this process's replicas; replica `process_index * len(devices) + i` runs on `devices[i]`.
        """
        self.first, self.devices = process_index * len(devices), list(devices)
        # Without an ordering token per device, a group's operations start in any order and wait for each other.
        self._tokens = []
        for device in self.devices:
            with tf.device(device):
                self._tokens.append(tf.Variable(0.0, trainable=False, name="collective_order"))
        self._hint = "NCCL" if "GPU" in self.devices[0].upper() else "RING"
        self._group_keys: dict[tuple[int, ...], int] = {}
        self._instances: list[dict[int, int]] = [{} for _ in self.devices]

    def align(self) -> None:
        """Sets all local replicas' operation counts to the largest; works also after a replica failed to trace."""
        keys = {key for counts in self._instances for key in counts}
        most = {key: max(counts.get(key, 0) for counts in self._instances) for key in keys}
        self._instances = [dict(most) for _ in self.devices]

    def register(self, groups: Sequence[Sequence[int]]) -> None:
        """Gives each group a key; every replica passes the same groups, including groups it is not in."""
        for group in groups:
            self._group_keys.setdefault(tuple(sorted(group)), _FIRST_GROUP_KEY + len(self._group_keys))

    def reduce(self, x: tf.Tensor, group: Sequence[int], replica: int, merge: str = "Add") -> tf.Tensor:
        """Returns the sum (or "Max", "Min", "Mul") over `group`, in the same shape and dtype.

        Raises UnsupportedError if no kernel adds the dtype.
        """
        if len(group) == 1:
            return tf.identity(x)
        if x.dtype not in _ADDED:
            raise UnsupportedError(f"multiworker cannot add tensors of {x.dtype.name}; cast them")
        y = tf.raw_ops.CollectiveReduceV2(
            input=x, merge_op=merge, final_op="Id", **self._keys(group, replica)
        )
        return tf.ensure_shape(y, x.shape)

    def gather(self, x: tf.Tensor, group: Sequence[int], replica: int) -> tf.Tensor:
        """Returns every replica's `x`, [k, *shape], in the order of `group`."""
        if len(group) == 1:
            return x[None]
        carried = _carry(x, _MOVED)
        rows = tf.raw_ops.CollectiveGatherV2(input=tf.reshape(carried, [1, -1]), **self._keys(group, replica))
        rows = tf.gather(rows, self._ranks(group, replica))
        shape = [len(group), *(x.shape if x.shape.is_fully_defined() else tf.unstack(tf.shape(x)))]
        return _restore(tf.reshape(rows, shape), x.dtype)

    def exchange(self, rows: tf.Tensor, group: Sequence[int], replica: int) -> tf.Tensor:
        """Sends row i of `rows`, [k, ...], to the i-th of `group`; row j of the result comes from the j-th."""
        if len(group) == 1:
            return tf.identity(rows)
        ranks = self._ranks(group, replica)
        carried = _carry(rows, _ADDED)
        by_rank = tf.gather(tf.reshape(carried, [len(group), -1]), tf.argsort(ranks))
        received = tf.raw_ops.CollectiveAllToAllV2(input=by_rank, **self._keys(group, replica))
        result = _restore(tf.reshape(tf.gather(received, ranks), tf.shape(rows)), rows.dtype)
        return tf.ensure_shape(result, rows.shape)

    def _keys(self, group: Sequence[int], replica: int) -> dict:
        """Returns the arguments that all collective operations share, and counts the operation."""
        local = replica - self.first
        key = self._group_keys[tuple(sorted(group))]
        instance = self._instances[local].get(key, 0) + 1
        self._instances[local][key] = instance
        return {
            "group_size": len(group),
            "group_key": key,
            "instance_key": instance,
            "ordering_token": [self._tokens[local].handle],
            "communication_hint": self._hint,
            "timeout_seconds": _NO_LIMIT,
        }

    def _ranks(self, group: Sequence[int], replica: int) -> tf.Tensor:
        """Returns the kernels' rank of each replica of `group`, [k].

        The kernels order processes by their names as strings (task:10 comes before task:2). They order a process's
        GPUs by their links, which only the kernels know. So with several devices, this method first gathers the
        replicas' numbers.
        """
        if len(self.devices) == 1:
            by_rank = sorted(group, key=str)
            return tf.constant([by_rank.index(r) for r in group])
        numbers = tf.raw_ops.CollectiveGatherV2(input=tf.constant([replica]), **self._keys(group, replica))
        return tf.argmax(tf.equal(tf.constant(list(group))[:, None], numbers[None]), axis=1)


def _carry(x: tf.Tensor, carriers: Sequence[tf.DType]) -> tf.Tensor:
    """Returns `x` in a dtype that the kernels accept: the same bits under another name, or a wider integer.

    Raises UnsupportedError if the dtype is not numeric.
    """
    if x.dtype in carriers:
        return x
    if x.dtype in _SAME_BITS:
        return tf.bitcast(x, _SAME_BITS[x.dtype])
    if x.dtype in _WIDER:
        return tf.cast(x, _WIDER[x.dtype])
    raise UnsupportedError(f"multiworker cannot send tensors of {x.dtype.name}; encode them as numbers")


def _restore(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.bitcast(x, dtype) if x.dtype == _SAME_BITS.get(dtype) else tf.cast(x, dtype)
