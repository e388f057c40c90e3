"""Groups sequences of similar length into batches (window bucketization), one bucket per step on all replicas.

Section 3 of "Scale MLPerf-0.6 Models on Google TPU-v3 Pods": with synchronous training a step takes as long as its
longest sequence on any worker, so the window in which sequences of one length are collected is the *global* batch.
In the paper one host, or several in turns, make all workers' input. Here every host makes the same plan from the
lengths and the seed, and takes its part: a plan is a few bytes per example, and nothing has to be sent.

A plan holds indices of examples, no text. It is a pure function of (lengths, seed, epoch), so a run can resume at any
step.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from common.distributed.replicas.base import Shard
from common.errors import UserError


@dataclasses.dataclass(frozen=True)
class Plan:
    """The global batches of an epoch, one per step.

    Attributes:
      buckets: int32 [steps], the number of each step's bucket.
      examples: int64 [steps, global batch], indices of examples; -1 is padding.
    """

    buckets: np.ndarray
    examples: np.ndarray

    @property
    def steps(self) -> int:
        return len(self.buckets)

    def shard(self, shard: Shard) -> Plan:
        """Returns part `shard.index` of every batch: rows [index * n / count, (index + 1) * n / count) of n.

        Raises:
          UserError: the batch does not divide into the shards.
        """
        size = self.examples.shape[1]
        if size % shard.count:
            raise UserError(
                f"a global batch of {size} does not divide into {shard.count} shards; use a multiple of {shard.count}"
            )
        part = size // shard.count
        return Plan(self.buckets, self.examples[:, shard.index * part : (shard.index + 1) * part])


class Buckets:
    """Examples grouped by upper limits of their length, and the batches of each epoch."""

    def __init__(self, lengths: np.ndarray, limits: Sequence[int]):
        """Assigns every example to a bucket.

        Args:
          lengths: int [examples], length of the longer side of each example.
          limits: ascending; bucket i takes lengths up to limits[i], which is the static length of its batches.

        Raises:
          UserError: limits that do not ascend, no examples, or an example longer than the last limit.
        """
        self.lengths, self.limits = np.asarray(lengths), np.asarray(limits)
        if len(self.limits) < 1 or (np.diff(self.limits) <= 0).any() or self.limits[0] < 1:
            raise UserError(f"bucket limits {list(limits)}: must be positive and ascend")
        if not len(self.lengths):
            raise UserError("no examples to bucket; is the training file empty?")
        if self.lengths.max() > self.limits[-1]:
            where = int(self.lengths.argmax())
            raise UserError(
                f"example {where} has {self.lengths[where]} tokens, the last bucket takes {self.limits[-1]}; "
                "raise the last limit or drop it"
            )
        self.of = np.searchsorted(self.limits, self.lengths).astype(np.int32)

    def epoch(self, seed: int, epoch: int, global_batch: int) -> Plan:
        """Returns the batches of one epoch: every example once, in ceil(examples / global_batch) steps.

        Examples come in shuffled order; a bucket gives a batch as soon as it has collected one. The examples left in
        the buckets at the end, shortest first, form mixed batches, each in the bucket of its longest example; padding
        fills the last batch.
        """
        order = np.random.default_rng([seed, epoch]).permutation(len(self.lengths))
        buckets = self.of[order]
        places, batches = [], []
        rest: list[np.ndarray] = []
        for bucket in range(len(self.limits)):
            at = np.flatnonzero(buckets == bucket)
            whole = len(at) // global_batch * global_batch
            full = at[:whole].reshape(-1, global_batch)
            # A batch takes the place at which its last example arrives.
            places += full[:, -1].tolist()
            batches += [(bucket, order[rows]) for rows in full]
            rest.append(order[at[whole:]])
        left = np.concatenate(rest)
        for first in range(0, len(left), global_batch):
            members = left[first : first + global_batch]
            padding = np.full(global_batch - len(members), -1, np.int64)
            places.append(len(order) + first)
            batches.append((int(self.of[members].max()), np.concatenate([members, padding])))
        sequence = np.argsort(places, kind="stable")
        return Plan(
            np.array([batches[i][0] for i in sequence], np.int32),
            np.stack([batches[i][1] for i in sequence]).astype(np.int64),
        )

    def steps_per_epoch(self, global_batch: int) -> int:
        return -(-len(self.lengths) // global_batch)

    def endless(
        self, seed: int, global_batch: int, shard: Shard, start_step: int = 0
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (static length, this shard's example indices) of step `start_step` and all later steps."""
        epoch, skip = divmod(start_step, self.steps_per_epoch(global_batch))
        while True:
            plan = self.epoch(seed, epoch, global_batch).shard(shard)
            for step in range(skip, plan.steps):
                yield int(self.limits[plan.buckets[step]]), plan.examples[step]
            epoch, skip = epoch + 1, 0

    def ahead(
        self, seed: int, global_batch: int, shard: Shard, start_step: int, end_step: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Plans the steps from `start_step` until before `end_step`.

        Returns:
          (static lengths, int64 [steps]; this shard's example indices, int32 [steps, global batch / shards]).
        """
        steps = list(
            itertools.islice(self.endless(seed, global_batch, shard, start_step), end_step - start_step)
        )
        return np.array([length for length, _ in steps]), np.stack([part for _, part in steps]).astype(
            np.int32
        )

    def padding_share(self, plan: Plan) -> float:
        """Fraction of a plan's tokens that is padding."""
        real = self.lengths[plan.examples[plan.examples >= 0]].sum()
        computed = (self.limits[plan.buckets] * plan.examples.shape[1]).sum()
        return 1 - float(real) / float(computed)


def equal_width(longest: int, count: int) -> list[int]:
    """Returns limits of `count` buckets of width ceil(longest / count), as in GNMT (docs/sources.md, mlperf 1.5)."""
    width = (longest + count - 1) // count
    return [min((i + 1) * width, longest) for i in range(count) if i * width < longest]


def least_padding(lengths: np.ndarray, count: int) -> list[int]:
    """Returns limits of at most `count` buckets that pad examples of these lengths with the fewest tokens.

    Exact, by dynamic programming over the distinct lengths: the last bucket begins somewhere, and those before it are
    the best for the shorter examples. What is left in the buckets at the end of an epoch is not counted. Without
    lengths there are no limits: [].
    """
    sizes, numbers = np.unique(np.asarray(lengths), return_counts=True)
    upto = np.concatenate([[0], np.cumsum(numbers)])
    # tokens[b][j]: the fewest for the j shortest lengths in b buckets; begin[b][j - 1]: where the last begins.
    tokens, begin = np.where(np.arange(len(upto)) == 0, 0.0, np.inf), []
    for _ in range(min(count, len(sizes))):
        padded = sizes[None] * (upto[None, 1:] - upto[:-1, None])  # Of the bucket of lengths i to j.
        total = np.where(np.triu(np.ones_like(padded, bool)), tokens[:-1, None] + padded, np.inf)
        begin.append(total.argmin(0))
        tokens = np.concatenate([[0.0], total.min(0)])
    limits, end = [], len(sizes)
    for first in reversed(begin):  # More buckets never pad more, so the best plan has a bucket of each.
        limits.append(int(sizes[end - 1]))
        end = int(first[end - 1])
    return limits[::-1]
