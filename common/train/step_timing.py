"""Measures how long each process works alone in a step, so that the launcher can name the one that others wait for."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from common.distributed import heartbeat
from common.train.gradients import Gradients
from common.train.timing import now

# Where a process is in its step: it waits for its batch, it computes gradients, it waits for the sums over all.
PARTS = ("input", "step", "sum")


class StepTiming:
    """Adds up, over this process's steps, the seconds until its batch and until its gradients are ready.

    Both sums count from the end of the previous step, which all processes reach together. A network that communicates
    in its forward pass hides a slow computation from the second sum, because the other processes wait there too. A
    slow input still shows in the first sum.
    """

    def __init__(self, enabled: bool):
        """With `enabled` false, as in a run of one process, it measures nothing."""
        self._enabled = enabled
        if enabled:
            with tf.device("CPU:0"):
                self._began = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="step_timing/began")
                self._input = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="step_timing/input")
                self._step = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="step_timing/step")
                self._part = tf.Variable(0, trainable=False, name="step_timing/part")

    def of_batch(self, fetch: Callable[[], Any]) -> Any:
        """Returns `fetch()`, this step's batch, and adds the time until then; called in the running block."""
        batch = fetch()
        if self._enabled:
            self._add(self._input, tf.nest.flatten(batch, expand_composites=True), 1)
        return batch

    def of_gradients(self, gradients: Gradients) -> Gradients:
        """Wraps `gradients` to add the time until the last gradient is ready; called in the running block."""
        if not self._enabled:
            return gradients

        def timed(batch: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
            loss, values = gradients(batch)
            self._add(self._step, values, 2)
            return loss, values

        return timed

    def step_ended(self, now: tf.Tensor) -> None:
        """Marks the end of a step, common to all processes; called in the running block."""
        if self._enabled:
            self._began.assign(now)
            self._part.assign(0)

    def _add(self, total: tf.Variable, tensors: Sequence[Any], part: int) -> None:
        tensors = [x for x in tensors if isinstance(x, tf.Tensor)]
        with tf.control_dependencies(tensors), tf.device("CPU:0"):
            now, began = tf.timestamp(), self._began.read_value()
            # A block's first step has no previous step.
            total.assign_add(tf.where(began > 0, now - began, 0.0))
            self._part.assign(part)

    def begin(self) -> None:
        """Starts a block: the time since the last block belongs to no step."""
        if self._enabled:
            self._began.assign(0.0)
            self._part.assign(0)

    def record(self, step: int) -> None:
        """Sends the last finished step, the sums and the part of the current step to the launcher."""
        heartbeat.at_step(step, *((self._sums(), self._where()) if self._enabled else ()))

    def _where(self) -> str:
        return PARTS[int(self._part)]

    def _sums(self) -> dict[str, float]:
        return {"input": float(self._input), "step": float(self._step)}


class HostTiming(StepTiming):
    """As `StepTiming` for steps that Python starts: plain numbers. It does not see when gradients are ready."""

    def __init__(self, enabled: bool):
        super().__init__(False)
        self._enabled, self._started, self._waited = enabled, 0.0, 0.0
        self._fetches = False

    def of_batch(self, fetch: Callable[[], Any]) -> Any:
        self._fetches = True
        batch = fetch()
        self._fetches = False
        if self._started:
            self._waited += now() - self._started
        return batch

    def step_ended(self, now: float) -> None:
        self._started = now

    def begin(self) -> None:
        self._started = 0.0

    def _sums(self) -> dict[str, float]:
        return {"input": self._waited, "step": 0.0}

    def _where(self) -> str:
        return PARTS[0 if self._fetches else 1]
