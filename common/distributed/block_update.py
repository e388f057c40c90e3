"""Weight-update sharding by blocks: a replica's part of a weight is a block of its rows and columns.

`common/distributed/sharded_update.py` cuts weights into stretches of a flat vector. That costs time on TPUs: their
compilers keep matrices in tiles of 8 x 128, so they copy each weight and gradient into such a vector and out of it.
They also turn a reduce-scatter over a whole slice into a sum of the whole and a cut.

Here gradients are summed in their own shapes, and a replica cuts its block out of the sum. To gather the weights, each
replica places its blocks in zeros, and another sum joins them. So an all-reduce replaces each reduce-scatter and
all-gather. Use this form if the compiler turns both forms into the same operations.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from common.distributed import gradient_sum
from common.distributed.replicas.base import Replicas
from common.distributed.shard_layout import WeightShard
from common.distributed.sharded_update import ShardedUpdate

# The last two dimensions of an array in a TPU's memory are padded to multiples of these (32-bit elements).
_TILE = (8, 128)
# A block may have up to this many times the fewest possible elements, so that slots stay 1/N of the whole.
_SLACK = 1.05


@dataclasses.dataclass(frozen=True)
class Grid:
    """How a weight is cut into blocks of one size, one for each replica, row by row.

    If a count does not divide its dimension, the last blocks overlap the block before them, in part or entirely. The
    overlapping elements belong to the block before; the later block holds zeros there.

    Attributes:
      shape: shape of the weight.
      counts: blocks along each dimension; their product is the number of replicas.
    """

    shape: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def block(self) -> tuple[int, ...]:
        """Shape of a block."""
        return tuple(-(-size // count) for size, count in zip(self.shape, self.counts, strict=True))

    def cell(self, replica: tf.Tensor | int) -> list[tf.Tensor | int]:
        """Returns the position of a replica's block, in blocks along each dimension."""
        strides = [math.prod(self.counts[i + 1 :]) for i in range(len(self.counts))]
        return [replica // stride % count for stride, count in zip(strides, self.counts, strict=True)]

    def slices_of(self, replica: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Returns where a replica's own elements lie: (slices of the weight, slices of the block)."""
        inside, there = [], []
        for place, size, length in zip(self.cell(replica), self.shape, self.block, strict=True):
            first, end = min(place * length, size), min((place + 1) * length, size)
            start = min(place * length, size - length)
            inside.append(slice(first, end))
            there.append(slice(first - start, end - start))
        return tuple(inside), tuple(there)


@functools.cache
def grid(shape: tuple[int, ...], replicas: int, rows_only: bool = False) -> Grid:
    """Returns the grid whose blocks take the fewest tiles of a TPU's memory.

    Only grids whose blocks have nearly the fewest elements compete. A tie goes to the most blocks along the first
    dimensions.

    Args:
      shape: shape of the weight, at least one dimension.
      rows_only: whether to cut along the first dimension alone.
    """
    if rows_only:
        return Grid(shape, (replicas, *[1] * (len(shape) - 1)))
    grids = [Grid(shape, counts) for counts in _factors(replicas, len(shape))]
    most = _SLACK * min(math.prod(g.block) for g in grids)
    grids = [g for g in grids if math.prod(g.block) <= most]
    return min(grids, key=lambda g: (_padded(g.block), math.prod(g.block), [-count for count in g.counts]))


def _viewed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which a weight is cut: if its last two dimensions fill whole tiles, it is cut as a matrix."""
    if len(shape) > 2 and shape[-2] % _TILE[0] == 0 and shape[-1] % _TILE[1] == 0:
        return (math.prod(shape[:-1]), shape[-1])
    return shape or (1,)


def _factors(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yields every tuple of `count` whole numbers whose product is `number`."""
    if count == 1:
        yield (number,)
        return
    for first in (d for d in range(1, number + 1) if number % d == 0):
        for rest in _factors(number // first, count - 1):
            yield (first, *rest)


def _padded(block: tuple[int, ...]) -> int:
    """Elements of the tiles that hold a block; a vector counts as one row."""
    *outer, rows, columns = (1, *block)
    sides = zip((rows, columns), _TILE, strict=True)
    return math.prod(outer) * math.prod(-(-n // tile) * tile for n, tile in sides)


@dataclasses.dataclass(frozen=True)
class BlockShard(WeightShard):
    """A weight that is cut by `grid`."""

    grid: Grid | None = None

    def starts(self, replica: tf.Tensor | int) -> list[tf.Tensor]:
        """Returns where a replica's block begins."""
        layout = self.grid
        return [
            tf.minimum(place * length, size - length)
            for place, length, size in zip(layout.cell(replica), layout.block, layout.shape, strict=True)
        ]

    def cut(self, x: tf.Tensor, replicas: Replicas) -> tf.Tensor:
        """Inside `run`: returns this replica's block of `x`; elements that belong to the block before are 0."""
        layout, replica = self.grid, replicas.replica_id()
        cell, starts = layout.cell(replica), self.starts(replica)
        block = replicas.cut(tf.reshape(x, layout.shape), starts, layout.block)
        sides = zip(layout.shape, layout.counts, layout.block, strict=True)
        for axis, (size, count, length) in enumerate(sides):
            if count * length > size:
                owned = tf.range(length) + starts[axis] >= cell[axis] * length
                along = [length if i == axis else 1 for i in range(len(layout.shape))]
                block = tf.where(tf.reshape(owned, along), block, tf.zeros([], block.dtype))
        return block

    def part_of(self, weights: Sequence[tf.Variable], part: tf.Tensor | int, replicas: Replicas) -> tf.Tensor:
        return self.cut(weights[self.members[0]].read_value(), replicas)

    def slot_values(self, shards: np.ndarray) -> list[np.ndarray]:
        if shards.ndim == 1:
            return super().slot_values(shards)
        whole = np.zeros(self.grid.shape, shards.dtype)
        for replica, block in enumerate(shards):
            inside, there = self.grid.slices_of(replica)
            whole[inside] = block[there]
        return [whole.reshape(self.shapes[0])]

    def slot_parts(self, values: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        if not shape:
            return super().slot_parts(values, shape)
        blocks = np.zeros([self.replicas, *self.grid.block], values[0].dtype)
        for replica, block in enumerate(blocks):
            inside, there = self.grid.slices_of(replica)
            block[there] = values[0].reshape(self.grid.shape)[inside]
        return blocks


class BlockUpdate(ShardedUpdate):
    """Each replica updates its block of every weight."""

    def _part(self, replica: tf.Tensor | int) -> tf.Tensor | int:
        return replica

    def _plan(self) -> list[list[WeightShard]]:
        """Makes one shard for each weight."""
        count, shards = self._replicas.num_replicas, []
        described = zip(self._weights, self._segments, self._by_rows, strict=True)
        for i, (weight, one, rows) in enumerate(described):
            shape = tuple(weight.shape)
            layout = grid(_viewed(shape), count, rows)
            about = {"shapes": (shape,), "replicas": count, "grid": layout}
            shards.append([BlockShard((i,), one.adapts, one.regularized, rows, layout.block, **about)])
        return shards

    def _scattered(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        sums = gradient_sum.sum_gradients(self._replicas, gradients, self._config.communication)
        return [shard.cut(x, self._replicas) for x, shard in zip(sums, self._all_shards(), strict=True)]

    def _gathered(self, new: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Places each block in zeros of its weight's shape, sums them in full precision and writes the weights."""
        replica = self._replicas.replica_id()
        placed = [
            self._replicas.place(block, shard.starts(replica), shard.grid.shape)
            for block, shard in zip(new, self._all_shards(), strict=True)
        ]
        full = dataclasses.replace(self._config.communication, wire="full")
        sums = gradient_sum.sum_gradients(self._replicas, placed, full)
        values = [tf.reshape(x, weight.shape) for x, weight in zip(sums, self._weights, strict=True)]
        self._replicas.assign(self._weights, values)
        return values
