"""What the processes of a run decide together, between blocks: whether it ends, and why; that they started alike."""

from __future__ import annotations

import dataclasses
import signal
import time
import zlib
from collections.abc import Callable

import tensorflow as tf

from common.distributed.replicas.base import Replicas
from common.errors import UserError

# How long one process waits for the evaluation before it asks the others again whether to go on.
WAIT_SECONDS = 0.5
# The largest of what the processes say holds.
_NOTHING, _WAIT, _REASON, _SUCCESS = range(4)
_UNKNOWN = 0
# Later than any time that a process can name.
_NEVER = 1 << 62


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

    def decide(self, success: bool, reason: str, since: float = 0.0) -> Decision:
        """Success of any process comes first, then the reason of the process that has had one for longest.

        Args:
          since: when this process was given its `reason`, in seconds since 1970. During a long step a launcher passes
            a signal on to the processes that did not receive it: not they are to be named. Between hosts this is as
            good as their clocks.
        """
        if self.alone:
            return Decision(success, reason)
        most = self._replicas.agree(_code(success, reason))
        if most == _SUCCESS:
            return Decision(success=True)
        if most == _NOTHING:
            return Decision()
        rank = self._first(round(since * 1e6) if reason else _NEVER)
        mine = _signal_number(reason) if rank == self._replicas.process_index else _UNKNOWN
        number = self._replicas.agree(mine)
        told = signal.Signals(number).name if number else "told to stop"
        return Decision(reason=f"{told} on rank {rank}")

    def _first(self, micros: int) -> int:
        """The process that gives the least; of equals the first."""
        mine = micros == -self._replicas.agree(-micros)
        return -self._replicas.agree(-self._replicas.process_index if mine else -_NEVER)

    def wait(self, finished: Callable[[Callable[[], bool]], bool], reason: Callable[[], str]) -> None:
        """Waits until `finished(given_up)` of every process, or a process has a reason to stop."""
        if self.alone:
            finished(lambda: bool(reason()))
            return
        while True:
            until = time.monotonic() + WAIT_SECONDS
            done = finished(lambda until=until: bool(reason()) or time.monotonic() > until)
            if self._replicas.agree(_code(False, reason()) or (_NOTHING if done else _WAIT)) != _WAIT:
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


def _code(success: bool, reason: str) -> int:
    return _SUCCESS if success else _REASON if reason else _NOTHING


def _signal_number(reason: str) -> int:
    return getattr(signal.Signals.__members__.get(reason), "value", _UNKNOWN)
