"""What a benchmark hands to the loop: a single replica's view of its training and evaluation.

Losses are *weighted sums*, never means: a sum, its weight and what normalises it. That removes every division by the
number of replicas and every correction for a padded batch from the benchmarks.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from common.config.schema import RunConfig
from common.distributed.replicas.base import Replicas, Shard
from common.errors import UserError
from common.layers.precision import Precision

Batch = Mapping[str, tf.Tensor]
# The components of a batch that differ from shape to shape, and their shapes without the batch axis.
Shape = Mapping[str, Sequence[int]]
# As `map`.
Spread = Callable[[Callable, Iterable], Iterable]


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


class Task(abc.ABC):
    """A benchmark as the loop sees it: what one replica trains on, its loss, and what an evaluation says.

    A benchmark overrides the abstract half, and of the rest what is its own.

    Attributes:
      input: the benchmark's input.py, whose functions `check`, `train_input`, `eval_input` and `synthetic` make its
        batches, unless the methods of these names are overridden.
      config: the run's configuration.
      data_dir: the folder with the data; None where none is needed (--describe, --dry_run, --export).
      evaluate_in_worker: `quality` runs in a worker process while the next block trains.
      evaluation_workers: where not 0, `quality` runs in a thread with so many worker processes, which its argument
        `spread` hands work to.
      batch_shapes, eval_batch_shapes: the static shapes in which batches come, where there are several of them
        (batch_shapes.py).
      chooses: a training step picks examples by comparing what it computed, so that a rounding can pick others.
      input_errors: what TensorFlow raises where the data is damaged.
    """

    input: ModuleType
    evaluate_in_worker: bool = False
    evaluation_workers: int = 0
    batch_shapes: Sequence[Shape] = ()
    eval_batch_shapes: Sequence[Shape] = ()
    chooses: bool = False
    input_errors: tuple[type[tf.errors.OpError], ...] = (
        tf.errors.DataLossError,
        tf.errors.InvalidArgumentError,
        tf.errors.NotFoundError,
    )

    def __init__(self, config: RunConfig, data_dir: str | None):
        self.config = config
        self.data_dir = pathlib.Path(data_dir) if data_dir else None

    def __getstate__(self) -> dict[str, Any]:
        """What a worker process needs for `quality`."""
        return {"config": self.config, "data_dir": self.data_dir}

    # -- what every benchmark has ----------------------------------------------------------------------------------

    @abc.abstractmethod
    def build(self, replicas: Replicas, precision: Precision) -> tf_keras.Model:
        """The network; called in the replicas' scope."""

    @abc.abstractmethod
    def loss(self, model: tf_keras.Model, batch: Batch) -> Mapping[str, WeightedSum]:
        """The loss terms of a micro-batch, on one replica."""

    @abc.abstractmethod
    def evaluate(self, model: tf_keras.Model, batch: Batch) -> Outputs:
        """Metric sums, or arrays for the host, of one replica's evaluation batch."""

    @abc.abstractmethod
    def quality(
        self, sums: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray], spread: Spread = map
    ) -> Quality:
        """The result of an evaluation, from the outputs of all its batches; pure.

        Args:
          sums: of `Outputs.sums`.
          arrays: of `Outputs.arrays`, concatenated.
          spread: `map` by all workers; given only where there are `evaluation_workers`.

        Raises:
          ValueError: the outputs do not add up.
        """

    # -- what a benchmark may have -----------------------------------------------------------------------------------

    def check_input(self) -> None:
        """Checks that the data and the initial weights are there; cheap, called before anything is built.

        Raises:
          UserError: they are not.
        """
        self.check_weights_file()
        self.input.check(self.config, self.data_dir)

    def train_input(self, shard: Shard, batch_size: int, start_step: int) -> tf.data.Dataset:
        """Endless, seeded batches of one replica; as an uninterrupted run would give them from `start_step` on."""
        return self.input.train_input(self.config, self.data_dir, shard, batch_size, start_step)

    def eval_input(self, shard: Shard, batch_size: int) -> tf.data.Dataset:
        """Finite, padded to equal work on every replica; padding has `weight` 0."""
        return self.input.eval_input(self.config, self.data_dir, shard, batch_size)

    def synthetic_input(self, batch_size: int) -> tf.data.Dataset:
        """Endless training batches without data, with the element_spec of `train_input`; each shape in turn."""
        return self.input.synthetic(self.config, batch_size)

    def synthetic_eval_input(self, batch_size: int) -> tf.data.Dataset:
        """As `synthetic_input`, for evaluation: the same batches, unless evaluation's look different."""
        return self.synthetic_input(batch_size)

    def diagnose(self, error: tf.errors.OpError) -> UserError | None:
        """What is wrong with the data, where that is what made a step fail with `error`; may read all of it."""
        return self.find_damage() if isinstance(error, self.input_errors) else None

    def find_damage(self) -> UserError | None:
        """The first damaged file and record; None where the data is sound, or was all read before the first step."""
        return None

    def check_weights_file(self) -> None:
        """Checks that the file with the initial weights is there, where the configuration names one.

        Raises:
          UserError: it is not.
        """
        config = self.config
        path = config.initial_weights_file
        if path and not os.path.exists(path):
            raise UserError(
                f"config.{config.weights_field}={path}: no such file; see {config.benchmark}/README.md"
            )
