"""Follows a run for its launcher, its log and the people who watch it."""

from common.distributed import heartbeat
from common.train import events
from common.train.listener import Listener
from common.train.loop import Loop
from timetotrain.run import advice
from timetotrain.run.progress import Reporter
from timetotrain.run.recorder import Recorder

# What a process does after an event, in the words of its launcher (timetotrain/launch/watch/progress.py).
_PHASES = {
    events.RunStarted: "reads the data",
    events.BlockStarted: "trains",
    events.Trained: "ends a block",
    events.RunStopped: "ends the run",
}


class Watchdog(Listener):
    """Tells the launcher what this process does, and the time that it spends alone in a step."""

    def __init__(self) -> None:
        self._loop: Loop | None = None

    def on_start(self, loop: Loop) -> None:
        self._loop = loop

    def on_event(self, event: events.Event) -> None:
        if type(event) in _PHASES:
            heartbeat.phase(_PHASES[type(event)])
        elif isinstance(event, events.Progress):
            heartbeat.at_step(event.step)
            if event.evaluating:
                heartbeat.phase("evaluates")

    def on_poll(self, step: int, training: bool) -> bool:
        self._loop.programs.timing.record(step)
        return False


class Results(Listener):
    """Writes the events of the first process to the log and shows them; ends a run that gains nothing any more.

    Attributes:
      stopped: the run's last event, once it has come.
      reading: whether the run reads its data before the first step.
    """

    def __init__(self, reporter: Reporter, recorder: Recorder | None):
        """`recorder`: writes the log; None in any process but the first."""
        self._reporter, self._recorder = reporter, recorder
        self._loop: Loop | None = None
        self.stopped: events.RunStopped | None = None
        self.reading = False

    def on_start(self, loop: Loop) -> None:
        self._loop = loop

    def on_event(self, event: events.Event) -> None:
        if self._recorder is not None:
            self._recorder.record(event)
            self._reporter.record(event)
            if isinstance(event, events.Evaluated):
                self._stop_saturated()
        if isinstance(event, events.RunStopped):
            self.stopped = event
        self.reading = isinstance(event, events.RunStarted)

    def _stop_saturated(self) -> None:
        """Stops a run of one process whose last evaluations gained nothing, if steps are left."""
        programs = self._loop.programs
        alone, goes_on = (
            programs.replicas.num_processes == 1,
            self._loop.step < programs.run_length.train_steps,
        )
        if alone and goes_on and (why := advice.saturated(programs.config, self._recorder.history.records)):
            self._loop.stop(why)
