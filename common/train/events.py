"""Defines the events that the loop emits; timetotrain/run/mllog.py turns them into log lines. TensorFlow-free.

Times are seconds since 1970. Steps' and evaluations' times are taken inside the running block.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from common.config.run_length import Interval

# The beginnings of the reasons why an uninterrupted run ends.
NO_TARGET = "no quality target was set"
MISSED = "the target was not reached"
SATURATED = "nothing was gained"
NOT_FINITE = "loss is"  # The run diverged.


@dataclasses.dataclass(frozen=True)
class RunStarted:
    time: float
    step: int


@dataclasses.dataclass(frozen=True)
class BlockStarted:
    time: float
    interval: Interval


@dataclasses.dataclass(frozen=True)
class Progress:
    """Step `step` of `interval` is done; shown to people, not logged. `evaluating` is true after the last step.

    `loss` is the last finished step's loss; nan before a call's first step.
    """

    time: float
    step: int
    interval: Interval
    evaluating: bool = False
    loss: float = math.nan


@dataclasses.dataclass(frozen=True)
class Trained:
    """The training part of a block: each step's loss and end time."""

    interval: Interval
    losses: Sequence[float]
    times: Sequence[float]


@dataclasses.dataclass(frozen=True)
class EvalRan:
    """The network has processed the held-out data, from `start` to `stop`; the result may come later."""

    interval: Interval
    start: float
    stop: float


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """The quality after `interval`; the run learns it at `time`, perhaps while a later block trains."""

    interval: Interval
    time: float
    value: Any
    reached: bool
    details: Mapping[str, float]
    by_class: Mapping[str, float] = dataclasses.field(default_factory=dict)
    confused: Sequence[tuple[str, str, int]] = ()


@dataclasses.dataclass(frozen=True)
class BlockStopped:
    time: float
    interval: Interval


@dataclasses.dataclass(frozen=True)
class RunStopped:
    """The end of a run.

    `status` is "success" if a finished evaluation met the target, "complete" if a run without a target trained to its
    end or until nothing was gained, and otherwise "aborted"; the last two have a `reason`. `sound`: whether the weights
    are worth a checkpoint.
    """

    time: float
    status: str
    step: int
    reason: str = ""
    sound: bool = True


Event = RunStarted | BlockStarted | Progress | Trained | EvalRan | Evaluated | BlockStopped | RunStopped
