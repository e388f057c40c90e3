"""Runs single steps and evaluations of a loop, without a run around them: for benchmarks, examples, one evaluation."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from common.distributed.replicas.base import Shard
from common.train.loop import Loop
from common.train.step import make_finish_eval, make_prepare_eval


class Probe:
    """Steps, times, evaluations and looks at the weights of a loop."""

    def __init__(self, loop: Loop):
        self._loop = loop
        self._look: Any = None  # Traced at the first request.
        self._to_averages, self._from_averages = make_prepare_eval(loop.state), make_finish_eval(loop.state)

    def one_step(self) -> tuple[float, float, float]:
        """Returns loss, seconds and this process's processor seconds of one training step on synthetic data.

        A first step, which compiles, does not count.
        """
        loss, began, used = 0.0, 0.0, 0.0
        for _ in range(2):
            began, used = time.perf_counter(), time.process_time()
            result = self._loop.call(self._loop.synthetic(True), self._loop.synthetic(False), 1, 0)
            loss = float(result.losses[0])
        return loss, time.perf_counter() - began, time.process_time() - used

    def evaluate(self) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
        """Returns sums and arrays of one evaluation with the current weights, without a training step."""
        held_out = self._loop.dataset(
            lambda shard: self._loop.task.eval_input(shard, self._loop.batch_size(False))
        )
        result = self._loop.call(self._loop.synthetic(True), iter(held_out), 0, self._loop.clock.eval_steps)
        return result.sums, result.arrays

    def first_eval_batches(self, examples: int) -> Iterator[Any]:
        """Yields the first evaluation batches, with at least `examples` examples; for a single replica."""
        shard, size = Shard(), self._loop.batch_size(False)
        yield from self._loop.task.eval_input(shard, size).take(-(-examples // size))

    def look(self, batch: Any) -> Mapping[str, np.ndarray]:
        """Returns `Task.look` for a batch with the weights that an evaluation uses, as numpy; for a single replica."""
        if self._look is None:
            look, model = self._loop.task.look, self._loop.state.model
            self._look = tf.function(lambda batch: look(model, batch), autograph=False)
        with self._averages():
            self._loop.replicas.refresh()
            return {name: value.numpy() for name, value in self._look(batch).items()}

    @contextlib.contextmanager
    def _averages(self) -> Iterator[None]:
        """Puts the averages of the weights in their place meanwhile, if the optimizer averages weights."""
        if not self._loop.state.averages_weights:
            yield
            return
        self._loop.replicas.run(self._to_averages)
        try:
            yield
        finally:
            self._loop.replicas.run(self._from_averages)
