"""A block whose loop runs in Python, for backends where each step is a program that Python starts.

One call is always running while Python reads the losses of the call before, checks whether to stop and copies the next
batches to the devices. A call is one step, or `config.steps_per_execution` steps with the loop around them in the
program. So a block ends one call late. After a non-finite loss, the extra call's steps are discarded; after a stop,
they count.
"""

import collections
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from common.config.clock import Clock
from common.config.validation import check_one_shape
from common.distributed.spatial.sharing import counted_once
from common.train.agreement import Agreement
from common.train.block import Result, TrainingBlock
from common.train.compilation import Compiled, Plan
from common.train.state import State
from common.train.step import make_eval_step, make_finish_eval, make_prepare_eval, make_train_step
from common.train.step_timing import HostTiming
from common.train.task import Shape, Task
from common.train.timing import now

# Number of calls started but not yet read, so that the devices never wait for Python.
_UNDER_WAY = 2


class Stacks:
    """Stacks of several steps' batches, from `Batches.stacks`; a block can end within a stack."""

    def __init__(self, stacks: Iterator[tuple[Any, int]], shapes: Sequence[Shape] = ()):
        """`shapes`: the shapes that a step's batch may have; empty allows any."""
        self._stacks, self._shapes = stacks, shapes
        self._stack, self._first, self._end = None, 0, 0

    def take(self, most: int) -> tuple[Any, int, int]:
        """Returns a stack and the range (first, end) of its steps to run next, at most `most` steps.

        Raises:
          OutOfRangeError: there is no stack left.
          InvalidArgumentError: its batches have another shape.
        """
        if self._first == self._end:
            self._stack, self._end = _next(self._stacks)
            _check(self._stack, self._shapes, 2)
            self._first = 0
        first = self._first
        self._first = min(first + most, self._end)
        return self._stack, first, self._first


class HostBlock(TrainingBlock):
    """A block whose loop is Python's: it ends when the calls that run have ended, one late."""

    def __init__(
        self, task: Task, state: State, clock: Clock, how: Plan, timing: HostTiming, agreement: Agreement
    ):
        """Makes the steps; arguments as in `FusedBlock`.

        Raises UserError if a call should take several steps, but the batches have several shapes.
        """
        assert how.compiled is Compiled.STEP
        self._in_call = task.config.steps_per_execution
        check_one_shape(task.config, len(task.batch_shapes))
        self.config, self.state, self.replicas = task.config, state, state.replicas
        self._timing, self._alone = timing, agreement.alone
        # State that other threads read and write; `state.step` lags behind until the block's end.
        self._stopping, self._last_loss, self._done = False, math.nan, None
        self._step, self._eval_step = make_train_step(task, state, clock), make_eval_step(task, state)
        self._prepare_eval, self._finish_eval = make_prepare_eval(state), make_finish_eval(state)
        self._shapes, self._eval_shapes = task.batch_shapes, task.eval_batch_shapes
        self._loss_dtype = tf.float64 if task.config.precision == "fp64" else tf.float32
        with self.replicas.scope():  # The devices' step number; `state.step` is the host's.
            self._count = tf.Variable(0, dtype=state.step.dtype, trainable=False, name="devices_step")

    def __call__(self, train: Any, evaluation: Any, num_steps: int, eval_steps: int) -> Result:
        first = self.state.step.numpy()
        for copy in self.replicas.local_results(self._count):
            copy.assign(first)
        self._done = int(first)
        try:
            losses, times, stopped = self._train(train, num_steps)
        finally:
            self.state.step.assign(self._done)
            self._done = None
        complete = len(losses) == num_steps and not stopped and all(map(math.isfinite, losses[-1:]))
        eval_start = now()
        self.replicas.run(self._prepare_eval)
        done, sums, arrays = self._evaluate(evaluation, eval_steps if complete else 0)
        if self._finish_eval:
            self.replicas.run(self._finish_eval)
        return Result(
            complete=complete and done == eval_steps,
            losses=np.array(losses, np.float64),
            times=np.array(times, np.float64),
            eval_start=eval_start,
            eval_stop=now(),
            sums=sums,
            arrays=arrays,
        )

    def batches(self, dataset: Any) -> Any:
        return iter(dataset) if self._in_call == 1 else Stacks(dataset.stacks(self._in_call), self._shapes)

    def stop(self, wanted: bool = True) -> None:
        self._stopping = wanted

    def progress(self) -> tuple[int, float]:
        done = self._done
        return int(self.state.step) if done is None else done, self._last_loss

    def forget(self) -> None:
        self._last_loss = math.nan

    # -- training ----------------------------------------------------------------------------------------------------

    def _train(self, batches: Any, num_steps: int) -> tuple[list[float], list[float], bool]:
        """Returns the losses of the steps that count, their end times, and whether any process must stop.

        Only a call's end time is known; its steps share the call's time evenly.
        """
        losses: list[float] = []
        times: list[float] = []
        started, under_way, before = 0, collections.deque(), now()
        stopped = self._stop_of_all()
        going = not stopped
        while going or under_way:
            if going and started < num_steps:
                under_way.append(self._start(batches, num_steps - started))
                started += under_way[-1][1]
                if len(under_way) < _UNDER_WAY and started < num_steps:
                    continue
            if not under_way:
                break
            call_losses, stops = self._read(*under_way.popleft())
            losses += call_losses
            ended = now()
            times += np.linspace(before, ended, len(call_losses) + 1)[1:].tolist()
            before = ended
            stopped = stopped or stops
            # In this order, so that a thread that sees the step also sees its loss.
            self._last_loss, self._done = call_losses[-1], self._done + len(call_losses)
            self._timing.step_ended(times[-1])
            if not math.isfinite(call_losses[-1]):
                break
            going = not stopped
        return losses, times, stopped

    def _start(self, batches: Any, most: int) -> tuple[Any, int]:
        """Starts a call of at most `most` steps; returns the arguments for `_read`."""
        if self._in_call == 1:
            batch = self._timing.of_batch(lambda: _next(batches, self._shapes))
            return self.replicas.run(self._train_once, (batch, *self._stop_flag())), 1
        stack, first, end = self._timing.of_batch(lambda: batches.take(min(most, self._in_call)))
        call = (stack, np.int32(first), np.int32(end), *self._stop_flag())
        return self.replicas.run(self._train_several, call), end - first

    def _train_several(self, stack: Any, first: tf.Tensor, end: tf.Tensor, *stop: tf.Tensor) -> tf.Tensor:
        """Inside `run`: runs the steps `first` to `end` of a stack, until a loss is not finite.

        Returns their losses over all replicas, then the number of processes that must stop.
        """

        def going(i: tf.Tensor, finite: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
            return (i < end) & finite

        def body(i: tf.Tensor, _: tf.Tensor, losses: tf.Tensor) -> tuple[tf.Tensor, ...]:
            batch = tf.nest.map_structure(lambda x: self._row(x, i), stack)
            loss = self._train_once(batch)[0]
            losses = tf.tensor_scatter_nd_update(losses, [[i - first]], [tf.cast(loss, losses.dtype)])
            return i + 1, tf.math.is_finite(loss), losses

        missing = tf.fill([self._in_call], tf.constant(math.nan, self._loss_dtype))
        _, _, losses = tf.while_loop(going, body, (first, tf.constant(True), missing), parallel_iterations=1)
        stops = [self.replicas.all_reduce(tf.cast(s, losses.dtype)) for s in stop]
        return tf.concat([losses, *(s[tf.newaxis] for s in stops)], 0)

    def _row(self, x: tf.Tensor, i: tf.Tensor) -> tf.Tensor:
        """Returns x[i]; `i` is the loop's index."""
        begin = [i, *[tf.zeros_like(i)] * (x.shape.rank - 1)]
        return tf.reshape(self.replicas.cut(x, begin, [1, *x.shape[1:]]), x.shape[1:])

    def _train_once(self, batch: Any, *stop: tf.Tensor) -> list[tf.Tensor]:
        """Inside `run`: runs a replica's step; returns [loss over all replicas, processes that must stop]."""
        loss = self._step(batch, self._count.read_value())
        with tf.control_dependencies([loss]):
            self._count.assign_add(1)
        return self.replicas.all_reduce(tf.stack([loss, *(tf.cast(s, loss.dtype) for s in stop)]))

    def _read(self, value: Any, steps: int) -> tuple[list[float], bool]:
        """Waits for a call of `steps` steps; returns its losses, up to a non-finite one, and whether to stop."""
        results = value.first().tolist()
        losses, stops = results[:steps], results[self._in_call :]
        bad = next((i for i, loss in enumerate(losses) if not math.isfinite(loss)), steps)
        return losses[: bad + 1], bool(stops[0]) if stops else self._stopping

    def _stop_flag(self) -> tuple[Any, ...]:
        """Returns the stop flag that a step adds up over the processes; nothing for a single process."""
        return () if self._alone else (np.float32(self._stopping),)

    def _stop_of_all(self) -> bool:
        """Returns whether any process must stop."""
        return self._stopping if self._alone else bool(self.replicas.agree(int(self._stopping)))

    # -- evaluating --------------------------------------------------------------------------------------------------

    def _evaluate(self, batches: Any, eval_steps: int) -> tuple[int, dict, dict]:
        """Evaluates unless stopped; returns the number of batches, their sums and their concatenated arrays."""
        sums: dict[str, np.ndarray] = {}
        arrays: dict[str, list[np.ndarray]] = {}
        started, done, under_way = 0, 0, collections.deque()
        while done < eval_steps:
            if started < eval_steps and len(under_way) < _UNDER_WAY:
                if self._stop_of_all():
                    break
                under_way.append(self.replicas.run(self._evaluate_once, (_next(batches, self._eval_shapes),)))
                started += 1
                continue
            step_sums, step_arrays = under_way.popleft()
            for name, value in step_sums.items():
                sums[name] = sums[name] + value.first() if name in sums else value.first()
            for name, value in self._gathered(step_arrays).items():
                arrays.setdefault(name, []).append(value)
            done += 1
        if done < eval_steps:  # The outputs of a stopped evaluation are not used.
            return done, {}, {}
        return done, sums, {name: np.concatenate(parts) for name, parts in arrays.items()}

    def _evaluate_once(self, batch: Any) -> tuple[dict, dict]:
        """Inside `run`: returns sums over all replicas, and arrays: this replica's or, with several processes, all."""
        sums, arrays = self._eval_step(batch)
        sums = {name: self.replicas.all_reduce(value) for name, value in sums.items()}
        if not self._alone:
            arrays = {name: self.replicas.all_gather(value) for name, value in arrays.items()}
        return sums, arrays

    def _gathered(self, arrays: Any) -> dict[str, np.ndarray]:
        """Waits for all replicas' arrays; includes each example of a group only once."""
        joined = {
            name: np.concatenate(value.local()) if self._alone else value.first()
            for name, value in arrays.items()
        }
        counted = counted_once(joined, self.config.num_groups, self.config.partitions)
        return {name: np.asarray(value) for name, value in counted.items()}


def _next(batches: Iterator[Any], shapes: Sequence[Shape] = ()) -> Any:
    """Returns the next batch; it must have one of `shapes`, if any: those are compiled before the clock starts.

    Raises:
      OutOfRangeError: there is no batch left.
      InvalidArgumentError: the batch has another shape.
    """
    batch = next(batches, None)
    if batch is None:
        raise tf.errors.OutOfRangeError(None, None, "End of sequence")
    _check(batch, shapes, 1)
    return batch


def _check(batch: Any, shapes: Sequence[Shape], leading: int) -> None:
    """Raises InvalidArgumentError unless a replica's batch, after `leading` axes (steps, examples), is of `shapes`."""
    if not shapes:
        return
    actual = {name: batch[name].kind[0][leading:] for name in shapes[0]}
    if not any(actual == {n: tuple(size) for n, size in shape.items()} for shape in shapes):
        raise tf.errors.InvalidArgumentError(
            None, None, f"A batch of shape {actual} is not compatible with expected shapes {list(shapes)}"
        )
