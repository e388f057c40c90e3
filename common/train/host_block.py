"""A block whose loop runs in Python, for backends where each step is a program that Python starts.

One call is always running while Python reads the losses of the call before, checks whether to stop and copies the next
batches to the devices. So a block ends one step late. After a non-finite loss, the extra step is discarded; after a
stop, it counts.
"""

import collections
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from common.config.run_length import RunLength
from common.distributed.agreement import Agreement
from common.distributed.spatial.sharing import counted_once
from common.train.block import Result, TrainingBlock
from common.train.compilation import Compiled, Plan
from common.train.state import State
from common.train.step import make_eval_step, make_prepare_eval, make_train_step
from common.train.step_timing import HostTiming
from common.train.task import Shape, Task
from common.train.timing import now

# Number of steps started but not yet read, so that the devices never wait for Python.
_UNDER_WAY = 2


class HostBlock(TrainingBlock):
    """A block whose loop is Python's: it ends when the calls that run have ended, one late."""

    def __init__(
        self, task: Task, state: State, length: RunLength, how: Plan, timing: HostTiming, agreement: Agreement
    ):
        """Makes the steps; arguments as in `FusedBlock`."""
        assert how.compiled is Compiled.STEP
        self.config, self.state, self.replicas = task.config, state, state.replicas
        self._timing, self._alone = timing, agreement.alone
        # State that other threads read and write; `state.step` lags behind until the block's end.
        self._stopping, self._last_loss, self._done = False, math.nan, None
        self._step, self._eval_step = make_train_step(task, state, length), make_eval_step(task, state)
        self._prepare_eval = make_prepare_eval(state)
        self._shapes, self._eval_shapes = task.batch_shapes, task.eval_batch_shapes
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
        return Result(
            complete=complete and done == eval_steps,
            losses=np.array(losses, np.float64),
            times=np.array(times, np.float64),
            eval_start=eval_start,
            eval_stop=now(),
            sums=sums,
            arrays=arrays,
        )

    def stop(self) -> None:
        self._stopping = True

    def allow(self) -> None:
        self._stopping = False

    def progress(self) -> tuple[int, float]:
        done = self._done
        return int(self.state.step) if done is None else done, self._last_loss

    def forget(self) -> None:
        self._last_loss = math.nan

    # -- training ----------------------------------------------------------------------------------------------------

    def _train(self, batches: Any, num_steps: int) -> tuple[list[float], list[float], bool]:
        """Returns the losses of the steps that count, their end times, and whether any process must stop."""
        losses: list[float] = []
        times: list[float] = []
        started, under_way = 0, collections.deque()
        stopped = self._stop_of_all()
        going = not stopped
        while going or under_way:
            if going and started < num_steps:
                under_way.append(self._start(batches))
                started += 1
                if len(under_way) < _UNDER_WAY and started < num_steps:
                    continue
            if not under_way:
                break
            loss, stops = self._read(under_way.popleft())
            losses.append(loss)
            times.append(now())
            stopped = stopped or stops
            # In this order, so that a thread that sees the step also sees its loss.
            self._last_loss, self._done = loss, self._done + 1
            self._timing.step_ended(times[-1])
            if not math.isfinite(loss):
                break
            going = not stopped
        return losses, times, stopped

    def _start(self, batches: Any) -> Any:
        """Starts a step; returns the argument for `_read`."""
        batch = self._timing.of_batch(lambda: _next(batches, self._shapes))
        return self.replicas.run(self._train_once, (batch, *self._stop_flag()))

    def _train_once(self, batch: Any, *stop: tf.Tensor) -> list[tf.Tensor]:
        """Inside `run`: runs a replica's step; returns [loss over all replicas, processes that must stop]."""
        loss = self._step(batch, self._count.read_value())
        with tf.control_dependencies([loss]):
            self._count.assign_add(1)
        return self.replicas.all_reduce(tf.stack([loss, *(tf.cast(s, loss.dtype) for s in stop)]))

    def _read(self, value: Any) -> tuple[float, bool]:
        """Waits for a step; returns its loss and whether to stop."""
        loss, *stops = value.first().tolist()
        return loss, bool(stops[0]) if stops else self._stopping

    def _stop_flag(self) -> tuple[Any, ...]:
        """Returns the stop flag that a step adds up over the processes; nothing for a single process."""
        return () if self._alone else (np.float32(self._stopping),)

    def _stop_of_all(self) -> bool:
        """Returns whether any process must stop."""
        return self._stopping if self._alone else bool(self.replicas.all_reduce_max(int(self._stopping)))

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
    if not shapes:
        return batch
    actual = {name: batch[name].kind[0][1:] for name in shapes[0]}  # Without the axis of examples.
    if not any(actual == {n: tuple(size) for n, size in shape.items()} for shape in shapes):
        raise tf.errors.InvalidArgumentError(
            None, None, f"A batch of shape {actual} is not compatible with expected shapes {list(shapes)}"
        )
    return batch
