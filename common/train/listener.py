"""Defines what follows a run: checkpoints, the comparison of the replicas, a profile, the log. TensorFlow-free."""

import contextlib
import math
from typing import Any

from common.config.run_length import Interval
from common.train import events


class Listener:
    """Follows a run; does nothing by default. The loop calls its listeners in their order, in the main thread.

    Every process has the same listeners that exchange data, and calls them at the same steps. `on_poll` may not
    exchange data, nor may `on_event`, but for `events.RunStopped`.
    """

    def on_start(self, loop: Any) -> None:
        """The run has read its first data; no step was trained. `loop` is the run's `loop.Loop`."""

    def on_event(self, event: events.Event) -> None:
        """Something happened that a log or a person should know."""

    def next_pause(self, step: int, end: int) -> float:
        """Returns the step, after `step`, at which the next call must end; no wish by default.

        `end` is the interval's last step, whose call also evaluates: a pause there makes the evaluation its own call.
        """
        return math.inf

    def around_call(self, step: int, steps: int) -> contextlib.AbstractContextManager:
        """Returns a context for a call after `step`, which trains `steps` steps; the last one also evaluates."""
        return contextlib.nullcontext()

    def on_poll(self, step: int, training: bool) -> bool:
        """A call is running, and has finished `step`; returns whether it should pause. Called several times a second.

        A request to pause counts in process 0, while the call is `training`.
        """
        return False

    def on_pause(self, step: int, requested: bool) -> None:
        """The run stands between two steps of an interval; `requested`: a listener asked for it in `on_poll`."""

    def on_interval_end(self, interval: Interval) -> None:
        """The run has evaluated, and goes on."""

    def on_verdict(self, verdict: events.RunStopped) -> None:
        """The run ends with this event, which nobody knows yet. An error here takes its place."""

    def diagnose(self, step: int) -> str:
        """Returns which tensor became the first that is not finite, or "", after a loss of `step` that is not."""
        return ""
