"""The pieces of a sharded weight update: what each replica owns of some weights, and how values go there and back.

A `Piece` cuts every weight into equal parts, whose elements lie side by side. A `Stack` cuts between whole matrices,
for rules that work on matrices: all matrices of one shape that a rule treats alike (whole weights for Muon, blocks of
weights for Shampoo and SOAP) lie in one stack. It is padded with zero matrices to a multiple of the number of replicas,
and each replica owns an equal part. The reduce-scatter of gradients brings each matrix whole to its owner, and the
all-gather distributes the new weights. So every replica does the same work on tensors of the same shapes, and no norm,
product or root crosses replicas.

Both have one interface. A value of a weight goes into `rows`, one tensor [replicas, width] for each of `widths`;
`weights` takes them back.
"""

import dataclasses
import math
from collections.abc import Hashable, Sequence

import numpy as np
import tensorflow as tf

from common.distributed.replicas.base import Replicas, flatten
from common.optim import optimizers
from common.optim.cuts import Cut


@dataclasses.dataclass(frozen=True)
class Piece:
    """The `optimizers.Segments` of weight parts treated alike; a single part if the rule needs its norms or rows.

    Attributes:
      members: indices of the weights.
      adapts, regularised: as in `optimizers.Segments`.
      by_rows: whether LazyAdam updates only the rows that have a gradient.
      shape: shape of the parts together: [elements], or [rows, ...] for a part that is cut between rows.
      widths: number of elements in a replica's part of each weight.
      shapes: shapes of the weights.
      replicas: number of replicas.
      measured: norms of the whole weight and of the whole `Rule.measured`, if the rule needs them.
    """

    members: tuple[int, ...]
    adapts: bool
    regularised: bool
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
        """Returns what the rule learns about this piece, with the norms that the replicas found together."""
        return dataclasses.replace(self, measured=measured)

    def rule(self, whole: optimizers.Rule) -> optimizers.Rule:
        """Returns the rule for this piece, from the optimizer's."""
        return whole

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

    def own(self, weights: Sequence[tf.Variable], part: tf.Tensor | int, replicas: Replicas) -> tf.Tensor:
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

    def slot_parts(self, values: Sequence[np.ndarray], initial: np.ndarray) -> np.ndarray:
        """Returns all parts, [replicas, ...], from the members' slots; `initial` is what a part starts as."""
        if not initial.ndim:
            return np.stack([values[0]] * self.replicas)
        rows = []
        for value, width in zip(values, self.widths, strict=True):
            flat = value.reshape(-1)
            rows.append(np.pad(flat, (0, width * self.replicas - flat.size)).reshape(self.replicas, -1))
        return np.concatenate(rows, 1).reshape(self.replicas, *initial.shape)


@dataclasses.dataclass(frozen=True)
class Stack:
    """The matrices of some weights, and what a rule needs to know about them.

    Attributes:
      members: indices of the weights.
      cuts: how each of them is cut.
      whole: the segments of each of them, as far as the rule reads them.
      replicas: number of replicas that share the stack.
    """

    members: tuple[int, ...]
    cuts: tuple[Cut, ...]
    whole: optimizers.Whole
    replicas: int

    @property
    def count(self) -> int:
        """Number of matrices, without padding."""
        return sum(cut.count for cut in self.cuts)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of a replica's own matrices."""
        return -(-self.count // self.replicas), self.cuts[0].rows, self.cuts[0].columns

    @property
    def widths(self) -> tuple[int, ...]:
        return (math.prod(self.shape),)

    @property
    def adapts(self) -> bool:
        return self.whole.adapts

    def segments(self, measured: None) -> optimizers.Segments:
        """As `Piece.segments`; the matrices are whole, so the rule finds their norms itself."""
        del measured
        return self.whole

    def rule(self, whole: optimizers.Rule) -> optimizers.Rule:
        return whole.matrices.rule

    def rows(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        stacks = [cut.stack(values[i], tf) for i, cut in zip(self.members, self.cuts, strict=True)]
        missing = self.replicas * self.shape[0] - self.count
        if missing:
            stacks.append(tf.zeros([missing, *self.shape[1:]], stacks[0].dtype))
        whole = tf.concat(stacks, 0) if len(stacks) > 1 else stacks[0]
        return [tf.reshape(whole, [self.replicas, -1])]

    def weights(self, rows: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        whole = tf.reshape(rows[0], [-1, *self.shape[1:]])[: self.count]
        parts = tf.split(whole, [cut.count for cut in self.cuts])
        return [cut.join(part, tf) for cut, part in zip(self.cuts, parts, strict=True)]

    def own(self, weights: Sequence[tf.Variable], part: tf.Tensor | int, replicas: Replicas) -> tf.Tensor:
        flat = tf.reshape(self.rows(weights)[0], [-1])
        (length,) = self.widths
        return tf.reshape(replicas.cut(flat, [part * length], [length]), self.shape)

    def slot_shapes(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [(cut.count, *shape[1:]) for cut in self.cuts]

    def slot_values(self, shards: np.ndarray) -> list[np.ndarray]:
        whole = shards.reshape(-1, *shards.shape[2:])[: self.count]
        return np.split(whole, np.cumsum([cut.count for cut in self.cuts])[:-1])

    def slot_parts(self, values: Sequence[np.ndarray], initial: np.ndarray) -> np.ndarray:
        whole = np.concatenate([*values, np.stack([initial] * self.replicas).reshape(-1, *initial.shape[1:])])
        return whole[: self.replicas * self.shape[0]].reshape(self.replicas, *initial.shape)


def stacks(
    cuts: Sequence[Cut | None],
    whole: Sequence[optimizers.Whole],
    weights: Sequence[tf.Variable],
    replicas: int,
) -> list[Stack]:
    """Returns the stacks of the weights that have a cut; indices as in `weights`, in reverse order of creation."""
    groups: dict[Hashable, list[int]] = {}
    for i in reversed(range(len(cuts))):
        if (cut := cuts[i]) is not None:
            key = (cut.rows, cut.columns, weights[i].dtype, whole[i].adapts, whole[i].regularised)
            groups.setdefault(key, []).append(i)
    return [
        Stack(tuple(members), tuple(cuts[i] for i in members), whole[members[0]], replicas)
        for members in groups.values()
    ]
