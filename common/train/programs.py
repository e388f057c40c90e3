"""Makes and compiles a run's programs, and calls them without a run around them."""

import zlib
from collections.abc import Callable
from itertools import filterfalse
from typing import Any

import tensorflow as tf

from common.config.run_length import RunLength
from common.data import pipeline
from common.distributed.agreement import Agreement
from common.distributed.fully_sharded import is_sharded
from common.distributed.replicas.base import Replicas, Shard
from common.distributed.spatial.sharing import shared_input
from common.layers.precision import precision
from common.train.batch_shapes import in_turn
from common.train.block import Result, batch_size
from common.train.compilation import plan
from common.train.fused_block import FusedBlock
from common.train.host_block import HostBlock
from common.train.state import State
from common.train.step_timing import HostTiming, StepTiming
from common.train.task import Task


class Programs:
    """A task's state and its compiled steps on a backend; `Loop` (loop.py) runs them to the target.

    Attributes:
      task, config, replicas, run_length, state: of the run.
      compiled: what XLA compiles.
      block: the steps.
      timing: measures the steps.
      agreement: of the run's processes.
    """

    def __init__(self, task: Task, replicas: Replicas):
        self.task, self.config, self.replicas = task, task.config, replicas
        self.run_length = RunLength.of(self.config)
        self.state = State(task, replicas, precision(self.config.precision))
        self.compiled = plan(self.config, replicas, self.state.model)
        block, timing = (HostBlock, HostTiming) if replicas.drives_from_host else (FusedBlock, StepTiming)
        self.timing, self.agreement = timing(replicas.num_processes > 1), Agreement(replicas)
        self.block = block(task, self.state, self.run_length, self.compiled, self.timing, self.agreement)

    def compile(self) -> None:
        """Traces and compiles every program on synthetic data, then restores every variable as it was."""
        variables = self.state.variables()
        untouched = [v for v in variables if self.replicas.untouched(v)]
        initial = {v.ref() for v in untouched}
        others = [v for v in variables if v.ref() not in initial]
        before = self.state.snapshot(others)
        steps = [max(1, len(shapes)) for shapes in (self.task.batch_shapes, self.task.eval_batch_shapes)]
        self.call(self.synthetic(True), self.synthetic(False), *steps)
        self.state.restore(before, others)
        self.replicas.renew(untouched)
        self.block.forget()

    def check_start(self) -> None:
        """Raises UserError in every process unless all start from the same step with the same weights."""
        if self.agreement.alone:
            return
        digest = 0
        for variable in filterfalse(is_sharded, self.state.model.trainable_variables):  # Parts differ.
            digest = zlib.crc32(self.replicas.local_results(variable)[0].numpy().tobytes(), digest)
        self.agreement.same(
            {"the first step": str(int(self.state.step)), "the weights' digest": str(digest)},
            "give all the same seed, and the same --checkpoint_dir in a folder that every host sees",
        )

    def synthetic(self, training: bool) -> Any:
        """Returns an iterator over batches of noise, for `call`."""
        task = self.task
        make = task.synthetic_input if training else task.synthetic_eval_input
        shapes = task.batch_shapes if training else task.eval_batch_shapes

        def dataset(_: Shard) -> tf.data.Dataset:
            noise = make(self.batch_size(training))
            return in_turn(noise, self.replicas) if shapes else noise

        batches = self.replicas.dataset(lambda shard: pipeline.untuned(dataset(shard)))
        return iter(batches)

    def dataset(self, make: Callable[[Shard], tf.data.Dataset]) -> Any:
        """As `Replicas.dataset`; the replicas of a group that partitions its images get the same batches."""
        shared = shared_input(make, self.config.partitions, self.replicas)
        return self.replicas.dataset(lambda shard: pipeline.untuned(shared(shard)))

    def train_input(self, start: int) -> Any:
        """Returns an iterator over the training batches from step `start` on, for `call`."""
        make = self.task.train_input
        return iter(self.dataset(lambda shard: make(shard, self.batch_size(True), start)))

    def eval_input(self) -> Any:
        """Returns the evaluation's dataset, which keeps its cache; each evaluation iterates over it anew."""
        make = self.task.eval_input
        return self.dataset(lambda shard: make(shard, self.batch_size(False)))

    def batch_size(self, training: bool) -> int:
        """Returns the number of examples in a replica's batch."""
        return batch_size(self.config, training)

    def call(self, train: Any, evaluation: Any, num_steps: int, eval_steps: int) -> Result:
        """As `TrainingBlock.__call__`."""
        self.timing.begin()
        return self.block(train, evaluation, num_steps, eval_steps)
