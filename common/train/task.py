"""Defines what a benchmark gives to the loop: training and evaluation from a single replica's view.

Losses are weighted sums, never means: a total, its weight, and what divides the total. So no benchmark divides a loss
by the number of replicas, or corrects it for padded batches.
"""

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

from common.config import data_description
from common.config.schema import RunConfig
from common.distributed.replicas.base import Replicas, Shard
from common.errors import UserError
from common.layers.precision import Precision

Batch = Mapping[str, tf.Tensor]
# {component: shape without the batch axis}, for the components whose shape varies between batches.
Shape = Mapping[str, Sequence[int]]
_NOTES = ("records.json", "convert.json", "description.json", "tiny.json")
# A function like `map`; it may spread the calls over processes.
Spread = Callable[[Callable, Iterable], Iterable]


class Reduction(enum.Enum):
    """The divisor of a loss term's total."""

    GLOBAL = "the weights of all replicas and micro-batches: examples, tokens, matched boxes"
    REPLICA = "the weight of this replica's micro-batch; the terms of all replicas are averaged"


@dataclasses.dataclass(frozen=True)
class WeightedSum:
    """A loss term: `total` and `weight` are scalars in the precision of the loss."""

    total: tf.Tensor
    weight: tf.Tensor
    reduction: Reduction = Reduction.GLOBAL


@dataclasses.dataclass(frozen=True)
class Outputs:
    """An evaluation step's outputs: scalars to sum, and arrays [b, ...] to concatenate for the host."""

    sums: Mapping[str, tf.Tensor] = dataclasses.field(default_factory=dict)
    arrays: Mapping[str, tf.Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Quality:
    """An evaluation's result: `value` is logged as eval_accuracy, `reached` ends the run.

    For people: `by_class` has the quality of each class by its name, `confused` the most frequent wrong answers
    (class, answer, count), most frequent first.
    """

    value: Any
    reached: bool
    details: Mapping[str, float] = dataclasses.field(default_factory=dict)
    by_class: Mapping[str, float] = dataclasses.field(default_factory=dict)
    confused: Sequence[tuple[str, str, int]] = ()


class Task(abc.ABC):
    """A benchmark as the loop sees it: its network, batches, loss and evaluation.

    A benchmark overrides the abstract methods, and any other method that differs.

    Attributes:
      input: the benchmark's input.py. Its functions `check_files`, `check`, `train_input`, `eval_input` and
        `synthetic` check the data and make its batches, unless the methods that call them are overridden.
      config: the run's configuration.
      data_dir: the folder with the data; None if no data is needed (--describe, --dry_run, --export).
      evaluate_in_worker: whether `quality` runs in a worker process while the next block trains.
      evaluation_workers: if nonzero, `quality` runs in a thread, and its argument `spread` spreads work over this
        number of worker processes.
      batch_shapes, eval_batch_shapes: static shapes of the batches, if there are several (batch_shapes.py).
      chooses: whether a training step selects examples by comparing computed values, so that rounding can change the
        selection.
      input_errors: TensorFlow's errors that damaged data can cause.
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
        """Returns the state that a worker process needs for `quality`."""
        return {"config": self.config, "data_dir": self.data_dir}

    # -- what every benchmark has ----------------------------------------------------------------------------------

    @abc.abstractmethod
    def build(self, replicas: Replicas, precision: Precision) -> tf_keras.Model:
        """Builds the network; called in the replicas' scope."""

    @abc.abstractmethod
    def loss(self, model: tf_keras.Model, batch: Batch) -> Mapping[str, WeightedSum]:
        """Returns the loss terms of a micro-batch, on one replica."""

    @abc.abstractmethod
    def evaluate(self, model: tf_keras.Model, batch: Batch) -> Outputs:
        """Returns metric sums, or arrays for the host, for one replica's evaluation batch."""

    @abc.abstractmethod
    def quality(
        self, sums: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray], spread: Spread = map
    ) -> Quality:
        """Returns an evaluation's result from the outputs of all its batches; a pure function.

        Raises ValueError if the outputs do not add up.

        Args:
          sums: `Outputs.sums`, added up.
          arrays: `Outputs.arrays`, concatenated.
          spread: `map` on all workers; given only if there are `evaluation_workers`.
        """

    # -- what a benchmark may have -----------------------------------------------------------------------------------

    def check_input(self) -> None:
        """Checks by names, sizes and our own notes that the data and the initial weights are there.

        Called before anything is built, and so before the clock starts; it opens no data file. Raises UserError if
        something is missing, or a note contradicts the configuration.
        """
        self.check_weights_file()
        self.input.check_files(self.config, self.data_dir)

    def check_data(self) -> None:
        """Reads enough of the data to reject data that does not fit the configuration.

        Called first after the clock starts; `train_input` and `eval_input` need not read the same data again. Raises
        UserError if the data is damaged or does not fit.
        """
        self.input.check(self.config, self.data_dir)

    def data_files(self) -> Mapping[str, int]:
        """Returns the size of each file in the data folder, without our notes, and the number of each subfolder's.

        A subfolder's name ends with "/". No file is opened. A checkpoint holds them, so that a run does not go on with
        other data. They are {} for an object store.
        """
        if not self.data_dir or not self.data_dir.is_dir():
            return {}
        with os.scandir(self.data_dir) as entries:
            visible = sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)
        visible = [e for e in visible if e.name not in _NOTES and not e.name.endswith(".index.npz")]
        files = {e.name: e.stat().st_size for e in visible if e.is_file()}
        return files | {
            f"{e.name}/": sum(len(names) for *_, names in os.walk(e.path)) for e in visible if e.is_dir()
        }

    def train_input(self, shard: Shard, batch_size: int, start_step: int) -> tf.data.Dataset:
        """Returns one process's endless, seeded batches, as an uninterrupted run has them from `start_step` on.

        The benchmarks' `input.train_input` has the same arguments.

        Args:
          shard: this process's part of each global batch.
          batch_size: examples per batch of one replica; a shard's part of a step may be several batches.
          start_step: number of steps to skip.
        """
        return self.input.train_input(self.config, self.data_dir, shard, batch_size, start_step)

    def eval_input(self, shard: Shard, batch_size: int) -> tf.data.Dataset:
        """Returns the evaluation batches, padded to equal work on every replica; padding has `weight` 0.

        Arguments as in `train_input`; also of the benchmarks' `input.eval_input`.
        """
        return self.input.eval_input(self.config, self.data_dir, shard, batch_size)

    def synthetic_input(self, batch_size: int) -> tf.data.Dataset:
        """Returns endless synthetic training batches with the element_spec of `train_input`; each shape in turn."""
        return self.input.synthetic(self.config, batch_size)

    def synthetic_eval_input(self, batch_size: int) -> tf.data.Dataset:
        """As `synthetic_input`, for evaluation; by default the same batches."""
        return self.synthetic_input(batch_size)

    def labels(self) -> Sequence[str]:
        """Returns the names of the network's classes, class 0 first; () if nothing names them.

        By default the names come from the description that `timetotrain data` writes next to the data.
        """
        description = data_description.read(self.data_dir)
        return description.labels if description else ()

    def fitted(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Converts an array of other weights for a variable of `shape`; returns it unchanged if it cannot."""
        return array

    def assets(self) -> Mapping[str, bytes]:
        """Returns {name: content} of the data files that the trained network needs, such as a vocabulary."""
        return {}

    def diagnose(self, error: tf.errors.OpError) -> UserError | None:
        """Returns what is wrong with the data if that made a step fail with `error`; may read all of it.

        `input.diagnose` names the first damaged record; an input that reads all data before step 1 has none.
        """
        find = getattr(self.input, "diagnose", None)
        return find(self.config, self.data_dir) if find and isinstance(error, self.input_errors) else None

    def check_weights_file(self) -> None:
        """Checks that the initial weights' file exists, if the configuration names one.

        Raises UserError if the file does not exist.
        """
        config = self.config
        path, field = config.initial_weights_file, "init" if config.init else config.weights_field
        if path and not os.path.exists(path):
            raise UserError(f"config.{field}={path}: no such file; see {config.benchmark}/README.md")
