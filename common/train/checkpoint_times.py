"""Says when a run saves a checkpoint: after every few evaluations, every few seconds between them, and at its end."""

from collections.abc import Callable

from common.config.run_length import Interval
from common.train import events
from common.train.guard import Guard
from common.train.listener import Listener
from common.train.loop import Loop
from common.train.timing import now


class Checkpoints(Listener):
    """Calls `save` in every process; never with replicas that differ, or with weights that are spoilt."""

    def __init__(
        self,
        save: Callable[[Loop], None],
        guard: Guard,
        every: int = 1,
        seconds: float = 0.0,
        check_saved: Callable[[], None] = lambda: None,
    ):
        """Makes a listener that stands behind `guard`, and what reports the run's end, in the list of listeners.

        Args:
          save: saves the run's variables and `Loop.pending`, so that a resumed run misses no evaluation.
          guard: compares the replicas before a save.
          every: number of evaluation intervals between two saves.
          seconds: between two saves within an interval, alike in all processes; 0: none within an interval.
          check_saved: raises if the last checkpoint could not be written, so that a run does not train on to the next.
        """
        self._save_run, self._guard, self._every, self._seconds = save, guard, every, seconds
        self._check_saved = check_saved
        self._loop: Loop | None = None
        self._saved, self._evaluated = 0.0, True

    def on_start(self, loop: Loop) -> None:
        self._loop, self._saved = loop, now()

    def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.BlockStarted | events.BlockStopped):
            self._evaluated = isinstance(event, events.BlockStopped)
        # Not when a result has come, which a failed save cannot change.
        if isinstance(event, events.Progress | events.BlockStarted):
            self._check_saved()
        # After the report, so that a failed save cannot change the result. These weights met the target, or an earlier
        # interval's did; within an interval they are no better than those of the last checkpoint.
        if isinstance(event, events.RunStopped) and event.status == "success" and self._evaluated:
            self._save()

    def on_poll(self, step: int, training: bool) -> bool:
        due = self._seconds > 0 and now() - self._saved >= self._seconds
        return due and training and self._loop.programs.replicas.main

    def on_pause(self, step: int, requested: bool) -> None:
        if requested:
            self._save()

    def on_interval_end(self, interval: Interval) -> None:
        if (interval.index + 1) % self._every == 0:
            self._save()

    def on_verdict(self, verdict: events.RunStopped) -> None:
        if verdict.sound and verdict.status != "success":
            self._save()

    def _save(self) -> None:
        self._guard.check(self._loop.step)
        self._save_run(self._loop)
        self._saved = now()
