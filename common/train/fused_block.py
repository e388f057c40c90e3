"""A block as one call into TensorFlow: it trains, evaluates, and returns only sums.

This is "distribute evaluation computation" in section 2 of the pods paper (docs/sources.md). The loop condition reads
a stop variable and whether the loss is finite. If there are several processes, each step sums the stop variable over
them, together with its loss, so that all end the block after the same step.
"""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from common.config.run_length import RunLength
from common.distributed.agreement import Agreement
from common.distributed.spatial.sharing import counted_once
from common.train import gradients
from common.train.batch_shapes import summed
from common.train.block import Result, TrainingBlock, batch_size
from common.train.compilation import Compiled, Plan
from common.train.state import State
from common.train.step import make_eval_step, make_prepare_eval, make_train_step
from common.train.step_timing import StepTiming
from common.train.task import Task
from common.train.timing import mapped, now


class FusedBlock(TrainingBlock):
    """A block with the loop around the steps in TensorFlow: it ends at the next step."""

    def __init__(
        self, task: Task, state: State, length: RunLength, how: Plan, timing: StepTiming, agreement: Agreement
    ):
        """Makes the steps.

        Args:
          how: which parts XLA compiles.
          timing: measures the steps.
        """
        self.config, self.state, self.replicas = task.config, state, state.replicas
        self._timing, self._agreement = timing, agreement
        # The main thread writes `_stop` and the running block reads it; for `_last_loss` it is the other way round.
        self._stop = tf.Variable(False, trainable=False, name="stop")
        with tf.device("CPU:0"):
            self._last_loss = tf.Variable(math.nan, dtype=tf.float64, trainable=False, name="last_loss")
        replicas = self.replicas
        self._summed = summed(replicas, task.batch_shapes, batch_size(self.config, True))
        between, whole = how.compiled is Compiled.BETWEEN, how.compiled is Compiled.STEP
        if between:
            state.update.compile()
        # One function up to the exchange and one from it, because `timing` measures between them.
        gradients_of = timing.of_gradients(gradients.make(task, state.model, replicas, between, how.segments))
        train_step = make_train_step(task, state, length, gradients_of)
        self._train_step = replicas.compile(train_step, whole)
        self._evaluated = summed(
            replicas,
            task.eval_batch_shapes,
            batch_size(self.config, False),
            lambda outputs: (replicas.sum(outputs[0]), self._gather(outputs[1])),
        )
        self._eval_step = replicas.compile(make_eval_step(task, state), how.compiled is not Compiled.NOTHING)
        self._prepare_eval = make_prepare_eval(state)
        self._block = tf.function(self._fused_block, autograph=False)

    def __call__(self, train: Any, evaluation: Any, num_steps: int, eval_steps: int) -> Result:
        began = now()
        raw = self._block(train, evaluation, tf.constant(num_steps), tf.constant(eval_steps))
        done, ended = int(raw["done"]), now()
        # Inside, only the wall clock can be read.
        readings = np.concatenate([raw["times"].numpy()[:done], [raw["eval_start"], raw["eval_stop"]]])
        *times, eval_start, eval_stop = mapped(readings, ended - float(tf.timestamp()), began, ended)
        return Result(
            complete=bool(raw["complete"]),
            losses=raw["losses"].numpy()[:done],
            times=np.array(times, np.float64),
            eval_start=eval_start,
            eval_stop=eval_stop,
            sums={name: value.numpy() for name, value in raw["sums"].items()},
            arrays={name: value.numpy() for name, value in raw["arrays"].items()},
        )

    def stop(self) -> None:
        self._stop.assign(True)

    def allow(self) -> None:
        self._stop.assign(False)

    def progress(self) -> tuple[int, float]:
        return int(self.state.step), float(self._last_loss)

    def forget(self) -> None:
        self._last_loss.assign(math.nan)

    def _fused_block(self, train: Any, evaluation: Any, num_steps: tf.Tensor, eval_steps: tf.Tensor) -> dict:
        """Runs `num_steps` training steps, then `eval_steps` evaluation steps unless training was cut short."""
        losses = tf.TensorArray(tf.float64, num_steps, element_shape=[])
        times = tf.TensorArray(tf.float64, num_steps, element_shape=[])

        def going(i: tf.Tensor, finite: tf.Tensor, stop: tf.Tensor, *_: Any) -> tf.Tensor:
            return (i < num_steps) & finite & ~self._stopping(stop)

        def body(
            i: tf.Tensor, finite: tf.Tensor, stop: tf.Tensor, losses: tf.TensorArray, times: tf.TensorArray
        ) -> tuple:
            step = self.state.step.read_value()
            batch = self._timing.of_batch(lambda: next(train))
            loss, stop = self._train_once(batch, step)
            wide = tf.cast(loss, tf.float64)
            with tf.control_dependencies([loss]):
                self._last_loss.assign(wide)
                self.state.step.assign_add(1)
                now = tf.timestamp()
            self._timing.step_ended(now)
            return i + 1, tf.math.is_finite(loss), stop, losses.write(i, wide), times.write(i, now)

        variables = tf.constant(0), tf.constant(True), self._stop_of_all(), losses, times
        done, finite, stop, losses, times = tf.while_loop(going, body, variables, parallel_iterations=1)
        complete = (done == num_steps) & finite & ~self._stopping(stop)
        with tf.control_dependencies([done]):
            eval_start = tf.timestamp()
            done_evals, sums, arrays = self._fused_eval(evaluation, tf.where(complete, eval_steps, 0), stop)
        with tf.control_dependencies(tf.nest.flatten((sums, arrays))):
            eval_stop = tf.timestamp()
        return {
            "done": done,
            "complete": complete & (done_evals == eval_steps),
            "losses": losses.stack(),
            "times": times.stack(),
            "eval_start": eval_start,
            "eval_stop": eval_stop,
            "sums": sums,
            "arrays": arrays,
        }

    def _train_once(self, batch: Any, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Runs one step; returns (loss, whether any process must stop), equal in all processes."""
        if self._agreement.alone:
            return self._summed(self._train_step, (batch, step)), tf.constant(False)

        def train_step(batch: Any, step: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
            loss = self._train_step(batch, step)
            return tf.stack([loss, tf.cast(stop, loss.dtype)])

        arguments = batch, step, self._stop.read_value()
        loss, stops = tf.unstack(self._summed(train_step, arguments))
        return loss, stops > 0

    def _stopping(self, stop: tf.Tensor) -> tf.Tensor:
        """Whether to stop: the processes' common `stop`, or a single process's latest stop variable."""
        return self._stop.read_value() if self._agreement.alone else stop

    def _stop_of_all(self) -> tf.Tensor:
        """Returns whether any process must stop."""
        if self._agreement.alone:
            return tf.constant(False)
        stops = self.replicas.run(lambda stop: tf.cast(stop, tf.float32), (self._stop.read_value(),))
        return self.replicas.sum(stops) > 0

    def _fused_eval(
        self, evaluation: Any, eval_steps: tf.Tensor, stop: tf.Tensor
    ) -> tuple[tf.Tensor, dict, dict]:
        """Evaluates `eval_steps` batches unless stopped; returns their number, their sums and concatenated arrays."""
        prepared = self.replicas.local_results(self.replicas.run(self._prepare_eval))
        with tf.control_dependencies(tf.nest.flatten(prepared)):
            zero_sums, array_specs = self._eval_outputs(evaluation)
        arrays = {
            name: tf.TensorArray(
                spec.dtype, eval_steps, infer_shape=False, element_shape=[None, *spec.shape[1:]]
            )
            for name, spec in array_specs.items()
        }

        def going(i: tf.Tensor, stop: tf.Tensor, *_: Any) -> tf.Tensor:
            return (i < eval_steps) & ~self._stopping(stop)

        def body(i: tf.Tensor, stop: tf.Tensor, sums: dict, arrays: dict) -> tuple:
            stop = self._stop_of_all()
            step_sums, gathered = self._evaluated(self._eval_step, (next(evaluation),))
            sums = tf.nest.map_structure(tf.add, sums, step_sums)
            return i + 1, stop, sums, {name: arrays[name].write(i, gathered[name]) for name in arrays}

        done, _, sums, arrays = tf.while_loop(
            going, body, (tf.constant(0), stop, zero_sums, arrays), parallel_iterations=1
        )
        # The arrays of a stopped evaluation are not used; missing batches could not be joined anyway.
        joined = {
            name: tf.cond(
                done == eval_steps, array.concat, lambda spec=spec: tf.zeros([0, *spec.shape[1:]], spec.dtype)
            )
            for (name, array), spec in zip(arrays.items(), array_specs.values(), strict=True)
        }
        return done, sums, joined

    def _eval_outputs(self, evaluation: Any) -> tuple[dict, dict]:
        """Traces an evaluation step without running it; returns zero sums and the specs of the arrays."""

        @tf.function(autograph=False)
        def one_step(iterator: Any) -> tuple[dict, dict]:
            return self._evaluated(self._eval_step, (next(iterator),))

        sums, arrays = one_step.get_concrete_function(evaluation).structured_outputs
        return {name: tf.zeros(s.shape, s.dtype) for name, s in sums.items()}, arrays

    def _gather(self, arrays: Any) -> dict[str, tf.Tensor]:
        """As `Replicas.gather`, for an evaluation's arrays; includes each example of a group only once."""
        return counted_once(self.replicas.gather(arrays), self.config.num_groups, self.config.partitions)
