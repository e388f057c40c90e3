"""Makes and compiles a run's programs, and calls them without a run around them."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from common.config.clock import Clock
from common.data import pipeline
from common.distributed.replicas.base import Replicas, Shard
from common.distributed.spatial.sharing import shared_input
from common.layers.precision import precision
from common.train.agreement import Agreement
from common.train.batch_shapes import in_turn
from common.train.block import Result, batch_size
from common.train.compilation import plan
from common.train.fused_block import FusedBlock
from common.train.host_block import HostBlock
from common.train.profile import Profile
from common.train.state import State
from common.train.step_timing import HostTiming, StepTiming
from common.train.task import Task


class Programs:
    """A task's state and its blocks on a backend; `Loop` runs them to the target.

    Attributes:
      task, config, replicas, clock, state: of the run.
      compiled: what XLA compiles.
      profile: the steps to record, alike in all processes; None: none.
    """

    def __init__(self, task: Task, replicas: Replicas):
        self.task, self.config, self.replicas = task, task.config, replicas
        self.clock = Clock.of(self.config)
        self.state = State(task, replicas, precision(self.config.precision))
        self.profile: Profile | None = None
        self.compiled = plan(self.config, replicas, self.state.model)
        block, timing = (HostBlock, HostTiming) if replicas.drives_from_host else (FusedBlock, StepTiming)
        self._timing, self._agreement = timing(replicas.num_processes > 1), Agreement(replicas)
        self._block = block(task, self.state, self.clock, self.compiled, self._timing, self._agreement)

    def compile(self) -> None:
        """Traces and compiles every program on synthetic data, then restores every variable as it was."""
        before = self.state.snapshot()
        steps = [max(1, len(shapes)) for shapes in (self.task.batch_shapes, self.task.eval_batch_shapes)]
        self.call(self.synthetic(True), self.synthetic(False), *steps)
        self.state.restore(before)
        self._block.forget()

    def synthetic(self, training: bool) -> Any:
        """Returns an iterator over batches of noise, for `call`."""
        task = self.task
        make = task.synthetic_input if training else task.synthetic_eval_input
        shapes = task.batch_shapes if training else task.eval_batch_shapes

        def dataset(_: Shard) -> tf.data.Dataset:
            noise = make(self.batch_size(training))
            return in_turn(noise, self.replicas) if shapes else noise

        batches = self.replicas.dataset(lambda shard: pipeline.untuned(dataset(shard)))
        return self._block.batches(batches) if training else iter(batches)

    def dataset(self, make: Callable[[Shard], tf.data.Dataset]) -> Any:
        """As `Replicas.dataset`; the replicas of a group that partitions its images get the same batches."""
        shared = shared_input(make, self.config.partitions, self.replicas)
        return self.replicas.dataset(lambda shard: pipeline.untuned(shared(shard)))

    def train_input(self, start: int) -> Any:
        """Returns an iterator over the training batches from step `start` on, for `call`."""
        make = self.task.train_input
        return self._block.batches(self.dataset(lambda shard: make(shard, self.batch_size(True), start)))

    def batch_size(self, training: bool) -> int:
        """Returns the number of examples in a replica's batch."""
        return batch_size(self.config, training)

    def call(self, train: Any, evaluation: Any, num_steps: int, eval_steps: int) -> Result:
        """As `TrainingBlock.__call__`."""
        return self._block(train, evaluation, num_steps, eval_steps)

    def call_recorded(self, train: Any, evaluation: Any, steps: int, evaluates: bool) -> Result:
        """Trains `steps`, then evaluates if asked; the steps that `profile` records are calls of their own."""
        eval_steps = self.clock.eval_steps if evaluates else 0
        if self.profile is None:
            return self.call(train, evaluation, steps, eval_steps)
        done, results = int(self.state.step), []
        parts = self.profile.parts(done, steps)
        for i, part in enumerate(parts):
            with self.profile.around(done, part):
                results.append(self.call(train, evaluation, part, eval_steps if i == len(parts) - 1 else 0))
            if self.profile.records(done, part):
                self.profile.steps += len(results[-1].losses)
            if not results[-1].complete:
                break
            done += part
        return Result.joined(results)
