"""The fused train-and-eval loop: one call per block trains, evaluates and returns only sums (section 2 of the TPU-v3
paper, "distribute evaluation computation"); around it, a generator of events.

A block runs in a worker thread. Its loop condition reads a stop variable and the finiteness of the loss, so the main
thread, which polls the step counter for progress and signals, can end a long block at the next step.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import multiprocessing
import time
from typing import Any, Callable, Iterator, Mapping

import numpy as np
import tensorflow as tf

from common import events
from common.clock import Block, Clock
from common.errors import UserError
from common.precision import precision as make_precision
from common.replicas.base import Replicas
from common.step import State, compiles, make_eval_step, make_prepare_eval, make_train_step
from common.task import Quality, Task

POLL_SECONDS = 0.05


@dataclasses.dataclass(frozen=True)
class Result:
    """What a block's call brought back, as numpy: only the steps that ran."""

    losses: np.ndarray
    times: np.ndarray
    eval_start: float
    eval_stop: float
    sums: Mapping[str, np.ndarray]
    arrays: Mapping[str, np.ndarray]


class Loop:
    """Trains a task until an evaluation meets its target or the clock runs out.

    Usage: `compile()`, then iterate over `run()`. Call `stop(reason)` from a signal handler or another thread.
    """

    def __init__(self, task: Task, replicas: Replicas):
        config = task.config
        self.task, self.config, self.replicas = task, config, replicas
        self.clock = Clock.of(config)
        policy = make_precision(config.precision, config.loss_scale)
        self.state = State(task, replicas, policy)
        compiled = compiles(config, replicas)
        self._train_step = replicas.compile(make_train_step(task, self.state, policy, self.clock), compiled)
        self._eval_step = replicas.compile(make_eval_step(task, self.state), compiled)
        self._prepare_eval = make_prepare_eval(self.state)
        self._block = tf.function(self._fused_block, autograph=False)
        self._stop_reason = ""

    def stop(self, reason: str) -> None:
        """Ends the run at the next step; the first reason counts."""
        self._stop_reason = self._stop_reason or reason

    # -- the device's side ---------------------------------------------------------------------------------------

    def _fused_block(self, train: Any, evaluation: Any, num_steps: tf.Tensor, eval_steps: tf.Tensor) -> dict:
        """`num_steps` training steps, then `eval_steps` evaluation steps unless the training was cut short."""
        losses = tf.TensorArray(tf.float64, num_steps, element_shape=[])
        times = tf.TensorArray(tf.float64, num_steps, element_shape=[])

        def going(i: tf.Tensor, finite: tf.Tensor, *_: Any) -> tf.Tensor:
            return (i < num_steps) & finite & ~self.state.stop.read_value()

        def body(i: tf.Tensor, finite: tf.Tensor, losses: tf.TensorArray, times: tf.TensorArray) -> tuple:
            # A dataset iterator inside a loop starves the loop of nothing: it prefetches on threads of its own.
            step = self.state.step.read_value()
            loss = self.replicas.sum(self.replicas.run(self._train_step, (next(train), step)))
            with tf.control_dependencies([loss]):
                self.state.step.assign_add(1)
                now = tf.timestamp()
            return i + 1, tf.math.is_finite(loss), losses.write(i, tf.cast(loss, tf.float64)), times.write(i, now)

        done, finite, losses, times = tf.while_loop(
            going, body, (tf.constant(0), tf.constant(True), losses, times), parallel_iterations=1
        )
        complete = (done == num_steps) & finite & ~self.state.stop.read_value()
        with tf.control_dependencies([done]):
            eval_start = tf.timestamp()
            sums, arrays = self._fused_eval(evaluation, tf.where(complete, eval_steps, 0))
        with tf.control_dependencies(tf.nest.flatten((sums, arrays))):
            eval_stop = tf.timestamp()
        return {
            "done": done,
            "losses": losses.stack(),
            "times": times.stack(),
            "eval_start": eval_start,
            "eval_stop": eval_stop,
            "sums": sums,
            "arrays": arrays,
        }

    def _fused_eval(self, evaluation: Any, eval_steps: tf.Tensor) -> tuple[dict, dict]:
        """Sums and concatenated arrays over `eval_steps` batches."""
        with tf.control_dependencies(tf.nest.flatten(self.replicas.local_results(self.replicas.run(self._prepare_eval)))):
            zero_sums, array_specs = self._eval_outputs(evaluation)
        arrays = {
            name: tf.TensorArray(spec.dtype, eval_steps, infer_shape=False, element_shape=[None, *spec.shape[1:]])
            for name, spec in array_specs.items()
        }

        def going(i: tf.Tensor, *_: Any) -> tf.Tensor:
            return (i < eval_steps) & ~self.state.stop.read_value()

        def body(i: tf.Tensor, sums: dict, arrays: dict) -> tuple:
            step_sums, step_arrays = self.replicas.run(self._eval_step, (next(evaluation),))
            sums = tf.nest.map_structure(tf.add, sums, self.replicas.sum(step_sums))
            gathered = self.replicas.gather(step_arrays)
            return i + 1, sums, {name: arrays[name].write(i, gathered[name]) for name in arrays}

        _, sums, arrays = tf.while_loop(going, body, (tf.constant(0), zero_sums, arrays), parallel_iterations=1)
        return sums, {name: array.concat() for name, array in arrays.items()}

    def _eval_outputs(self, evaluation: Any) -> tuple[dict, dict]:
        """Zero sums and the specs of the arrays, from tracing an evaluation step without running it."""

        @tf.function(autograph=False)
        def one_step(iterator: Any) -> tuple[dict, dict]:
            sums, arrays = self.replicas.run(self._eval_step, (next(iterator),))
            return self.replicas.sum(sums), self.replicas.gather(arrays)

        sums, arrays = one_step.get_concrete_function(evaluation).structured_outputs
        return {name: tf.zeros(s.shape, s.dtype) for name, s in sums.items()}, arrays

    # -- the host's side -----------------------------------------------------------------------------------------

    def compile(self) -> None:
        """Traces and compiles every program on synthetic data, then restores every variable as it was."""
        before = self.state.snapshot()
        self._call(self._synthetic(True), self._synthetic(False), 1, 1)
        self.state.restore(before)

    def one_step(self) -> tuple[float, float]:
        """Loss and seconds of one training step on synthetic data, after a first one that compiles."""
        seconds, loss = [], 0.0
        for _ in range(2):
            began = time.perf_counter()
            loss = float(self._call(self._synthetic(True), self._synthetic(False), 1, 0).losses[0])
            seconds.append(time.perf_counter() - began)
        return loss, seconds[-1]

    def _synthetic(self, training: bool) -> Any:
        return iter(self.replicas.dataset(lambda _: self.task.synthetic_input(self._batch_size(training))))

    def _batch_size(self, training: bool) -> int:
        whole = self.config.global_batch_size if training else self.config.eval_batch_size
        return whole // self.replicas.num_replicas

    def _call(self, train: Any, evaluation: Any, num_steps: int, eval_steps: int) -> Result:
        raw = self._block(train, evaluation, tf.constant(num_steps), tf.constant(eval_steps))
        done = int(raw["done"])
        return Result(
            losses=raw["losses"].numpy()[:done],
            times=raw["times"].numpy()[:done],
            eval_start=float(raw["eval_start"]),
            eval_stop=float(raw["eval_stop"]),
            sums={name: value.numpy() for name, value in raw["sums"].items()},
            arrays={name: value.numpy() for name, value in raw["arrays"].items()},
        )

    def run(self, save: Callable[[int], None] | None = None) -> Iterator[events.Event]:
        """Trains from `state.step` on. `save(step)` is called between blocks and when the run is stopped.

        Yields:
          Events in the order of a log; the last one is RunStopped, unless an exception ends the run.
        """
        start = int(self.state.step)
        yield events.RunStarted(time.time(), start)
        train = iter(
            self.replicas.dataset(lambda shard: self.task.train_input(shard, self._batch_size(True), start))
        )
        # One data set for all evaluations, so that what it caches stays; every evaluation iterates over it anew.
        held_out = self.replicas.dataset(lambda shard: self.task.eval_input(shard, self._batch_size(False)))
        with _Evaluator(self.task) as evaluator, concurrent.futures.ThreadPoolExecutor(1) as thread:
            for block in self.clock.blocks(start):
                yield events.BlockStarted(time.time(), block)
                future = thread.submit(self._call, train, iter(held_out), block.num_steps, self.clock.eval_steps)
                yield from self._watch(future, block)
                result = future.result()
                yield events.Trained(block, result.losses.tolist(), result.times.tolist())
                reason = self._failure(block, result)
                if reason:
                    if save and not reason.startswith("loss"):
                        save(int(self.state.step))
                    yield events.RunStopped(time.time(), "aborted", int(self.state.step), reason)
                    return
                evaluator.submit(block, result)
                reached = False
                for evaluated in evaluator.finished(wait=block.end_step == self.clock.train_steps):
                    yield evaluated
                    reached = reached or evaluated.reached
                yield events.BlockStopped(time.time(), block)
                if reached:
                    yield events.RunStopped(time.time(), "success", int(self.state.step))
                    return
                if save and (block.index + 1) % self.config.checkpoint_blocks == 0:
                    save(int(self.state.step))
        reason = f"the target was not reached in {self.clock.train_steps} steps"
        yield events.RunStopped(time.time(), "aborted", int(self.state.step), reason)

    def _watch(self, future: concurrent.futures.Future, block: Block) -> Iterator[events.Progress]:
        """Yields progress until the block is done; tells it to stop when the run is to stop."""
        seen = -1
        try:
            while not future.done():
                if self._stop_reason:
                    self.state.stop.assign(True)
                concurrent.futures.wait([future], timeout=POLL_SECONDS)
                step = int(self.state.step)
                if step != seen:
                    seen = step
                    yield events.Progress(time.time(), step, block, evaluating=step >= block.end_step)
        except BaseException:
            # The person who iterates gave up: do not leave the block running behind their back.
            self.state.stop.assign(True)
            raise

    def _failure(self, block: Block, result: Result) -> str:
        if self._stop_reason:
            return self._stop_reason
        if result.losses.size and not math.isfinite(result.losses[-1]):
            step = block.first_step + len(result.losses)
            return f"loss is {result.losses[-1]} at step {step}; lower the learning rate or lengthen the warmup"
        return ""


class _Evaluator:
    """Turns outputs into qualities: at once, or in a worker process while the next block trains."""

    def __init__(self, task: Task):
        self._task = task
        self._pending: list[tuple[Block, Result, concurrent.futures.Future]] = []
        self._pool: concurrent.futures.Executor | None = None
        if task.evaluate_in_worker:
            # Not forked: a forked TensorFlow deadlocks.
            context = multiprocessing.get_context("spawn")
            self._pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=context)

    def __enter__(self) -> _Evaluator:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def submit(self, block: Block, result: Result) -> None:
        if self._pool:
            future = self._pool.submit(_timed_quality, self._task.quality, result.sums, result.arrays)
        else:
            future = concurrent.futures.Future()
            future.set_result(_timed_quality(self._task.quality, result.sums, result.arrays))
        self._pending.append((block, result, future))

    def finished(self, wait: bool) -> Iterator[events.Evaluated]:
        """Finished evaluations in order of their blocks; all of them when `wait`."""
        while self._pending and (wait or self._pending[0][2].done()):
            block, result, future = self._pending.pop(0)
            known, quality = future.result()
            yield events.Evaluated(
                block, result.eval_start, result.eval_stop, known, quality.value, quality.reached, quality.details
            )


def _timed_quality(quality: Callable[..., Quality], sums: Mapping, arrays: Mapping) -> tuple[float, Quality]:
    try:
        result = quality(sums, arrays)
    except ValueError as error:
        raise UserError(f"evaluation: {error}") from error
    return time.time(), result
