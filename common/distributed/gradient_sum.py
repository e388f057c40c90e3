"""Sums gradients over replicas: in buckets, in full precision or bfloat16, along one or two stages of groups.

Section 2 of the pods paper sums along the rows of a torus, then along its columns: reduce-scatters over groups,
followed by all-gathers. They use the collectives of `common.distributed.replicas.base`, so they work on every backend.
"""

import dataclasses
import math
from collections.abc import Sequence

import tensorflow as tf

from common.config.schema import Communication
from common.distributed.replicas.base import Groups, Replicas, contiguous_groups, flatten, unflatten

# Maximum size of a bucket of several gradients.
BUCKET_BYTES = 32 * 2**20


@dataclasses.dataclass(frozen=True)
class Route:
    """The groups of each stage of a reduce-scatter.

    Replica `q * row + p` is the p-th of row q. After `scatter` along the rows, then the columns, it holds part
    `p * (num_replicas / row) + q` of the whole.

    Attributes:
      num_replicas: replicas of the run.
      row: replicas of a row; `num_replicas` if there is only one stage.
    """

    num_replicas: int
    row: int

    @property
    def rows(self) -> Groups | None:
        """Groups of the first stage; None is one group of all replicas."""
        return None if self.row == self.num_replicas else contiguous_groups(self.num_replicas, self.row)

    @property
    def columns(self) -> Groups | None:
        """Groups of the second stage; None if there is only one stage."""
        if self.row == self.num_replicas:
            return None
        return [list(range(p, self.num_replicas, self.row)) for p in range(self.row)]

    @property
    def stages(self) -> list[Groups | None]:
        """Groups of each stage, in order."""
        return [self.rows] if self.columns is None else [self.rows, self.columns]

    def part(self, replica: tf.Tensor | int) -> tf.Tensor | int:
        """The part of the whole that `replica` holds after the scatter."""
        return (replica % self.row) * (self.num_replicas // self.row) + replica // self.row


def route(communication: Communication, num_replicas: int) -> Route:
    """Returns the route of a configuration; a row of "2d" is the divisor nearest to the square root.

    Args:
      num_replicas: replicas over all processes.
    """
    if communication.algorithm == "flat":
        return Route(num_replicas, num_replicas)
    divisors = [d for d in range(1, num_replicas + 1) if num_replicas % d == 0]
    row = min(divisors, key=lambda d: abs(math.log(d * d / num_replicas)))
    # Rows of one, or one row: a single stage.
    return Route(num_replicas, num_replicas if row == 1 else row)


def buckets(tensors: Sequence[tf.Tensor], bucket_bytes: int) -> list[list[int]]:
    """Groups the indices of tensors into buckets that are summed together: one dtype, reverse order of creation.

    The backward pass makes the last layers' gradients first, so their sum can overlap with the rest of the pass.
    Buckets come in the order in which they fill up. A bucket of several tensors holds at most `bucket_bytes`. A tensor
    of at least an eighth of that is a bucket of its own: it fills the wire by itself, which saves copying it into a
    bucket and out of it.
    """
    result: list[list[int]] = []
    waiting: list[int] = []
    size = 0
    for i in reversed(range(len(tensors))):
        nbytes = tensors[i].shape.num_elements() * tensors[i].dtype.size
        if 8 * nbytes >= bucket_bytes:
            result.append([i])
            continue
        if waiting and (size + nbytes > bucket_bytes or tensors[i].dtype != tensors[waiting[0]].dtype):
            result.append(waiting)
            waiting, size = [], 0
        waiting.append(i)
        size += nbytes
    return [*result, waiting] if waiting else result


def sum_gradients(
    replicas: Replicas, gradients: Sequence[tf.Tensor], communication: Communication
) -> list[tf.Tensor]:
    """Inside `run`: returns the sums of the gradients over all replicas, bit-identical on each of them."""
    sums: list[tf.Tensor | None] = [None] * len(gradients)
    plan = route(communication, replicas.num_replicas)
    for bucket in buckets(gradients, BUCKET_BYTES):
        members = [gradients[i] for i in bucket]
        if replicas.num_replicas == 1:
            total = members
        elif plan.columns is None:
            # With one stage, use the backend's own all-reduce; a cast to the same type does nothing.
            dtype = members[0].dtype
            wire = tf.bfloat16 if communication.wire == "bf16_sum" else dtype
            total = [tf.cast(x, dtype) for x in replicas.sum_bucket([tf.cast(x, wire) for x in members])]
        else:
            total = _sum_bucket(replicas, members, plan, communication.wire)
        for i, one in zip(bucket, total, strict=True):
            sums[i] = one
    return sums


def _sum_bucket(replicas: Replicas, tensors: list[tf.Tensor], plan: Route, wire: str) -> list[tf.Tensor]:
    whole = flatten(tensors, multiple=plan.num_replicas)
    if wire == "full":
        # An all-reduce along the columns replaces scatter and gather, because the backend may have a faster one.
        part = replicas.reduce_scatter(whole, groups=plan.rows)
        part = replicas.all_reduce(part, plan.columns)
        return unflatten(replicas.all_gather(part, groups=plan.rows), tensors)
    part = tf.cast(scatter(replicas, whole, plan, wire), tf.bfloat16)
    return unflatten(tf.cast(gather(replicas, part, plan), whole.dtype), tensors)


def scatter(replicas: Replicas, whole: tf.Tensor, plan: Route, wire: str) -> tf.Tensor:
    """Inside `run`: returns this replica's part, `plan.part(replica)`, of the sum of `whole` [n] over all replicas.

    With wire "bf16_sum", replicas exchange and add bfloat16.
    """
    if replicas.num_replicas == 1:
        return whole
    for groups in plan.stages:
        payload = tf.cast(whole, tf.bfloat16) if wire == "bf16_sum" else whole
        whole = tf.cast(replicas.reduce_scatter(payload, groups=groups), whole.dtype)
    return whole


def gather(replicas: Replicas, part: tf.Tensor, plan: Route) -> tf.Tensor:
    """Inside `run`: returns the whole from every replica's part; the inverse of the cut that `scatter` makes."""
    if replicas.num_replicas == 1:
        return part
    for groups in reversed(plan.stages):
        part = replicas.all_gather(part, groups=groups)
    return part
