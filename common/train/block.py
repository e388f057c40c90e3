"""Defines a block: training steps up to an evaluation. `fused_block.py` and `host_block.py` run it."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from common.config.schema import RunConfig


@dataclasses.dataclass(frozen=True)
class Result:
    """A call's outputs as numpy, for the steps that ran; `complete`: all steps and all of the evaluation ran."""

    complete: bool
    losses: np.ndarray
    times: np.ndarray
    eval_start: float
    eval_stop: float
    sums: Mapping[str, np.ndarray]
    arrays: Mapping[str, np.ndarray]


def batch_size(config: RunConfig, training: bool) -> int:
    """Returns the number of examples in a replica's batch."""
    whole = config.global_batch_size if training else config.eval_batch_size
    return whole // config.num_groups


class TrainingBlock(abc.ABC):
    """Blocks of a task's training steps, each followed by an evaluation; `Loop` calls nothing else.

    tests/common/train/test_block_contract.py holds every implementation to it.
    """

    @abc.abstractmethod
    def __call__(self, train: Any, evaluation: Any, num_steps: int, eval_steps: int) -> Result:
        """Trains `num_steps`, then evaluates `eval_steps` batches, each from an iterator over a `Replicas.dataset`."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends the running block and all later ones at the next step, or after the running calls; from any thread.

        An evaluation ends at its next batch, and does not count.
        """

    @abc.abstractmethod
    def allow(self) -> None:
        """Lets blocks run again after `stop`."""

    @abc.abstractmethod
    def progress(self) -> tuple[int, float]:
        """Returns the number and the loss of the last finished step; another thread calls it."""

    @abc.abstractmethod
    def forget(self) -> None:
        """Drops the last loss, which is nan then, as if no step had run."""
