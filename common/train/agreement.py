"""Lets a run's processes agree, between blocks, whether the run ends and why; checks that they start alike."""

import dataclasses
import signal
import time
import zlib
from collections.abc import Callable

import tensorflow as tf

from common.distributed.replicas.base import Replicas
from common.errors import UserError

# How long a process waits for its evaluation before the processes exchange again whether the run goes on.
WAIT_SECONDS = 0.5
# A process's votes; the largest vote of all processes wins.
_NOTHING, _WAIT, _REASON, _SUCCESS = range(4)
_UNKNOWN = 0
# Later than the time of any signal, in microseconds since 1970.
_NEVER = 1 << 62


@dataclasses.dataclass(frozen=True)
class Decision:
    """`success`: whether the target is met. `reason`: why the run must stop at once, or ""."""

    success: bool = False
    reason: str = ""


class Agreement:
    """Agrees by exchanging integers (`Replicas.agree`), so all processes call each method in the same order.

    A run of one process exchanges nothing.
    """

    def __init__(self, replicas: Replicas):
        self._replicas = replicas
        self.alone = replicas.num_processes == 1

    def decide(self, success: bool, reason: str, since: float = 0.0) -> Decision:
        """Returns the common decision: success if any process has it, otherwise the earliest reason of any process.

        Args:
          success: whether this process knows that the target is met.
          reason: why this process must stop, or "".
          since: when this process got its `reason`, in seconds since 1970. During a long step, a launcher passes a
            signal on to the processes that did not receive it; the decision names the one that did. Across hosts this
            is as exact as their clocks.
        """
        if self.alone:
            return Decision(success, reason)
        vote = self._replicas.agree(_vote(success, reason))
        if vote == _SUCCESS:
            return Decision(success=True)
        if vote == _NOTHING:
            return Decision()
        rank = self._first(round(since * 1e6) if reason else _NEVER)
        own = signal.Signals.__members__.get(reason) if rank == self._replicas.process_index else None
        number = self._replicas.agree(getattr(own, "value", _UNKNOWN))
        cause = signal.Signals(number).name if number else "told to stop"
        return Decision(reason=f"{cause} on rank {rank}")

    def _first(self, micros: int) -> int:
        """Returns the rank of the process with the smallest `micros`; the lowest rank wins a tie."""
        is_smallest = micros == -self._replicas.agree(-micros)
        return -self._replicas.agree(-self._replicas.process_index if is_smallest else -_NEVER)

    def wait(self, finished: Callable[[Callable[[], bool]], bool], reason: Callable[[], str]) -> bool:
        """Waits until every process's evaluations have finished, or until a process has a reason to stop.

        Args:
          finished: this process's `Evaluator.wait`.
          reason: returns why this process must stop, or "".

        Returns:
          Whether all have finished; the same in all processes.
        """
        if self.alone:
            return finished(lambda: bool(reason()))
        while True:
            until = time.monotonic() + WAIT_SECONDS
            done = finished(lambda until=until: bool(reason()) or time.monotonic() > until)
            agreed = self._replicas.agree(_vote(False, reason()) or (_NOTHING if done else _WAIT))
            if agreed != _WAIT:
                return agreed == _NOTHING or self._replicas.agree(int(not done)) == 0

    def meet(self) -> None:
        """Waits until every process has called this method."""
        if not self.alone:
            self._replicas.agree(_NOTHING)

    def check_start(self, step: int, weights: list[tf.Variable]) -> None:
        """Raises a UserError in every process unless all start from the same step with the same weights."""
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


def _vote(success: bool, reason: str) -> int:
    return _SUCCESS if success else _REASON if reason else _NOTHING
