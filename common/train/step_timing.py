"""How long a process works by itself in each step before it needs the others: which one do they wait for?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from common.launch import heartbeat


class Pace:
    """Sums, over the steps of this process, of the seconds until its batch and until its gradients were there.

    Both count from the end of the step before, which all processes reach together. A network that communicates in its
    forward pass hides a slow computation from the second sum, for there the others wait too, but not a slow input
    from the first.
    """

    def __init__(self, enabled: bool):
        """Where `enabled` is false, as in a process alone, it does nothing."""
        self._enabled = enabled
        if enabled:
            with tf.device("CPU:0"):
                self._began = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="pace/began")
                self._input = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="pace/input")
                self._step = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="pace/step")

    def batch_arrived(self, batch: Any) -> None:
        """In the running block: this step's batch is there."""
        self._add("_input", tf.nest.flatten(batch, expand_composites=True))

    def gradients_ready(self, gradients: Sequence[tf.Tensor]) -> None:
        """In the running block: this process could now send its last gradient."""
        self._add("_step", gradients)

    def step_ended(self, now: tf.Tensor) -> None:
        """In the running block: the step is done at `now`, in all processes."""
        if self._enabled:
            self._began.assign(now)

    def _add(self, name: str, tensors: Sequence[Any]) -> None:
        if not self._enabled:
            return
        tensors = [x for x in tensors if isinstance(x, tf.Tensor)]
        with tf.control_dependencies(tensors), tf.device("CPU:0"):
            now, began = tf.timestamp(), self._began.read_value()
            # The first step of all has none before it.
            getattr(self, name).assign_add(tf.where(began > 0, now - began, 0.0))

    def begin(self) -> None:
        """Before a block: what happened since the last one is no step's time."""
        if self._enabled:
            self._began.assign(0.0)

    def tell(self, step: int) -> None:
        """Tells the launcher that `step` was done, and the sums."""
        sums = {"input": float(self._input), "step": float(self._step)} if self._enabled else None
        heartbeat.at_step(step, sums)
