"""Runs single steps and evaluations, without a run around them: for benchmarks, examples, one evaluation."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from common.distributed.replicas.base import Shard
from common.train.programs import Programs


class Probe:
    """Steps, times, evaluations and looks at the weights."""

    def __init__(self, programs: Programs):
        self._programs = programs
        self._look: Any = None  # Traced at the first request.

    def one_step(self) -> tuple[float, float, float]:
        """Returns loss, seconds and this process's processor seconds of one training step on synthetic data.

        A first step, which compiles, does not count.
        """
        loss, began, used = 0.0, 0.0, 0.0
        for _ in range(2):
            began, used = time.perf_counter(), time.process_time()
            result = self._programs.call(
                self._programs.synthetic(True), self._programs.synthetic(False), 1, 0
            )
            loss = float(result.losses[0])
        return loss, time.perf_counter() - began, time.process_time() - used

    def evaluate(self) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
        """Returns sums and arrays of one evaluation with the current weights, without a training step."""
        held_out = self._programs.eval_input()
        result = self._programs.call(
            self._programs.synthetic(True), iter(held_out), 0, self._programs.clock.eval_steps
        )
        return result.sums, result.arrays

    def first_eval_batches(self, examples: int) -> Iterator[Any]:
        """Yields the first evaluation batches, with at least `examples` examples; for a single replica."""
        shard, size = Shard(), self._programs.batch_size(False)
        yield from self._programs.task.eval_input(shard, size).take(-(-examples // size))

    def look(self, batch: Any) -> Mapping[str, np.ndarray]:
        """Returns `Task.look` for a batch with the weights that an evaluation uses, as numpy; for a single replica."""
        if self._look is None:
            look, model = self._programs.task.look, self._programs.state.model
            self._look = tf.function(lambda batch: look(model, batch), autograph=False)
        self._programs.replicas.refresh()
        return {name: value.numpy() for name, value in self._look(batch).items()}
