"""How a run ended, read from its log: what a study and a search count as a result. TensorFlow-free."""

from __future__ import annotations

import dataclasses
import math
import pathlib

# How the reasons begin that common/loop.py gives for a run that nothing interrupted.
MISSED, DIVERGED = "the target was not reached", "loss is"


@dataclasses.dataclass(frozen=True)
class Ending:
    """What a log says that has a run_start and a run_stop.

    Attributes:
      evaluations: the quality at each evaluation.
      minutes: from run_start to run_stop.
      reached: the target was met.
      reason: that run_stop gives; "" where the target was met.
    """

    evaluations: tuple[float, ...]
    minutes: float
    reached: bool
    reason: str

    @property
    def whole(self) -> bool:
        """Whether the run came to its end, with whatever result: no signal and no exception ended it."""
        return self.reached or self.reason.startswith((MISSED, DIVERGED))

    @property
    def diverged(self) -> bool:
        """Whether the loss or the last evaluation is no finite number."""
        return self.reason.startswith(DIVERGED) or not all(map(math.isfinite, self.evaluations[-1:]))

    @property
    def quality(self) -> float | None:
        """The last evaluation's; None where there is none or the run diverged."""
        return self.evaluations[-1] if self.evaluations and not self.diverged else None


def read(log: pathlib.Path) -> Ending | None:
    """How the run of a log ended; None where there is no log, or one without run_start or run_stop."""
    from compliance.logs import Record, read_log

    if not log.is_file():
        return None
    records = [r for r in read_log(log) if isinstance(r, Record)]
    last = {r.key: r for r in records}
    if "run_start" not in last or "run_stop" not in last:
        return None
    stop = last["run_stop"]
    return Ending(
        tuple(float(r.value) for r in records if r.key == "eval_accuracy"),
        (stop.time_ms - last["run_start"].time_ms) / 60000,
        stop.metadata.get("status") == "success",
        str(stop.metadata.get("reason", "")),
    )


def is_whole(log: pathlib.Path) -> bool:
    """Whether a log is there and its run came to its end."""
    ending = read(log)
    return ending is not None and ending.whole
