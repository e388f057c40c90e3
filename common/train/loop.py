"""Runs blocks of training steps with an evaluation each (block.py), and yields their events.

A block runs in a worker thread. The main thread polls the step counter for progress and signals. It ends a long block
with the block's `stop` (`TrainingBlock.stop` says when), and goes on in the block after a checkpoint between two steps.
"""

import concurrent.futures
import dataclasses
import math
from collections.abc import Callable, Generator, Iterator
from typing import Any

from common.config.clock import Block
from common.distributed.replicas.base import Replicas
from common.train import divergence, events
from common.train.agreement import Decision
from common.train.block import Result
from common.train.evaluation_pool import POLL_SECONDS, Evaluation, Evaluator
from common.train.guard import Guard
from common.train.programs import Programs
from common.train.task import Task
from common.train.timing import now


class Loop(Programs):
    """Trains a task until an evaluation meets its target or the clock runs out.

    Usage: `compile()`, then iterate over `run()`. Call `stop(reason)` from a signal handler or another thread. Probe
    (probe.py) runs single steps and evaluations.

    Attributes:
      reading_alone: whether the only process of the run reads the data before its first step: nothing would be lost.
      save_seconds: seconds between two checkpoints within a block; 0: none within a block.
      guard: compares the replicas. All are set before `run`, alike in all processes.
    """

    def __init__(self, task: Task, replicas: Replicas):
        super().__init__(task, replicas)
        self._stop_reason, self._stop_time = "", 0.0
        self._evaluator: Evaluator | None = None
        self._begins_with: list[Evaluation] = []
        self._saved_at = 0.0
        self.reading_alone = False
        self.save_seconds = 0.0
        self.guard = Guard(self)

    def stop(self, reason: str, at: float | None = None) -> None:
        """Ends the run: after the running step or calls, or after the running batch of an evaluation.

        The first reason counts. `at`: seconds since 1970, now by default.
        """
        if not self._stop_reason:
            self._stop_time = now() if at is None else at
            self._stop_reason = reason

    @property
    def pending(self) -> list[Evaluation]:
        """Evaluations whose results are not known yet; only process 0 has any."""
        return self._begins_with if self._evaluator is None else self._evaluator.pending

    def begin_with(self, pending: list[Evaluation]) -> None:
        """Lets `run` begin with the results of evaluations that were pending when a checkpoint was saved."""
        self._begins_with = pending

    def run(self, save: Callable[[int], None] | None = None) -> Iterator[events.Event]:
        """Trains from `state.step` on.

        Args:
          save: called with the step between blocks, when the run is stopped, and every `save_seconds` between two
            steps. It must save `pending` too, so that a resumed run misses no evaluation.

        Yields:
          Events in the order of a log; the last one is RunStopped, unless an exception ends the run.
        """
        start = int(self.state.step)
        self._agreement.check_start(start, self.state.model.trainable_variables)
        eval_input = self.task.eval_input
        started = now()
        # No process touches the data before the first process has read its clock.
        self._agreement.meet()
        yield events.RunStarted(started, start)
        self.reading_alone = self.replicas.num_processes == 1
        self.task.check_data()
        self.reading_alone = False
        train = self.train_input(start)
        # All evaluations share one dataset, which keeps its cache; each evaluation begins a new iteration.
        held_out = self.dataset(lambda shard: eval_input(shard, self.batch_size(False)))
        with (
            Evaluator(self.task, self.replicas.main) as evaluator,
            concurrent.futures.ThreadPoolExecutor(1) as thread,
        ):
            self._evaluator = evaluator
            for evaluation in self._begins_with:
                evaluator.submit(evaluation)
            self._saved_at = now()
            self.guard.begin()
            for block in self.clock.blocks(start, evaluated=int(self.state.evaluated) == start):
                yield events.BlockStarted(now(), block)
                success, results = yield from self._train(block, train, held_out, thread, save)
                if success:
                    yield success
                    return
                if (yield from self._after(block, Result.joined(results), save)):
                    return
        yield self._trained_to_the_end()

    def _train(
        self,
        block: Block,
        train: Any,
        held_out: Any,
        thread: concurrent.futures.Executor,
        save: Callable[[int], None] | None,
    ) -> Generator[events.Event, None, tuple[events.RunStopped | None, list[Result]]]:
        """Trains a block and evaluates, in parts: between them a checkpoint is saved or replicas are compared.

        Yields progress, and earlier evaluations as they finish. Returns the end of the run if an evaluation met the
        target; the parts' results.
        """
        evaluation, results = iter(held_out), []
        while True:
            done = int(self.state.step)
            steps = self.guard.until_check(done, block.end_step - done)
            last = done + steps == block.end_step
            self._timing.begin()
            if self._stop_reason:  # Before the worker thread looks, so that no step runs.
                self._block.stop()
            future = thread.submit(self.call_recorded, train, evaluation, steps, last)
            success = yield from self._watch(future, block, save is not None)
            results.append(future.result())
            decision, step = self._decide(success), int(self.state.step)
            if decision.success:
                return success or self._success(), results
            losses = results[-1].losses
            if decision.reason or (losses.size and not math.isfinite(losses[-1])):
                return None, results
            if not results[-1].complete:  # Process 0 stopped it, to save a checkpoint.
                self._block.stop(False)
                self._save(save, step)
                evaluation = iter(held_out)
            elif last:
                return None, results
            else:
                self.guard.check(step)

    def _save(self, save: Callable[[int], None] | None, step: int) -> None:
        """Saves a checkpoint, unless the replicas differ."""
        self.guard.check(step)
        if save:
            save(step)
        self._saved_at = now()

    def _watch(
        self, future: concurrent.futures.Future, block: Block, saves: bool
    ) -> Generator[events.Event, None, events.RunStopped | None]:
        """Yields progress, and earlier evaluations as they finish, until the block's part is done.

        Stops the part when the run must stop, when an earlier evaluation met the target, or, if the run `saves`, when a
        checkpoint is due in the middle of the block. Returns the end of the run if an evaluation met the target, with
        the time when that became known.
        """
        seen, success = -1, None
        saves = saves and self.replicas.main and self.save_seconds > 0
        try:
            while not future.done():
                due = saves and seen < block.end_step and now() - self._saved_at >= self.save_seconds
                if self._stop_reason or success or due:
                    self._block.stop()
                concurrent.futures.wait([future], timeout=POLL_SECONDS)
                step, loss = self._block.progress()
                self._timing.tell(step)
                if step != seen:
                    seen = step
                    evaluating = step >= block.end_step
                    yield events.Progress(now(), step, block, evaluating=evaluating, loss=loss)
                if not success:
                    success = yield from self._known()
        except BaseException:
            # The consumer ended the iteration over the events early, so the block must stop.
            self._block.stop()
            raise
        return success

    def _after(
        self, block: Block, result: Result, save: Callable[[int], None] | None
    ) -> Generator[events.Event, None, bool]:
        """Reports, evaluates and saves after a block; returns whether it has yielded the end of the run."""
        scale = self.state.loss_scale
        counts = {**scale.report(), **self.state.update.report()}
        yield events.Trained(block, result.losses.tolist(), result.times.tolist(), counts)
        step = int(self.state.step)
        reason = scale.lost()
        if result.losses.size and not math.isfinite(result.losses[-1]):
            reason = divergence.reason(self, result.losses[-1], step)
        if reason:  # No checkpoint, because the weights are spoilt or no longer change.
            yield events.RunStopped(now(), "aborted", step, reason)
            return True
        success = None
        if result.complete:
            yield events.EvalRan(block, result.eval_start, result.eval_stop)
            self._evaluator.submit(Evaluation(block, result.sums, result.arrays))
            if block.end_step == self.clock.train_steps:
                self._agreement.wait(self._evaluator.wait, lambda: self._stop_reason)
            success = yield from self._known()
            yield events.BlockStopped(now(), block)
        decision = self._decide(success)
        due = (block.index + 1) % self.config.checkpoint_blocks == 0
        if save and not decision.success and (decision.reason or due):
            self._save(save, step)
            decision = self._decide(None)
        if decision.success:
            yield dataclasses.replace(success or self._success(), time=now())
            # Save only after the report, so that a failed save cannot change the result.
            if save:  # These weights met the target, or an earlier block's did.
                self._save(save, step)
        elif decision.reason:
            status = "complete" if decision.reason.startswith(events.SATURATED) else "aborted"
            yield events.RunStopped(now(), status, step, decision.reason)
        return bool(decision.success or decision.reason)

    def _decide(self, success: events.RunStopped | None) -> Decision:
        return self._agreement.decide(bool(success), self._stop_reason, self._stop_time)

    def _trained_to_the_end(self) -> events.RunStopped:
        """Returns the end of a run whose last step is done: complete without a target, otherwise missed."""
        steps, step = self.clock.train_steps, int(self.state.step)
        if self.config.logged_target is None:
            reason = f"{events.NO_TARGET}; all {steps} steps were trained"
            return events.RunStopped(now(), "complete", step, reason)
        return events.RunStopped(now(), "aborted", step, f"{events.MISSED} in {steps} steps")

    def _success(self) -> events.RunStopped:
        """Returns the end of the run in a process that learns about the success from another process."""
        return events.RunStopped(now(), "success", int(self.state.step))

    def _known(self) -> Generator[events.Event, None, events.RunStopped | None]:
        """Yields the finished evaluations; returns the end of the run if one met the target."""
        for evaluated in self._evaluator.finished():
            # Set only once the result is known: a run that ends earlier repeats the evaluation when it resumes.
            self.state.evaluated.assign(evaluated.block.end_step)
            yield evaluated
            if evaluated.reached:
                return events.RunStopped(evaluated.time, "success", evaluated.block.end_step)
        return None
