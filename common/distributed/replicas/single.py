"""Backend of one replica on one device, such as a laptop's CPU or one GPU."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from common.distributed.replicas.base import Groups, Replicas, Shard, UnsupportedError


class Single(Replicas):
    """One replica; each collective is the identity, a shift zeros, and the whole step compiles."""

    name = "single"
    updates_in_place = True
    loops_hold_collectives = True
    compiles_collectives = True

    def __init__(self, num_replicas: int = 1):
        self.num_replicas = num_replicas

    def replica_id(self) -> int:
        return 0

    def _alone(self, groups: Groups | None) -> None:
        if groups is not None and [list(g) for g in groups] != [[0]]:
            raise UnsupportedError(f"single has one replica; groups {groups} need another backend")

    def all_reduce(self, x: tf.Tensor, groups: Groups | None = None) -> tf.Tensor:
        self._alone(groups)
        return tf.identity(x)

    def all_gather(self, x: tf.Tensor, axis: int = 0, groups: Groups | None = None) -> tf.Tensor:
        return self.all_reduce(x, groups)

    def reduce_scatter(self, x: tf.Tensor, axis: int = 0, groups: Groups | None = None) -> tf.Tensor:
        return self.all_reduce(x, groups)

    def all_to_all(self, x: tf.Tensor, axis: int = 0, groups: Groups | None = None) -> tf.Tensor:
        return self.all_reduce(x, groups)

    def shift(self, x: tf.Tensor, distance: int, groups: Groups | None = None) -> tf.Tensor:
        self._alone(groups)
        return tf.identity(x) if distance == 0 else tf.zeros_like(x)

    def sum(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> Any:
        return value

    def dataset(self, make: Callable[[Shard], tf.data.Dataset]) -> tf.data.Dataset:
        return make(Shard(0, 1))
