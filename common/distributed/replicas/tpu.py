"""Backend on TPUStrategy. UNRUN: no TPU was available; tests compare its operations with the other backends'.

XLA compiles the function given to `run`, collectives included, into one program per step. The loop around the steps
runs in TensorFlow, without Python. One process drives all hosts.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from common.distributed.replicas.base import Groups, Shard, all_groups, placement
from common.distributed.replicas.strategy import StrategyReplicas
from common.distributed.replicas.xla import placed, shifts
from common.distributed.tensorflow_private import tpu_ops
from common.errors import UserError


class Tpu(StrategyReplicas):
    """`num_replicas` TPU cores, of this TPU VM or of the TPU that the variable TPU_NAME names. Unrun.

    Raises UserError if there is no TPU, or it has another number of cores.
    """

    name = "tpu"
    loops_hold_collectives = True
    compiles_collectives = True

    def __init__(self, num_replicas: int):
        self.strategy = tf.distribute.TPUStrategy(_connect(os.environ.get("TPU_NAME", "local")))
        self.num_replicas = num_replicas
        cores = self.strategy.num_replicas_in_sync
        if cores != num_replicas:
            fix = f"set --config.num_replicas={cores}"
            raise UserError(f"config.num_replicas={num_replicas}: this TPU has {cores} cores; {fix}")

    def place(self, x: tf.Tensor, begin: Sequence[tf.Tensor | int], shape: Sequence[int]) -> tf.Tensor:
        return placed(x, begin, shape)

    # -- collectives: TensorFlow has registered their gradients ----------------------------------------------------

    def all_reduce(self, x: tf.Tensor, groups: Groups | None = None) -> tf.Tensor:
        groups = self._groups(groups)
        return tf.identity(x) if len(groups[0]) == 1 else tpu_ops.cross_replica_sum(x, groups)

    def all_gather(self, x: tf.Tensor, axis: int = 0, groups: Groups | None = None) -> tf.Tensor:
        # An all-to-all that sends the same part to every replica; it sends as many bytes as an all-gather.
        return self.all_to_all(tf.concat([x] * len(self._groups(groups)[0]), axis), axis, groups)

    def reduce_scatter(self, x: tf.Tensor, axis: int = 0, groups: Groups | None = None) -> tf.Tensor:
        parts = tf.split(self.all_to_all(x, axis, groups), len(self._groups(groups)[0]), axis)
        return tf.add_n(parts)

    def all_to_all(self, x: tf.Tensor, axis: int = 0, groups: Groups | None = None) -> tf.Tensor:
        groups = self._groups(groups)
        size = len(groups[0])
        if size == 1:
            return tf.identity(x)
        axis %= x.shape.rank
        return tpu_ops.all_to_all(
            x, concat_dimension=axis, split_dimension=axis, split_count=size, group_assignment=groups
        )

    def shift(self, x: tf.Tensor, distance: int, groups: Groups | None = None) -> tf.Tensor:
        pairs = shifts(self._groups(groups), distance)
        # A replica without a source gets zeros.
        return tpu_ops.collective_permute(x, pairs) if pairs else tf.zeros_like(x)

    def _groups(self, groups: Groups | None) -> list[list[int]]:
        groups = all_groups(groups, self.num_replicas)
        list(placement(groups, self.num_replicas))  # Raises UserError unless they partition the replicas.
        return groups

    # -- outside `run` -----------------------------------------------------------------------------------------------

    def sum(self, value: Any) -> Any:
        return tf.nest.map_structure(
            lambda x: self.strategy.reduce(tf.distribute.ReduceOp.SUM, x, axis=None), value
        )

    def gather(self, value: Any) -> Any:
        return tf.nest.map_structure(lambda x: self.strategy.gather(x, axis=0), value)

    def dataset(self, make: Callable[[Shard], tf.data.Dataset]) -> Any:
        # Each host reads its part for its own cores.
        return self.strategy.distribute_datasets_from_function(
            lambda host: make(Shard(host.input_pipeline_id, host.num_input_pipelines))
        )

    def compile(self, function: Callable, enabled: bool) -> Callable:
        """Returns `function` unchanged, because `run` compiles it."""
        return function


def _connect(name: str) -> tf.distribute.cluster_resolver.TPUClusterResolver:
    """Connects to the TPU `name` ("local" or an address), initializes it and returns its resolver."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"config.replicas=tpu: no TPU found as TPU_NAME={name} ({reason}); run on a TPU VM, set TPU_NAME to the "
            "TPU's name, or use --config.replicas=single or mirrored"
        ) from error
    return resolver
