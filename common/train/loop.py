"""Runs blocks of training steps with an evaluation each (block.py), and yields their events.

A block runs in a worker thread. The main thread polls the step counter for progress and signals. It ends a long block
with the block's `stop`: at the next step, or at the end of the running calls (config.steps_per_execution).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from common.config.clock import Block, Clock
from common.data import pipeline
from common.distributed.replicas.base import Replicas, Shard
from common.distributed.spatial.sharing import shared_input
from common.layers.precision import precision as make_precision
from common.train import events
from common.train.agreement import Agreement, Decision
from common.train.batch_shapes import in_turn
from common.train.block import FusedBlock, Result, batch_size
from common.train.compilation import plan
from common.train.evaluation_pool import POLL_SECONDS, Evaluator
from common.train.host_block import HostBlock
from common.train.profile import Profile
from common.train.step import State, make_finish_eval, make_prepare_eval
from common.train.step_timing import HostTiming, StepTiming
from common.train.task import Task


class Loop:
    """Trains a task until an evaluation meets its target or the clock runs out.

    Usage: `compile()`, then iterate over `run()`. Call `stop(reason)` from a signal handler or another thread.
    """

    def __init__(self, task: Task, replicas: Replicas):
        config = task.config
        self.task, self.config, self.replicas = task, config, replicas
        self.clock = Clock.of(config)
        policy = make_precision(config.precision)
        self.state = State(task, replicas, policy)
        self.compiled = plan(config, replicas, self.state.model)
        timing = HostTiming if replicas.drives_from_host else StepTiming
        self._timing = timing(replicas.num_processes > 1)
        self._agreement = Agreement(replicas)
        self._look: Any = None  # Traced at the first request.
        self._to_averages, self._from_averages = make_prepare_eval(self.state), make_finish_eval(self.state)
        self._stop_reason, self._stop_time = "", 0.0
        # Whether the only process of the run reads the data before its first step: nothing would be lost.
        self.reading_alone = False
        self.profile: Profile | None = None  # Set before `run`, alike in all processes.
        block = HostBlock if replicas.drives_from_host else FusedBlock
        self._block = block(task, self.state, self.clock, self.compiled, self._timing, self._agreement)

    def stop(self, reason: str, at: float | None = None) -> None:
        """Ends the run at the next step or call; the first reason counts. `at`: seconds since 1970, now by default."""
        if not self._stop_reason:
            self._stop_time = time.time() if at is None else at
            self._stop_reason = reason

    def compile(self) -> None:
        """Traces and compiles every program on synthetic data, then restores every variable as it was."""
        before = self.state.snapshot()
        steps = [max(1, len(shapes)) for shapes in (self.task.batch_shapes, self.task.eval_batch_shapes)]
        self._call(self._synthetic(True), self._synthetic(False), *steps)
        self.state.restore(before)
        self._block.forget()

    def one_step(self) -> tuple[float, float, float]:
        """Returns loss, seconds and this process's processor seconds of one training step on synthetic data.

        A first step, which compiles, does not count.
        """
        loss, began, used = 0.0, 0.0, 0.0
        for _ in range(2):
            began, used = time.perf_counter(), time.process_time()
            loss = float(self._call(self._synthetic(True), self._synthetic(False), 1, 0).losses[0])
        return loss, time.perf_counter() - began, time.process_time() - used

    def times_of(self, steps: int) -> list[float]:
        """Returns the seconds of each of `steps` training steps on synthetic data, after one that does not count."""
        result = self._call(self._synthetic(True), self._synthetic(False), steps + 1, 0)
        return np.diff(result.times).tolist()

    def evaluate(self) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
        """Returns sums and arrays of one evaluation with the current weights, without a training step."""
        held_out = self._dataset(lambda shard: self.task.eval_input(shard, self._batch_size(False)))
        result = self._call(self._synthetic(True), iter(held_out), 0, self.clock.eval_steps)
        return result.sums, result.arrays

    def first_eval_batches(self, examples: int) -> Iterator[Any]:
        """Yields the first evaluation batches, with at least `examples` examples; for a single replica."""
        shard, size = Shard(), self._batch_size(False)
        yield from self.task.eval_input(shard, size).take(-(-examples // size))

    def look(self, batch: Any) -> Mapping[str, np.ndarray]:
        """Returns `Task.look` for a batch with the weights that an evaluation uses, as numpy; for a single replica."""
        if self._look is None:
            self._look = tf.function(lambda batch: self.task.look(self.state.model, batch), autograph=False)
        with self._averages():
            self.replicas.refresh()
            return {name: value.numpy() for name, value in self._look(batch).items()}

    @contextlib.contextmanager
    def _averages(self) -> Iterator[None]:
        """Puts the averages of the weights in their place meanwhile, if the optimizer averages weights."""
        if not self.state.averages_weights:
            yield
            return
        self.replicas.run(self._to_averages)
        try:
            yield
        finally:
            self.replicas.run(self._from_averages)

    def _synthetic(self, training: bool) -> Any:
        task = self.task
        make = task.synthetic_input if training else task.synthetic_eval_input
        shapes = task.batch_shapes if training else task.eval_batch_shapes

        def dataset(_: Shard) -> tf.data.Dataset:
            batches = make(self._batch_size(training))
            return in_turn(batches, self.replicas) if shapes else batches

        found = self.replicas.dataset(lambda shard: pipeline.untuned(dataset(shard)))
        return self._block.batches(found) if training else iter(found)

    def _dataset(self, make: Callable[[Shard], tf.data.Dataset]) -> Any:
        """As `Replicas.dataset`; the replicas of a group that partitions its images get the same batches."""
        shared = shared_input(make, self.config.partitions, self.replicas)
        return self.replicas.dataset(lambda shard: pipeline.untuned(shared(shard)))

    def _batch_size(self, training: bool) -> int:
        return batch_size(self.config, training)

    def _call(self, train: Any, evaluation: Any, num_steps: int, eval_steps: int) -> Result:
        return self._block(train, evaluation, num_steps, eval_steps)

    def _train_block(self, train: Any, evaluation: Any, num_steps: int, eval_steps: int) -> Result:
        """As `_call`, but cuts a block with steps to record into parts; the last part evaluates."""
        if self.profile is None:
            return self._call(train, evaluation, num_steps, eval_steps)
        done, results = int(self.state.step), []
        parts = self.profile.parts(done, num_steps)
        for i, steps in enumerate(parts):
            with self.profile.around(done, steps):
                last = i == len(parts) - 1
                results.append(self._call(train, evaluation, steps, eval_steps if last else 0))
            if self.profile.records(done, steps):
                self.profile.steps += len(results[-1].losses)
            if not results[-1].complete:
                break
            done += steps
        joined = {name: np.concatenate([getattr(r, name) for r in results]) for name in ("losses", "times")}
        return dataclasses.replace(results[-1], **joined)

    def run(self, save: Callable[[int], None] | None = None) -> Iterator[events.Event]:
        """Trains from `state.step` on. Calls `save(step)` between blocks and when the run is stopped.

        Yields:
          Events in the order of a log; the last one is RunStopped, unless an exception ends the run.
        """
        start = int(self.state.step)
        self._agreement.check_start(start, self.state.model.trainable_variables)
        train_input, eval_input = self.task.train_input, self.task.eval_input
        started = time.time()
        # No process touches the data before the first process has read its clock.
        self._agreement.meet()
        yield events.RunStarted(started, start)
        self.reading_alone = self.replicas.num_processes == 1
        self.task.check_data()
        self.reading_alone = False
        batches = self._dataset(lambda shard: train_input(shard, self._batch_size(True), start))
        train = self._block.batches(batches)
        # All evaluations share one dataset, which keeps its cache; each evaluation begins a new iteration.
        held_out = self._dataset(lambda shard: eval_input(shard, self._batch_size(False)))
        with (
            Evaluator(self.task, self.replicas.main) as evaluator,
            concurrent.futures.ThreadPoolExecutor(1) as thread,
        ):
            for block in self.clock.blocks(start, evaluated=int(self.state.evaluated) == start):
                yield events.BlockStarted(time.time(), block)
                sizes = block.num_steps, self.clock.eval_steps
                self._timing.begin()
                if self._stop_reason:  # Before the worker thread looks, so that no step runs.
                    self._block.stop()
                future = thread.submit(self._train_block, train, iter(held_out), *sizes)
                success = yield from self._watch(future, block, evaluator)
                result = future.result()
                if self._decide(success).success:
                    yield success or self._success()
                    return
                if (yield from self._after(block, result, evaluator, save)):
                    return
        yield self._trained_to_the_end()

    def _watch(
        self, future: concurrent.futures.Future, block: Block, evaluator: Evaluator
    ) -> Generator[events.Event, None, events.RunStopped | None]:
        """Yields progress, and earlier evaluations as they finish, until the block is done.

        Stops the block when the run must stop, or when an earlier evaluation met the target.

        Returns:
          The end of the run if an evaluation met the target, with the time when that became known.
        """
        seen, success = -1, None
        try:
            while not future.done():
                if self._stop_reason or success:
                    self._block.stop()
                concurrent.futures.wait([future], timeout=POLL_SECONDS)
                step, loss = self._block.progress()
                self._timing.tell(step)
                if step != seen:
                    seen = step
                    ended = step >= block.end_step
                    yield events.Progress(time.time(), step, block, evaluating=ended, loss=loss)
                if not success:
                    success = yield from self._known(evaluator)
        except BaseException:
            # The consumer ended the iteration over the events early, so the block must stop.
            self._block.stop()
            raise
        return success

    def _after(
        self, block: Block, result: Result, evaluator: Evaluator, save: Callable[[int], None] | None
    ) -> Generator[events.Event, None, bool]:
        """Reports, evaluates and saves after a block; returns whether it has yielded the end of the run."""
        scale = self.state.loss_scale
        counts = {**scale.report(), **self.state.update.report()}
        yield events.Trained(block, result.losses.tolist(), result.times.tolist(), counts)
        step = int(self.state.step)
        reason = scale.lost()
        if result.losses.size and not math.isfinite(result.losses[-1]):
            found = f"{events.NOT_FINITE[0]} {result.losses[-1]} at step {step}"
            reason = f"{found}; lower the learning rate or lengthen the warmup"
        if reason:  # No checkpoint, because the weights are spoilt or no longer change.
            yield events.RunStopped(time.time(), "aborted", step, reason)
            return True
        success = None
        if result.complete:
            yield events.EvalRan(block, result.eval_start, result.eval_stop)
            evaluator.submit(block, result.sums, result.arrays)
            if block.end_step == self.clock.train_steps:
                self._agreement.wait(evaluator.wait, lambda: self._stop_reason)
            success = yield from self._known(evaluator)
            yield events.BlockStopped(time.time(), block)
        decision = self._decide(success)
        if save and not decision.success and (decision.reason or self._due(block)):
            # A resumed run repeats the evaluation of the checkpoint's own block, but of no earlier block.
            earlier = functools.partial(evaluator.wait, but=int(result.complete))
            known = self._agreement.wait(earlier, lambda: self._stop_reason)
            success = yield from self._known(evaluator)
            decision = self._decide(success)
            if known and not decision.success:
                save(step)
                decision = self._decide(None)
        if decision.success:
            yield dataclasses.replace(success or self._success(), time=time.time())
            # Save only after the report, so that a failed save cannot change the result.
            if save:  # These weights met the target, or an earlier block's did.
                save(step)
        elif decision.reason:
            yield events.RunStopped(time.time(), "aborted", step, decision.reason)
        return bool(decision.success or decision.reason)

    def _decide(self, success: events.RunStopped | None) -> Decision:
        return self._agreement.decide(bool(success), self._stop_reason, self._stop_time)

    def _due(self, block: Block) -> bool:
        """Whether a checkpoint follows this block."""
        return (block.index + 1) % self.config.checkpoint_blocks == 0

    def _trained_to_the_end(self) -> events.RunStopped:
        """Returns the end of a run whose last step is done: complete without a target, otherwise missed."""
        steps, step = self.clock.train_steps, int(self.state.step)
        if self.config.logged_target is None:
            reason = f"{events.NO_TARGET}; all {steps} steps were trained"
            return events.RunStopped(time.time(), "complete", step, reason)
        return events.RunStopped(time.time(), "aborted", step, f"{events.MISSED} in {steps} steps")

    def _success(self) -> events.RunStopped:
        """Returns the end of the run in a process that learns about the success from another process."""
        return events.RunStopped(time.time(), "success", int(self.state.step))

    def _known(self, evaluator: Evaluator) -> Generator[events.Event, None, events.RunStopped | None]:
        """Yields the finished evaluations; returns the end of the run if one met the target."""
        for evaluated in evaluator.finished():
            # Set only once the result is known: a run that ends earlier repeats the evaluation when it resumes.
            self.state.evaluated.assign(evaluated.block.end_step)
            yield evaluated
            if evaluated.reached:
                return events.RunStopped(evaluated.time, "success", evaluated.block.end_step)
        return None
