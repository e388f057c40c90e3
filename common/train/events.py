"""Defines the events that the loop yields, which timetotrain/run/mllog.py turns into log lines. TensorFlow-free.

Times are seconds since 1970; those of steps and evaluations are taken inside the running block.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from common.config.clock import Block

# How the reasons begin with which a run ends that nothing interrupted.
NO_TARGET = "no quality target was set"
MISSED = "the target was not reached"
NOT_FINITE = ("loss is", "gradients are not finite")  # A run that diverged.


@dataclasses.dataclass(frozen=True)
class RunStarted:
    time: float
    step: int


@dataclasses.dataclass(frozen=True)
class BlockStarted:
    time: float
    block: Block


@dataclasses.dataclass(frozen=True)
class Progress:
    """Step `step` of `block` is done; shown to a person, not logged. `evaluating` is true after the last step.

    `loss` is that of a step just done; nan before the first.
    """

    time: float
    step: int
    block: Block
    evaluating: bool = False
    loss: float = math.nan


@dataclasses.dataclass(frozen=True)
class Trained:
    """The training part of a block: loss and end time of each of its steps.

    `scale` has "loss_scale" and "skipped_updates" after the block where the loss scale is dynamic, else nothing.
    """

    block: Block
    losses: Sequence[float]
    times: Sequence[float]
    scale: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class EvalRan:
    """The network has processed the held-out data, from `start` to `stop`; the result may come later."""

    block: Block
    start: float
    stop: float


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """The quality after `block`; the run knows it at `time`, perhaps while a later block trains."""

    block: Block
    time: float
    value: Any
    reached: bool
    details: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class BlockStopped:
    time: float
    block: Block


@dataclasses.dataclass(frozen=True)
class RunStopped:
    """The end of a run.

    `status` is "success" when a finished evaluation met the target, "complete" when a run without a target was trained
    to its end, else "aborted"; the last two have a `reason`.
    """

    time: float
    status: str
    step: int
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class ReplicasChanged:
    """A process was lost: from `step` on, which the last checkpoint holds, the run has `count` replicas."""

    time: float
    count: int
    step: int


Event = (
    RunStarted
    | BlockStarted
    | Progress
    | Trained
    | EvalRan
    | Evaluated
    | BlockStopped
    | RunStopped
    | ReplicasChanged
)
