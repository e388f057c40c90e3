"""Base of the backends on a tf.distribute strategy: scope, variables and running on all replicas."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Initial, Replicas


class StrategyReplicas(Replicas):
    """Replicas of a tf.distribute strategy; a subclass adds the collectives.

    Attributes:
      strategy: the strategy; a subclass creates it.
    """

    strategy: tf.distribute.Strategy

    def scope(self, in_parts: bool = False) -> AbstractContextManager[Any]:
        return self.strategy.scope()

    def model_input(self, shape: Sequence[int], batch_size: int, dtype: tf.DType) -> Any:
        # Within a strategy's scope, tf_keras divides the batch by the number of replicas.
        return tf_keras.Input(shape, batch_size=batch_size * self.num_replicas, dtype=dtype)

    def replica_id(self) -> tf.Tensor | int:
        return tf.distribute.get_replica_context().replica_id_in_sync_group

    def run(self, function: Callable, args: tuple = ()) -> Any:
        return self.strategy.run(function, args=args)

    def local_results(self, value: Any) -> list[Any]:
        return list(self.strategy.experimental_local_results(value))

    def per_replica_variable(self, initial: Initial, name: str, **kind: Any) -> tf.Variable:
        return tf.Variable(
            initial,
            trainable=False,
            name=name,
            **kind,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.NONE,
        )


def assign_in_merge_call(variables: list[tf.Variable], values: list[tf.Tensor]) -> None:
    """Implements `Replicas.assign` for strategies whose replicas wait for each other in a merge call."""

    def update(strategy: tf.distribute.Strategy, values: list[tf.Tensor]) -> None:
        for variable, value in zip(variables, values):
            strategy.extended.update(variable, lambda v, x: v.assign(x), args=(value,), group=False)

    tf.distribute.get_replica_context().merge_call(update, args=(values,))
