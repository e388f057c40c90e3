"""Defines what follows a run: checkpoints, the comparison of the replicas, a profile, the log. TensorFlow-free."""

import contextlib
from typing import Any, NamedTuple

from common.config.clock import Block
from common.train import events


class Verdict(NamedTuple):
    """Why a run ends, the same in all processes: `status`, `step`, `reason` and `time` as in `events.RunStopped`.

    `sound`: whether the weights are worth a checkpoint.
    """

    status: str
    step: int
    time: float
    reason: str = ""
    sound: bool = True


class Listener:
    """Follows a run; does nothing by default. The loop calls its listeners in their order, in the main thread.

    Every process has the same listeners that exchange data, and calls them at the same steps. `on_event` and `on_poll`
    may not exchange data.
    """

    def on_start(self, loop: Any) -> None:
        """The run has read its first data; no step was trained. `loop` is the run's `loop.Loop`."""

    def on_event(self, event: events.Event) -> None:
        """Something happened that a log or a person should know."""

    def next_pause(self, step: int, end: int) -> int | None:
        """Returns the step, after `step` and at most `end`, at which the next call must end; None for no wish.

        `end` is the interval's last step, whose call also evaluates: a pause there makes the evaluation its own call.
        """
        return None

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

    def on_interval_end(self, interval: Block) -> None:
        """The run has evaluated, and goes on."""

    def on_verdict(self, verdict: Verdict) -> None:
        """The run ends, which nobody knows yet. An error here takes the place of the verdict."""

    def on_stop(self, verdict: Verdict) -> None:
        """The run has ended, and `on_event` got its last event."""

    def diagnose(self, step: int) -> str:
        """Returns which tensor became the first that is not finite, or "", after a loss of `step` that is not."""
        return ""
