"""The loop of a run: starts the clock; in each evaluation interval trains, evaluates, judges and saves; stops.

Calls of the compiled programs run in a worker thread. The main thread polls them for progress and signals, and emits
events to the listeners (listener.py), which write the log, save checkpoints and compare the replicas.
"""

import concurrent.futures
import contextlib
import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from common.config.run_length import Interval
from common.train import divergence, events
from common.train.block import Result
from common.train.evaluation_pool import POLL_SECONDS, Evaluation, Evaluator
from common.train.events import RunStopped
from common.train.listener import Listener
from common.train.programs import Programs
from common.train.timing import now


class Loop:
    """Trains a task until an evaluation meets its target or the steps are over.

    Usage: `Programs.compile()`, then `run()` once. A signal handler or another thread may call `stop(reason)`.
    """

    def __init__(self, programs: Programs, listeners: Iterable[Listener] = ()):
        self.programs, self._listeners = programs, tuple(listeners)
        self._evaluator = Evaluator(programs.task, programs.replicas.main)
        self._worker = concurrent.futures.ThreadPoolExecutor(1)
        self._stop: tuple[str, float] | None = None  # Why this process must end the run, and since when.
        self._success: RunStopped | None = None  # Once this process knows an evaluation that met the target.

    def stop(self, reason: str) -> None:
        """Ends the run: after the running step or calls, or after the running batch of an evaluation.

        The first reason counts.
        """
        self._stop = self._stop or (reason, now())

    @property
    def pending(self) -> list[Evaluation]:
        """Evaluations whose results are not known yet, which a checkpoint must hold; only process 0 has any."""
        return self._evaluator.pending

    @property
    def step(self) -> int:
        """The number of trained steps; it may lag behind during a call."""
        return int(self.programs.state.step)

    def run(self, pending: Sequence[Evaluation] = ()) -> None:
        """Trains from `state.step` on; the last event is RunStopped, unless an exception ends the run.

        Args:
          pending: evaluations whose results were not known when a checkpoint was saved.
        """
        programs, start = self.programs, self.step
        programs.check_start()
        started = now()
        programs.agreement.meet()  # No process touches the data before the first process has read its clock.
        self._emit(events.RunStarted(started, start))
        programs.task.check_data()
        train, held_out = programs.train_input(start), programs.eval_input()
        intervals = programs.run_length.intervals(start, evaluated=int(programs.state.evaluated) == start)
        with self._evaluator, self._worker:
            for unfinished in pending:
                self._evaluator.submit(unfinished)
            for listener in self._listeners:
                listener.on_start(self)
            for interval in intervals:
                self._emit(events.BlockStarted(now(), interval))
                result, verdict = self._train_and_evaluate(interval, train, held_out)
                verdict = verdict or self._judge(interval, result)
                if verdict is None:
                    for listener in self._listeners:
                        listener.on_interval_end(interval)
                    verdict = self._verdict()  # A signal may have come meanwhile.
                if verdict:
                    break
            else:
                verdict = self._verdict(finished=True)
            for listener in self._listeners:
                listener.on_verdict(verdict)  # The last comparison of the replicas must confirm it.
            self._emit(verdict)

    def _train_and_evaluate(
        self, interval: Interval, train: Any, held_out: Any
    ) -> tuple[Result, RunStopped | None]:
        """Trains an interval, with pauses where listeners want them; the last call also evaluates."""
        run_length, losses, times, evaluation = self.programs.run_length, [], [], iter(held_out)
        while True:
            step, last, pause = self.step, interval.end_step, math.inf
            if step < last:
                pause = min((x.next_pause(step, last) for x in self._listeners), default=math.inf)
            eval_steps = run_length.eval_steps if last < pause else 0
            result = self._call(interval, train, evaluation, min(last, pause) - step, eval_steps)
            losses += result.losses.tolist()
            times += result.times.tolist()
            verdict = self._verdict(losses)
            evaluated = result.complete and eval_steps
            if evaluated and verdict and verdict.sound and verdict.status != "success":
                verdict = None  # `_judge` says it again, once the evaluation counts.
            if verdict or evaluated:
                break
            for listener in self._listeners:
                listener.on_pause(self.step, requested=not result.complete)
            if not result.complete:
                evaluation = iter(held_out)
        if verdict is None or verdict.status != "success":
            self._emit(events.Trained(interval, losses, times))
        return result, verdict

    def _judge(self, interval: Interval, result: Result) -> RunStopped | None:
        """Takes an evaluation's outputs; a worker may compute the quality while the next interval trains."""
        programs, last = self.programs, interval.end_step == self.programs.run_length.train_steps
        self._emit(events.EvalRan(interval, result.eval_start, result.eval_stop))
        self._evaluator.submit(Evaluation(interval, result.sums, result.arrays))
        if last:
            programs.agreement.wait(self._evaluator.wait, lambda: self._stop is not None)
        self._collect()
        stopped = now()
        self._emit(events.BlockStopped(stopped, interval))
        if self._success:  # The log's lines are in the order of their times.
            self._success = dataclasses.replace(self._success, time=max(stopped, self._success.time))
        return self._verdict(finished=last)

    def _call(
        self, interval: Interval, train: Any, evaluation: Any, train_steps: int, eval_steps: int
    ) -> Result:
        """Runs `train_steps` training steps and an evaluation of `eval_steps` batches, and follows their progress.

        They end early for a reason to stop, for an earlier evaluation that met the target, or for a listener's pause.
        """
        block, last_step, ended = self.programs.block, -1, False
        if self._stop:  # Before the worker thread looks, so that no step runs.
            block.stop()
        with contextlib.ExitStack() as around:
            for listener in self._listeners:
                around.enter_context(listener.around_call(self.step, train_steps))
            future = self._worker.submit(self.programs.call, train, evaluation, train_steps, eval_steps)
            try:
                while not ended:
                    ended = future.done()  # So that the last look comes after the last step.
                    step, loss = block.progress()
                    trained = step >= interval.end_step
                    if step != last_step:
                        last_step = step
                        self._emit(events.Progress(now(), step, interval, trained, loss))
                    pauses = [x.on_poll(step, not trained) for x in self._listeners]
                    self._collect()
                    if self._stop or self._success or any(pauses):
                        block.stop()
                    concurrent.futures.wait([future], timeout=POLL_SECONDS)
            except BaseException:  # Of a listener, which ends the run.
                block.stop()
                raise
        if not self._stop:
            block.allow()
        return future.result()

    def _collect(self) -> None:
        """Emits the evaluations that have finished, up to one that met the target."""
        if self._success:
            return
        for evaluated in self._evaluator.finished():
            # Set only once the result is known: a run that ends earlier repeats the evaluation when it resumes.
            self.programs.state.evaluated.assign(evaluated.interval.end_step)
            self._emit(evaluated)
            if evaluated.reached:
                self._success = RunStopped(evaluated.time, "success", evaluated.interval.end_step)
                return

    def _verdict(self, losses: Sequence[float] = (), finished: bool = False) -> RunStopped | None:
        """Says whether the run ends here and why, alike in all processes. Nothing else decides it.

        Args:
          losses: of the steps since the interval began.
          finished: whether all steps are trained, and all evaluations known.
        """
        programs, step = self.programs, self.step
        decision = programs.agreement.decide(bool(self._success), *(self._stop or ("", 0.0)))
        if decision.success:  # One process knows the evaluation; the others learn of it here.
            return self._success or RunStopped(now(), "success", step)
        if losses and not math.isfinite(losses[-1]):
            cause = next(filter(None, (x.diagnose(step) for x in self._listeners)), "")
            return RunStopped(now(), "aborted", step, divergence.reason(losses[-1], step, cause), sound=False)
        if decision.reason:
            status = "complete" if decision.reason.startswith(events.SATURATED) else "aborted"
            return RunStopped(now(), status, step, decision.reason)
        if not finished:
            return None
        steps = programs.run_length.train_steps
        if programs.config.logged_target is None:
            return RunStopped(now(), "complete", step, f"{events.NO_TARGET}; all {steps} steps were trained")
        return RunStopped(now(), "aborted", step, f"{events.MISSED} in {steps} steps")

    def _emit(self, event: events.Event) -> None:
        for listener in self._listeners:
            listener.on_event(event)
