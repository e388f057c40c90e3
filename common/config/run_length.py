"""Converts between examples, steps, epochs and evaluation intervals, and rounds them. TensorFlow-free.

An *evaluation interval* is the training between two evaluations plus the evaluation that ends it: a log's *block*.
"""

from __future__ import annotations

import dataclasses
import fractions
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

from common.errors import UserError


@dataclasses.dataclass(frozen=True)
class Interval:
    """Training steps [first_step, first_step + num_steps) and the evaluation after them.

    Epochs count from 1, as in the logs: the interval trains epochs first_epoch .. last_epoch.
    """

    index: int
    first_step: int
    num_steps: int
    first_epoch: int
    last_epoch: int

    @property
    def epoch_count(self) -> int:
        return self.last_epoch - self.first_epoch + 1

    @property
    def end_step(self) -> int:
        return self.first_step + self.num_steps


@dataclasses.dataclass(frozen=True)
class RunLength:
    """Lengths of a run in steps and epochs, derived from its configuration.

    Attributes:
      first_evaluations: (steps, epochs) trained before each of the first evaluations; later ones are evenly spaced.
    """

    num_examples: int
    global_batch_size: int
    train_steps: int
    steps_per_block: int
    epochs_per_block: float
    first_evaluations: tuple[tuple[int, float], ...]
    num_eval_examples: int
    eval_batch_size: int
    rounding: str

    @classmethod
    def of(cls, config: Any) -> RunLength:
        """Returns the lengths of a configuration's run.

        Raises UserError if there are no training or evaluation examples, or the run is shorter than one step.
        """
        if config.num_train_examples < 1 or config.num_eval_examples < 1:
            raise UserError(
                f"config.num_train_examples={config.num_train_examples}, num_eval_examples={config.num_eval_examples}: "
                "both must be at least 1"
            )

        def steps(epochs: float) -> int:
            rounded = math.floor if config.steps_per_epoch_rounding == "floor" else math.ceil
            return rounded(exact(epochs) * config.examples_per_epoch / config.global_batch_size)

        per_block = config.steps_per_block or max(1, steps(config.epochs_per_block))
        train_steps = config.train_steps or steps(config.train_epochs)
        if train_steps < 1:
            raise UserError(f"config.train_epochs={config.train_epochs}: less than one step; raise it")
        return cls(
            num_examples=config.examples_per_epoch,
            global_batch_size=config.global_batch_size,
            train_steps=train_steps,
            steps_per_block=per_block,
            epochs_per_block=config.epochs_per_block,
            first_evaluations=_first_evaluations(config, steps, per_block),
            num_eval_examples=config.examples_per_evaluation,
            eval_batch_size=config.eval_batch_size,
            rounding=config.steps_per_epoch_rounding,
        )

    @property
    def steps_per_epoch(self) -> float:
        """Exact steps per epoch: examples / batch, not rounded."""
        return self.num_examples / self.global_batch_size

    @property
    def whole_steps_per_epoch(self) -> int:
        """`steps_per_epoch` rounded as the configuration says, at least 1."""
        rounded = math.floor if self.rounding == "floor" else math.ceil
        return max(1, rounded(fractions.Fraction(self.num_examples, self.global_batch_size)))

    @property
    def eval_steps(self) -> int:
        """Number of batches per evaluation; the last one is padded."""
        return -(-self.num_eval_examples // self.eval_batch_size)

    def epoch_number(self, step: int) -> int:
        """Number of epochs that `step` steps complete, rounded to the nearest."""
        return round(fractions.Fraction(step * self.global_batch_size, self.num_examples))

    def intervals(self, start_step: int = 0, evaluated: bool = True) -> Iterator[Interval]:
        """Yields the remaining intervals of a run after `start_step` steps; the first may be a part of one.

        `evaluated` says whether the evaluation after those steps is done. If it is not, and those steps end an
        interval, that interval comes first, with 0 steps.
        """
        first, index, previous_epoch = 0, 0, 0
        for planned, epochs in self._evaluations():
            if first >= self.train_steps:
                return
            end = min(planned, self.train_steps)
            if end <= first:  # `eval_epochs` lists epochs less than a step apart.
                continue
            # A whole interval counts as its configured epochs, although its steps are rounded: 79 steps of 65,536
            # images are 4.04 epochs.
            last_epoch = round(epochs) if end == planned else self.epoch_number(end)
            # Logged epochs must increase, so every interval counts at least one epoch, even one shorter than half.
            last_epoch = max(last_epoch, previous_epoch + 1)
            if end > start_step or (end == start_step and not evaluated):
                begin = max(first, start_step)
                yield Interval(index, begin, end - begin, previous_epoch + 1, last_epoch)
            first, index, previous_epoch = end, index + 1, last_epoch

    def _evaluations(self) -> Iterator[tuple[int, float]]:
        """Yields (steps, epochs) trained before each evaluation, endlessly."""
        yield from self.first_evaluations
        steps, epochs = self.first_evaluations[-1]
        for number in itertools.count(1):
            yield steps + number * self.steps_per_block, epochs + number * self.epochs_per_block


def _first_evaluations(
    config: Any, steps: Callable[[float], int], per_block: int
) -> tuple[tuple[int, float], ...]:
    """Returns (steps, epochs) before each evaluation in `eval_epochs`; without these, before the first one."""
    if not config.eval_epochs:
        return ((per_block, config.epochs_per_block),)
    every = exact(config.epochs_per_block) if config.steps_per_block else 0
    return tuple(
        (round(exact(epoch) / every * per_block) if every else steps(epoch), epoch)
        for epoch in config.eval_epochs
    )


def exact(value: float) -> fractions.Fraction:
    """Returns the simple fraction that a configured number means: 1/10 for 0.1, 16/3 for 5.333333333333333."""
    return fractions.Fraction(value).limit_denominator(1 << 20)
