"""Lets a run's processes agree by exchanging integers: whether they are equal, and whether the run ends and why."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence

from common.distributed.replicas.base import Replicas
from common.errors import UserError

# How long a process waits for its evaluation before the processes exchange again whether the run goes on.
WAIT_SECONDS = 0.5
# A process's votes; the largest vote of all processes wins.
_NOTHING, _WAIT, _REASON, _SUCCESS = range(4)
# Later than the time of any signal, in microseconds since 1970.
_NEVER = 1 << 62
_CHUNK = 7  # Bytes of a text in one exchange of a 64-bit integer.
_SHOWN = 80  # Characters of a value in a message.
_LEAVE_SECONDS = 1.0  # Process 0 leaves last: PJRT's service runs in it, and the others abort without that.
_REFUSAL, _STATUS = "refusal", "exit status"  # The only facts of a process that does not start.


@dataclasses.dataclass(frozen=True)
class Decision:
    """`success`: whether the target is met. `reason`: why the run must stop at once, or ""."""

    success: bool = False
    reason: str = ""


class Agreement:
    """Agrees by `Replicas.all_reduce_max`, so all processes call each method in the same order.

    A run of one process exchanges nothing.
    """

    def __init__(self, replicas: Replicas):
        self._max, self._rank = replicas.all_reduce_max, replicas.process_index
        self.alone = replicas.num_processes == 1

    def same(self, facts: Mapping[str, str], fix: str = "give every process the same") -> None:
        """Raises UserError, with the same line in every process, if a process has other facts than process 0.

        Equal facts cost two exchanges. `facts`: name to value; a process may have names that another one lacks.
        """
        if self.alone:
            return
        text = json.dumps(facts, sort_keys=True)
        digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:_CHUNK], "big")
        other = self._max(self._rank if digest != self._max(0 if self._rank else digest) else 0)
        if not other:
            return
        first, theirs = (json.loads(self._text(text, rank)) for rank in (0, other))
        if not self._rank:
            time.sleep(_LEAVE_SECONDS)
        for rank, side in ((0, first), (other, theirs)):
            if _REFUSAL in side:
                raise UserError(f"rank {rank} does not start: {side[_REFUSAL]}", int(side.get(_STATUS, 2)))
        names = [name for name in {**first, **theirs} if first.get(name) != theirs.get(name)]
        more = f" (and {len(names) - 1} more: {', '.join(names[1:4])})" if names[1:] else ""
        values = [
            f"rank {rank} has {side.get(names[0], 'none')[:_SHOWN]}"
            for rank, side in ((0, first), (other, theirs))
        ]
        raise UserError(f"{names[0]} differs: {', '.join(values)}{more}; {fix}")

    def refuse(self, reason: str, status: int = 2) -> None:
        """Says, in the place of `same`, why this process does not start, and the exit status of all.

        Raises UserError in every process, unless all refuse alike.
        """
        self.same({_REFUSAL: reason, _STATUS: str(status)})
        if not self._rank:
            time.sleep(_LEAVE_SECONDS)

    def equal(self, values: Sequence[int]) -> bool:
        """Whether all values of all processes are equal."""
        return self._max(max(values)) == -self._max(-min(values))

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
        vote = self._max(_SUCCESS if success else _REASON if reason else _NOTHING)
        if vote != _REASON:
            return Decision(success=vote == _SUCCESS)
        micros = round(since * 1e6) if reason else _NEVER
        earliest = micros == -self._max(-micros)
        rank = -self._max(-self._rank if earliest else -_NEVER)  # The lowest rank wins a tie.
        return Decision(reason=f"{self._text(reason, rank)} on rank {rank}")

    def _text(self, text: str, rank: int) -> str:
        """Returns the text of process `rank`, in every process."""
        data = text.encode() if rank == self._rank else b""
        size = self._max(len(data))
        parts = []
        for start in range(0, size, _CHUNK):
            count = min(_CHUNK, size - start)
            value = self._max(int.from_bytes(data[start : start + count], "big"))
            parts.append(value.to_bytes(count, "big"))
        return b"".join(parts).decode()

    def wait(self, finished: Callable[[Callable[[], bool]], bool], stopping: Callable[[], bool]) -> bool:
        """Waits until every process's evaluations have finished, or until a process has a reason to stop.

        Args:
          finished: this process's `Evaluator.wait`.
          stopping: returns whether this process must stop.

        Returns:
          Whether all have finished; the same in all processes.
        """
        if self.alone:
            return finished(stopping)
        while True:
            until = time.monotonic() + WAIT_SECONDS
            done = finished(lambda until=until: stopping() or time.monotonic() > until)
            agreed = self._max(_REASON if stopping() else _NOTHING if done else _WAIT)
            if agreed != _WAIT:
                return agreed == _NOTHING or self._max(int(not done)) == 0

    def meet(self) -> None:
        """Waits until every process has called this method."""
        if not self.alone:
            self._max(_NOTHING)
