"""Runs single steps and evaluations, without a run around them: for benchmarks and one evaluation."""

import time
from collections.abc import Mapping

import numpy as np

from common.train.programs import Programs


class Probe:
    """Steps, times, and evaluations with the weights."""

    def __init__(self, programs: Programs):
        self._programs = programs

    def one_step(self) -> tuple[float, float, float]:
        """Returns loss, seconds and this process's processor seconds of one training step on synthetic data.

        A first step, which compiles, does not count.
        """
        programs, loss, began, used = self._programs, 0.0, 0.0, 0.0
        for _ in range(2):
            began, used = time.perf_counter(), time.process_time()
            result = programs.call(programs.synthetic(True), programs.synthetic(False), 1, 0)
            loss = float(result.losses[0])
        return loss, time.perf_counter() - began, time.process_time() - used

    def evaluate(self) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
        """Returns sums and arrays of one evaluation with the current weights, without a training step."""
        programs, held_out = self._programs, iter(self._programs.eval_input())
        result = programs.call(programs.synthetic(True), held_out, 0, programs.run_length.eval_steps)
        return result.sums, result.arrays
