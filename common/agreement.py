"""What the processes of a run decide together, between blocks: whether it ends, and why; that they started alike."""

from __future__ import annotations

import dataclasses
import signal
import time
import zlib
from collections.abc import Callable

import tensorflow as tf

from common.errors import UserError
from common.replicas.base import Replicas

# How long one process waits for the evaluation before it asks the others again whether to go on.
WAIT_SECONDS = 0.5
_NOTHING, _WAIT = 0, 1
_UNKNOWN = 0


@dataclasses.dataclass(frozen=True)
class Decision:
    """`success`: the target is met. `reason`: why the run is to stop at once, or ""."""

    success: bool = False
    reason: str = ""


class Agreement:
    """Every method is called by all processes of a run alike; a process alone decides for itself."""

    def __init__(self, replicas: Replicas):
        self._replicas = replicas
        self.alone = replicas.num_processes == 1

    def decide(self, success: bool, reason: str) -> Decision:
        """Success of any process comes first, then the reason of the first process that has one, with its number."""
        if self.alone:
            return Decision(success, reason)
        most = self._replicas.agree(self._code(success, reason))
        if most == self._success:
            return Decision(success=True)
        if most == _NOTHING:
            return Decision()
        rank = self._success - 1 - most
        mine = _signal_number(reason) if rank == self._replicas.process_index else _UNKNOWN
        number = self._replicas.agree(mine)
        told = signal.Signals(number).name if number else "told to stop"
        return Decision(reason=f"{told} on rank {rank}")

    @property
    def _success(self) -> int:
        return self._replicas.num_processes + _WAIT + 1

    def _code(self, success: bool, reason: str) -> int:
        """Codes in rising order: nothing, wait, the reason of the last process, ..., of the first, success."""
        if success:
            return self._success
        return self._success - 1 - self._replicas.process_index if reason else _NOTHING

    def wait(self, finished: Callable[[Callable[[], bool]], bool], reason: Callable[[], str]) -> None:
        """Waits until `finished(given_up)` of every process, or a process has a reason to stop."""
        if self.alone:
            finished(lambda: bool(reason()))
            return
        while True:
            until = time.monotonic() + WAIT_SECONDS
            done = finished(lambda until=until: bool(reason()) or time.monotonic() > until)
            if self._replicas.agree(self._code(False, reason()) or (_NOTHING if done else _WAIT)) != _WAIT:
                return

    def check_start(self, step: int, weights: list[tf.Variable]) -> None:
        """Raises a UserError, in all processes, unless all start from the same step with the same weights."""
        if self.alone:
            return
        first, last = -self._replicas.agree(-step), self._replicas.agree(step)
        if first != last:
            raise UserError(
                f"the processes start from different steps, {first} to {last}; give all the same --checkpoint_dir, "
                "in a folder that every host sees"
            )
        digest = 0
        for variable in weights:
            digest = zlib.crc32(self._replicas.local_results(variable)[0].numpy().tobytes(), digest)
        if -self._replicas.agree(-digest) != self._replicas.agree(digest):
            raise UserError(
                f"the processes start from different weights at step {step}; give all the same seed, versions and "
                "checkpoints"
            )


def _signal_number(reason: str) -> int:
    return getattr(signal.Signals.__members__.get(reason), "value", _UNKNOWN)
