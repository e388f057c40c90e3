"""How long a process works by itself in each step before it needs the others: which one do they wait for?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from common.launch.watch import heartbeat
from common.train.step import Gradients


class StepTiming:
    """Sums, over the steps of this process, of the seconds until its batch and until its gradients are there.

    It wraps what fetches a batch and what computes gradients; neither knows of it. Both sums count from the end of the
    step before, which all processes reach together. A network that communicates in its forward pass hides a slow
    computation from the second sum, for there the others wait too, but not a slow input from the first.
    """

    def __init__(self, enabled: bool):
        """Where `enabled` is false, as in a process alone, it wraps nothing."""
        self._enabled = enabled
        if enabled:
            with tf.device("CPU:0"):
                self._began = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="step_timing/began")
                self._input = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="step_timing/input")
                self._step = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="step_timing/step")

    def of_batch(self, fetch: Callable[[], Any]) -> Any:
        """In the running block: what `fetch()` gives, this step's batch."""
        batch = fetch()
        if self._enabled:
            self._add(self._input, tf.nest.flatten(batch, expand_composites=True))
        return batch

    def of_gradients(self, gradients: Gradients) -> Gradients:
        """In the running block: `gradients`, after which this process can send its last gradient."""
        if not self._enabled:
            return gradients

        def timed(batch: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
            loss, found = gradients(batch)
            self._add(self._step, found)
            return loss, found

        return timed

    def step_ended(self, now: tf.Tensor) -> None:
        """In the running block: the step is done at `now`, in all processes."""
        if self._enabled:
            self._began.assign(now)

    def _add(self, total: tf.Variable, tensors: Sequence[Any]) -> None:
        tensors = [x for x in tensors if isinstance(x, tf.Tensor)]
        with tf.control_dependencies(tensors), tf.device("CPU:0"):
            now, began = tf.timestamp(), self._began.read_value()
            # The first step of all has none before it.
            total.assign_add(tf.where(began > 0, now - began, 0.0))

    def begin(self) -> None:
        """Before a block: what happened since the last one is no step's time."""
        if self._enabled:
            self._began.assign(0.0)

    def tell(self, step: int) -> None:
        """Tells the launcher that `step` was done, and the sums."""
        sums = {"input": float(self._input), "step": float(self._step)} if self._enabled else None
        heartbeat.at_step(step, sums)
