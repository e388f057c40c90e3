"""The shards of a sharded weight update: what each replica owns of some weights, and how values go there and back.

A `WeightShard` cuts every weight into equal parts, whose elements lie side by side. A value of a weight goes into
`rows`, one tensor [replicas, width] for each of `widths`; `weights` takes them back.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from common.distributed.replicas.base import Replicas, flatten
from common.optim import optimizers


@dataclasses.dataclass(frozen=True)
class WeightShard:
    """The `optimizers.Segments` of weight parts treated alike; a single part if the rule needs its norms or rows.

    Attributes:
      members: indices of the weights.
      adapts, regularized: as in `optimizers.Segments`.
      by_rows: whether LazyAdam updates only the rows that have a gradient.
      shape: shape of the parts together: [elements], or [rows, ...] for a part that is cut between rows.
      widths: number of elements in a replica's part of each weight.
      shapes: shapes of the weights.
      replicas: number of replicas.
      measured: norms of the whole weight and of the whole `Rule.measured`, if the rule needs them.
    """

    members: tuple[int, ...]
    adapts: bool
    regularized: bool
    by_rows: bool
    shape: tuple[int, ...]
    widths: tuple[int, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    replicas: int = 1
    measured: tuple[tf.Tensor, tf.Tensor] | None = None

    def norms(self, weight: tf.Tensor, other: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        del weight, other
        return self.measured

    def touched(self, gradient: tf.Tensor) -> bool | tf.Tensor:
        return optimizers.rows_with_gradient(gradient) if self.by_rows else True

    def segments(self, measured: tuple[tf.Tensor, tf.Tensor] | None) -> optimizers.Segments:
        """Returns what the rule learns about this shard, with the norms that the replicas found together."""
        return dataclasses.replace(self, measured=measured)

    def rows(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns all weights' `values` (weights, or their gradients) with a row for each replica."""
        count = self.replicas
        return [
            tf.reshape(flatten([values[i]], width * count), [count, -1])
            for i, width in zip(self.members, self.widths, strict=True)
        ]

    def weights(self, rows: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the members' values from `rows`' result."""
        return [
            tf.reshape(tf.reshape(row, [-1])[: math.prod(shape)], shape)
            for row, shape in zip(rows, self.shapes, strict=True)
        ]

    def part_of(self, weights: Sequence[tf.Variable], part: tf.Tensor | int, replicas: Replicas) -> tf.Tensor:
        """Inside `run`: returns part number `part` of the members."""
        slices = []
        for i, length in zip(self.members, self.widths, strict=True):
            flat = tf.reshape(weights[i].read_value(), [-1])
            excess = length * self.replicas - flat.shape[0]
            if not excess:
                slices.append(replicas.cut(flat, [part * length], [length]))
                continue
            # The last parts extend past the end: read the last `length` elements and shift them.
            start = tf.minimum(part * length, flat.shape[0] - length)
            shift = tf.minimum(part * length - start, length)
            last = replicas.cut(flat, [start], [length])
            padded = tf.concat([last, tf.zeros([length], flat.dtype)], 0)
            slices.append(replicas.cut(padded, [shift], [length]))
        return tf.reshape(tf.concat(slices, 0) if len(slices) > 1 else slices[0], self.shape)

    def slot_shapes(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Returns the shape of each member's slot, from the shape of a part of it."""
        return list(self.shapes) if shape else [()] * len(self.members)

    def slot_values(self, shards: np.ndarray) -> list[np.ndarray]:
        """Returns a slot of each member from all shards, [replicas, ...]; a scalar slot is equal for all of them."""
        if shards.ndim == 1:
            return [shards[0]] * len(self.members)
        columns = np.split(shards.reshape(self.replicas, -1), np.cumsum(self.widths)[:-1], 1)
        return [
            column.reshape(-1)[: math.prod(shape)].reshape(shape)
            for column, shape in zip(columns, self.shapes, strict=True)
        ]

    def slot_parts(self, values: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        """Returns all parts, [replicas, *shape], from the members' slots."""
        if not shape:
            return np.stack([values[0]] * self.replicas)
        rows = []
        for value, width in zip(values, self.widths, strict=True):
            flat = value.reshape(-1)
            rows.append(np.pad(flat, (0, width * self.replicas - flat.size)).reshape(self.replicas, -1))
        return np.concatenate(rows, 1).reshape(self.replicas, *shape)
