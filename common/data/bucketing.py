"""Groups sequences of similar length into batches (window bucketization), one bucket per step on all replicas.

Section 3 of "Scale MLPerf-0.6 Models on Google TPU-v3 Pods": in synchronous training, the longest sequence on any
worker determines a step's time. So the window that collects sequences of one length is the *global* batch. In the
paper, one host makes all workers' input, or several hosts take turns. Here every host makes the same plan from the
lengths and the seed, and takes its part. A plan is a few bytes per example, and hosts send nothing.

A plan holds indices of examples, not text. It is a pure function of (lengths, seed, epoch), so a run can resume at any
step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from common.distributed.replicas.base import Shard
from common.errors import UserError


@dataclasses.dataclass(frozen=True)
class Plan:
    """The global batches of an epoch, one per step.

    Attributes:
      buckets: int32 [steps], the bucket number of each step.
      examples: int64 [steps, global batch], indices of examples; -1 is padding.
    """

    buckets: np.ndarray
    examples: np.ndarray

    @property
    def steps(self) -> int:
        return len(self.buckets)

    def shard(self, shard: Shard) -> Plan:
        """Returns part `shard.index` of every batch: rows [index * n / count, (index + 1) * n / count) of n.

        Raises UserError if the batch does not divide evenly into the shards.
        """
        size = self.examples.shape[1]
        if size % shard.count:
            fix = f"use a multiple of {shard.count}"
            raise UserError(f"a global batch of {size} does not divide into {shard.count} shards; {fix}")
        part = size // shard.count
        return Plan(self.buckets, self.examples[:, shard.index * part : (shard.index + 1) * part])


class Buckets:
    """Groups examples into buckets by length, and plans each epoch's batches."""

    def __init__(self, lengths: np.ndarray, limits: Sequence[int]):
        """Assigns every example to a bucket.

        Raises UserError if limits that do not ascend, no examples, or an example longer than the last limit.

        Args:
          lengths: int [examples], length of each example's longer side.
          limits: ascending; bucket i takes lengths up to limits[i], the static length of its batches.
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

        Examples arrive in shuffled order; a bucket emits a batch as soon as it is full. At the end, the leftover
        examples form mixed batches, shortest first. A mixed batch takes the bucket of its longest example. Padding
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
            # A batch's place in the order is the arrival of its last example.
            places += full[:, -1].tolist()
            batches += [(bucket, order[rows]) for rows in full]
            rest.append(order[at[whole:]])
        remaining = np.concatenate(rest)
        for first in range(0, len(remaining), global_batch):
            members = remaining[first : first + global_batch]
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

    def ahead(
        self, seed: int, global_batch: int, shard: Shard, start_step: int, end_step: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Plans the steps [start_step, end_step).

        Returns (static lengths, int64 [steps]; this shard's example indices, int32 [steps, global batch / shards]).
        """
        per_epoch = self.steps_per_epoch(global_batch)
        epochs = range(start_step // per_epoch, -(-end_step // per_epoch))
        plans = [self.epoch(seed, epoch, global_batch).shard(shard) for epoch in epochs]
        steps = slice(start_step - epochs.start * per_epoch, end_step - epochs.start * per_epoch)
        lengths = self.limits[np.concatenate([plan.buckets for plan in plans])]
        examples = np.concatenate([plan.examples.astype(np.int32) for plan in plans])
        return lengths[steps], examples[steps]


def least_padding(lengths: np.ndarray, count: int) -> list[int]:
    """Returns limits of at most `count` buckets that pad examples of these lengths with the fewest tokens.

    The result is exact, by dynamic programming over the distinct lengths: for each start of the last bucket, the
    buckets before it are optimal for the shorter examples. It ignores the leftover examples of an epoch. Without
    lengths it returns [].
    """
    sizes, numbers = np.unique(np.asarray(lengths), return_counts=True)
    upto = np.concatenate([[0], np.cumsum(numbers)])
    # tokens[b][j]: fewest tokens for the j shortest lengths in b buckets; begin[b][j - 1]: start of the last bucket.
    tokens, begin = np.where(np.arange(len(upto)) == 0, 0.0, np.inf), []
    for _ in range(min(count, len(sizes))):
        padded = sizes[None] * (upto[None, 1:] - upto[:-1, None])  # Tokens of a bucket with lengths i to j.
        total = np.where(np.triu(np.ones_like(padded, bool)), tokens[:-1, None] + padded, np.inf)
        begin.append(total.argmin(0))
        tokens = np.concatenate([[0.0], total.min(0)])
    limits, end = [], len(sizes)
    for first in reversed(begin):  # More buckets never pad more, so the best plan uses all of them.
        limits.append(int(sizes[end - 1]))
        end = int(first[end - 1])
    return limits[::-1]
