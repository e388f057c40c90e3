"""What a benchmark hands to the loop: a single replica's view of its training and evaluation.

Losses are *weighted sums*, never means: a sum, its weight and what normalises it. That removes every division by the
number of replicas and every correction for a padded batch from the benchmarks.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
import tf_keras

from common.config.schema import RunConfig
from common.distributed.replicas.base import Replicas, Shard
from common.errors import UserError
from common.layers.precision import Precision

Batch = Mapping[str, tf.Tensor]


class Over(enum.Enum):
    """What a loss term's total is divided by."""

    GLOBAL = "the weights of all replicas and micro-batches: examples, tokens, matched boxes"
    REPLICA = "the weight of this replica's micro-batch; the terms of all replicas are averaged"


@dataclasses.dataclass(frozen=True)
class WeightedSum:
    """A loss term: `total` and `weight` are scalars in the precision of the loss."""

    total: tf.Tensor
    weight: tf.Tensor
    over: Over = Over.GLOBAL


@dataclasses.dataclass(frozen=True)
class Outputs:
    """What an evaluation step returns: scalars to be summed, and arrays [b, ...] to be concatenated for the host."""

    sums: Mapping[str, tf.Tensor] = dataclasses.field(default_factory=dict)
    arrays: Mapping[str, tf.Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Quality:
    """An evaluation's result: `value` is logged as eval_accuracy, `reached` ends the run."""

    value: Any
    reached: bool
    details: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Task(Protocol):
    """A benchmark. `evaluate_in_worker` asks for `quality` in a worker process while the next block trains.

    A task may have an int `evaluation_workers` too. Where it is not 0, there are so many workers, and `quality` is
    called in a thread with a third argument `spread(function, items)`: `map`, by all of them.

    Also optional: `batch_shapes` and `eval_batch_shapes`, where batches come in several static shapes
    (common/train/batch_shapes.py), `synthetic_eval_input`, where evaluation batches look different, and `chooses`,
    True where a training step picks examples by comparing what it computed, so that a rounding can pick others.
    """

    config: RunConfig
    evaluate_in_worker: bool

    def check_input(self) -> None:
        """Raises UserError where the data is not there; cheap, called before anything is built."""

    def diagnose(self, error: tf.errors.OpError) -> UserError | None:
        """What is wrong with the data, file and record, if that is what made a step fail; may read all of it."""

    def build(self, replicas: Replicas, precision: Precision) -> tf_keras.Model:
        """The network; called in the replicas' scope."""

    def train_input(self, shard: Shard, batch_size: int, start_step: int) -> tf.data.Dataset:
        """Endless, seeded batches of one replica; as an uninterrupted run would give them from `start_step` on."""

    def eval_input(self, shard: Shard, batch_size: int) -> tf.data.Dataset:
        """Finite, padded to equal work on every replica; padding has `weight` 0."""

    def synthetic_input(self, batch_size: int) -> tf.data.Dataset:
        """Endless batches with the element_spec of both inputs, without data; each of `batch_shapes` in turn."""

    def loss(self, model: tf_keras.Model, batch: Batch) -> Mapping[str, WeightedSum]:
        """The loss terms of a micro-batch, on one replica."""

    def evaluate(self, model: tf_keras.Model, batch: Batch) -> Outputs:
        """Metric sums, or arrays for the host, of one replica's evaluation batch."""

    def quality(self, sums: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]) -> Quality:
        """Pure; raises ValueError where the outputs do not add up."""
