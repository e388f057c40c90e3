"""Gives all replicas that share images the same batches, and counts their results once."""

from collections.abc import Callable, Mapping

import tensorflow as tf

from common.distributed.replicas.base import Replicas, Shard
from common.errors import UserError

MakeDataset = Callable[[Shard], tf.data.Dataset]


def shared_input(make: MakeDataset, partitions: int, replicas: Replicas) -> MakeDataset:
    """Wraps `make`, for `Replicas.dataset`, so that groups of `partitions` consecutive replicas share each batch.

    If a group spans processes, each of them reads the same shard. Within a process, every batch is repeated for each of
    the group's replicas there. Raises UserError if the group size neither divides nor is a multiple of the replicas of
    a process.

    Args:
      make: (shard) -> the batches of that shard's groups in turn.
      partitions: replicas of a group.
      replicas: the backend; it calls the result with its process's shard.
    """
    local = replicas.num_replicas // replicas.num_processes
    if local % partitions and partitions % local:
        raise UserError(
            f"config.partitions={partitions}: groups do not fit processes of {local} replicas; "
            f"use a divisor or a multiple of {local}"
        )
    processes, copies = max(partitions // local, 1), min(partitions, local)

    def shared(shard: Shard) -> tf.data.Dataset:
        data = make(Shard(shard.index // processes, shard.count // processes))
        if copies == 1:
            return data
        # A batch arrives as one argument, or as several if its structure is a tuple.
        once = tf.data.Dataset.from_tensors
        return data.flat_map(lambda *batch: once(batch[0] if len(batch) == 1 else batch).repeat(copies))

    return shared


def counted_once(
    gathered: Mapping[str, tf.Tensor], num_groups: int, partitions: int
) -> Mapping[str, tf.Tensor]:
    """Removes copies from a result of `Replicas.gather`: [num_groups * partitions * b, ...] -> [num_groups * b, ...].

    The replicas of a group hold equal arrays; only the first replica's arrays are kept.
    """
    if partitions == 1:
        return gathered

    def first(x: tf.Tensor) -> tf.Tensor:
        parts = tf.reshape(x, [num_groups, partitions, -1, *x.shape[1:]])
        return tf.reshape(parts[:, 0], [-1, *x.shape[1:]])

    return {name: first(x) for name, x in gathered.items()}


def of_first_in_group(
    sums: Mapping[str, tf.Tensor], partitions: int, replicas: Replicas
) -> Mapping[str, tf.Tensor]:
    """Inside `run`: keeps an evaluation's sums on the first replica of each group and zeroes the others'."""
    if partitions == 1:
        return sums
    first = tf.equal(replicas.replica_id() % partitions, 0)
    return {name: tf.where(first, x, tf.zeros_like(x)) for name, x in sums.items()}
