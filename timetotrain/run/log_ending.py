"""Reads from a log how its run ended, for studies and searches. TensorFlow-free."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping

from common.config.quality import Value, parts
from common.train import events


@dataclasses.dataclass(frozen=True)
class Ending:
    """The end of a run whose log has both run_start and run_stop.

    Attributes:
      evaluations: the quality at each evaluation; nan where the log has no number.
      minutes: time from run_start to run_stop.
      reached: whether the run met the target.
      reason: the reason in run_stop; "" if the run met the target.
    """

    evaluations: tuple[Value, ...]
    minutes: float
    reached: bool
    reason: str

    @property
    def whole(self) -> bool:
        """Whether the run ended by itself, with any result, rather than by a signal or an exception."""
        beginnings = (events.MISSED, events.NO_TARGET, events.SATURATED, events.NOT_FINITE)
        return self.reached or self.reason.startswith(beginnings)

    @property
    def diverged(self) -> bool:
        """Whether the loss, or any part of the last evaluation, is not finite."""
        last = [part for quality in self.evaluations[-1:] for part in parts(quality).values()]
        return self.reason.startswith(events.NOT_FINITE) or not all(map(math.isfinite, last))

    @property
    def quality(self) -> Value | None:
        """The quality at the last evaluation; None if there is none or the run diverged."""
        return self.evaluations[-1] if self.evaluations and not self.diverged else None


def read(log: pathlib.Path) -> Ending | None:
    """Returns how a log's run ended; None if there is no log, or it lacks run_start or run_stop."""
    from compliance.log.logs import Record, read_log

    if not log.is_file():
        return None
    records = [r for r in read_log(log) if isinstance(r, Record)]
    last = {r.key: r for r in records}
    if "run_start" not in last or "run_stop" not in last:
        return None
    stop = last["run_stop"]
    return Ending(
        tuple(_quality(r.value) for r in records if r.key == "eval_accuracy"),
        (stop.time_ms - last["run_start"].time_ms) / 60000,
        stop.metadata.get("status") == "success",
        str(stop.metadata.get("reason", "")),
    )


def is_whole(log: pathlib.Path) -> bool:
    """Whether the log exists and its run ended by itself."""
    ending = read(log)
    return ending is not None and ending.whole


def _quality(value: object) -> Value:
    if isinstance(value, Mapping):
        return {name: _number(part) for name, part in value.items()}
    return _number(value)


def _number(value: object) -> float:
    """Returns a number, or nan for anything else: an unknown form of quality must not hide how a run ended."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
