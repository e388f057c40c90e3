"""Sharded weights (ZeRO-3, Rajbhandari et al. 2020): each replica holds 1/N of every weight, gradient and slot.

A weight is a vector, padded with zeros and cut into N parts, one variable on each replica. A layer gathers its weights
where it needs them. A layer that is recomputed gathers them again in the backward pass, so whole weights exist only
while one layer computes. The gradient of the gathering is a reduce-scatter: a part's gradient arrives summed over the
replicas, and the update needs no exchange but the gradient's norm.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from common.distributed.replicas.base import Replicas, linear
from common.distributed.shard_layout import WeightShard
from common.distributed.sharded_update import ShardedUpdate

_SHAPE = "whole_shape"  # A part's attribute: the shape of the whole weight.


def create(
    replicas: Replicas, initial: Callable[[], tf.Tensor], shape: Sequence[int], dtype: tf.DType, name: str
) -> tf.Variable:
    """Returns a trainable variable [elements / N, rounded up], this replica's part of a weight of `shape`.

    `initial` returns the whole weight's value. Raises UnsupportedError if the backend's replicas cannot differ.
    """

    def parts() -> np.ndarray:
        return _cut(np.asarray(initial()), replicas.num_replicas)

    size = -(-math.prod(shape) // replicas.num_replicas)
    variable = replicas.sharded_variable(parts, size, dtype, name)
    setattr(variable, _SHAPE, tuple(shape))
    return variable


def is_sharded(variable: tf.Variable) -> bool:
    """Whether replicas hold parts of the variable."""
    try:
        return hasattr(variable, _SHAPE)
    except (
        ValueError
    ):  # A strategy's variable reads its value here, which one that differs by replica does not have.
        return False


def shape_of(variable: tf.Variable) -> tuple[int, ...]:
    """Returns the shape of a variable, of the whole one if replicas hold parts."""
    return getattr(variable, _SHAPE) if is_sharded(variable) else tuple(variable.shape)


def gathered(
    replicas: Replicas, part: tf.Tensor, shape: Sequence[int], compute: tf.DType, wire: tf.DType
) -> tf.Tensor:
    """Inside `run`: returns a whole weight of `shape` from the replicas' parts, in the dtype of `part`.

    Args:
      part: this replica's part.
      compute: dtype of the products with the weight. Replicas send it, so the result is rounded to it.
      wire: dtype in which replicas send and add the gradient.
    """
    group, elements = replicas.group(None), math.prod(shape)

    def whole(part: tf.Tensor) -> tf.Tensor:
        flat = tf.cast(group.gather(tf.cast(part, compute), 0), part.dtype)
        return tf.reshape(flat[:elements], shape)

    def scattered(above: tf.Tensor) -> tf.Tensor:
        above = tf.reshape(tf.convert_to_tensor(above), [-1])
        padded = tf.pad(above, [[0, -elements % replicas.num_replicas]])
        return tf.cast(group.scatter(tf.cast(padded, wire), 0), part.dtype)

    return linear(part, whole, scattered)


def read(replicas: Replicas, variable: tf.Variable) -> np.ndarray:
    """Outside `run`, called by every process: returns a variable's value, of the whole one if replicas hold parts."""
    if not is_sharded(variable):
        return replicas.local_results(variable)[0].numpy()
    shape = shape_of(variable)
    return replicas.all_values(variable).reshape(-1)[: math.prod(shape)].reshape(shape)


def write(replicas: Replicas, variable: tf.Variable, value: np.ndarray) -> None:
    """Outside `run`: sets the copies of this process's replicas, or their parts of the whole `value`."""
    copies = replicas.local_results(variable)
    values = [value] * len(copies)
    if is_sharded(variable):
        values = _cut(value, replicas.num_replicas)[replicas.process_index * len(copies) :]
    for copy, part in zip(copies, values):
        copy.assign(part)


def _cut(whole: np.ndarray, replicas: int) -> np.ndarray:
    """Returns all parts of a weight, [replicas, elements]."""
    return np.pad(whole.reshape(-1), (0, -whole.size % replicas)).reshape(replicas, -1)


class ShardedWeightsUpdate(ShardedUpdate):
    """Each replica updates the parts that it holds, from gradients that are summed already."""

    def _part(self, replica: tf.Tensor | int) -> tf.Tensor | int:
        return replica

    def _plan(self) -> list[list[WeightShard]]:
        """Makes one shard for each weight."""
        count, shards = self._replicas.num_replicas, []
        for i, (weight, one) in enumerate(zip(self._weights, self._segments, strict=True)):
            size = weight.shape[0]
            shapes = (shape_of(weight),)
            shard = WeightShard((i,), one.adapts, one.regularized, False, (size,), (size,), shapes, count)
            shards.append([shard])
        return shards

    def _scattered(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return list(gradients)

    def _local_weights(self) -> list[tf.Tensor]:
        return [weight.read_value() for weight in self._weights]

    def _gathered(self, new: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        self._replicas.assign(self._weights, list(new))
        return list(new)
