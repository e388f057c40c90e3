"""Executes one timed run: all processes train; the recorder of the first one also writes log and results."""

import contextlib
import signal
import sys
from typing import Any

from common.config import benchmarks
from common.config.clock import Clock
from common.config.schema import RunConfig
from common.distributed import heartbeat
from common.distributed.process import Process
from common.errors import PeerLostError
from common.train import events
from common.train.timing import now
from timetotrain.run import advice, ending
from timetotrain.run.options import RunOptions
from timetotrain.run.progress import Reporter
from timetotrain.run.recorder import Recorder

# What a process does after an event, in the words of its launcher (timetotrain/launch/watch/progress.py).
_PHASES = {
    events.RunStarted: "reads the data",
    events.BlockStarted: "trains",
    events.Trained: "ends a block",
    events.RunStopped: "ends the run",
}


class Run:
    """One process of a run."""

    def __init__(
        self,
        benchmark: str,
        config: RunConfig,
        options: RunOptions,
        process: Process,
        recorder: Recorder | None = None,
    ):
        """`recorder` writes the results; None in any process but the first."""
        self.benchmark, self.config, self.recorder = benchmark, config, recorder
        self.options = options if recorder is None else recorder.options
        self.reporter = Reporter(config, sys.stderr if process.main else None)
        if recorder is not None:
            self.reporter.least = recorder.baseline
        self.loop: Any = None
        self._stopped_by = ""  # A signal's name; it also stops a loop that replaces the current one.
        self._training = False
        self._replicas: Any = None
        self._span: Any = None
        self._profile: Any = None
        self._saver: Any = None
        if options.profile_steps is not None:
            from common.train.profile import Span

            self._span = Span.parse(options.profile_steps, Clock.of(config).train_steps)

    def execute(self) -> int:
        """Returns the exit status: 0 if the run reached its target, or trained to its end without having one."""
        self._listen()
        recorder = self.recorder
        if recorder is not None:
            recorder.open()
        try:
            if recorder is not None:
                recorder.header()
            self._initialise()
            start = self._resume()
            heartbeat.tell(start=start)
            if recorder is not None:
                recorder.begin(start)
            stopped = self._train()
            if recorder is not None:
                recorder.publish()
        except BaseException as error:
            self.reporter.close()
            failed = now()
            # Python wraps what a signal raises inside some of its own code.
            signalled = "" if self._training else self._stopped_by
            explained = ending.explained(error, signalled, self.loop, self._replicas, self.reporter.say)
            if self._saver is not None:
                heartbeat.phase(heartbeat.SAVES)
                with contextlib.suppress(Exception):  # The error that ends the run matters more.
                    self._saver.wait()  # The checkpoint before the error is worth the time.
            if recorder is not None:
                recorder.failed(str(explained or error) or type(error).__name__, failed, self.reporter.say)
            if explained:
                raise explained from error
            raise
        if recorder is not None:
            recorder.finish(self._profile, self.reporter.say)
        self._leave()
        return ending.exit_status(stopped)

    def _listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: Any) -> None:
        name = signal.Signals(number).name
        heartbeat.tell(signal=name)
        self._stopped_by = self._stopped_by or name
        if self.loop is not None:
            self.loop.stop(name)
            if self.loop.reading_alone:
                raise ending.stopped_early(name, "while reading the data")
        elif not self._training:
            raise ending.stopped_early(name)

    def _initialise(self) -> None:
        self.reporter.say(f"{self.benchmark} on {self.config.system}, seed {self.config.seed}: initialising")
        self._build(self.config)
        if self._stopped_by:  # Python drops an exception that a signal raises inside one of its callbacks.
            raise ending.stopped_early(self._stopped_by)
        if self.recorder is not None:
            self.recorder.built(self.loop, self.reporter.say)

    def _build(self, config: RunConfig) -> Any:
        """Builds and compiles the loop of `config`."""
        task_module = benchmarks.module(self.benchmark, "task")
        from common.distributed import replicas
        from common.train.loop import Loop
        from timetotrain.run import allocator

        allocator.keep_freed_by_steps(config)
        task = task_module.Task(config, self.options.data_dir)
        task.check_input()
        self._replicas = replicas.make(config)
        self._listen()  # TensorFlow's multi-process server has replaced the signal handlers.
        loop = Loop(task, self._replicas)
        loop.compile()
        loop.guard.steps = self.options.guard_steps
        if self.options.checkpoint_dir:
            loop.save_seconds = 60 * self.options.checkpoint_minutes
        self.loop = loop
        if self._span is not None:
            from common.train.profile import Profile

            folder = self.recorder and self.recorder.profile_folder
            loop.profile = self._profile = Profile(self._span, folder)
        if config.init:
            self._take_weights(loop)
        if self._stopped_by:
            loop.stop(self._stopped_by)
        return loop

    def _take_weights(self, loop: Any) -> None:
        from common.train import warm_start as start

        taken = start.start(loop.state, loop.task, self.config.init)
        self.reporter.say(taken.table())
        if self.recorder is not None:
            self.recorder.facts["weights"] = dict(vars(taken))

    def _resume(self) -> int:
        if not self.options.checkpoint_dir:
            return 0
        from common.train import checkpoint

        folder, recorder = self.options.checkpoint_dir, self.recorder
        protected = (lambda step: ()) if recorder is None else recorder.history.protected
        self._saver = checkpoint.Saver(folder, self.options.keep_checkpoints, protected)
        start = checkpoint.restore_latest(self.loop, folder, self.reporter.say) or 0
        if start:
            self.reporter.say(f"resumed from step {start}: this run gives no time to train")
        return start

    def _saved(self, step: int) -> None:
        """As `_save`, and tells the launcher."""
        before = heartbeat.phase(heartbeat.SAVES)
        self._save(step)
        heartbeat.phase(before)

    def _save(self, step: int) -> None:
        """Saves a checkpoint, and examples after an evaluation, as the options ask."""
        recorder = self.recorder
        if self._saver is not None:
            self._saver.save(self.loop, self.loop.pending)
            if recorder is not None:
                recorder.history.saved()
        if recorder is not None and any(step == block.end_step for block in self.loop.clock.blocks()):
            recorder.look(step)

    def _train(self) -> Any:
        """Trains to the end; returns the last event."""
        event, self._training = None, True
        saves = self.options.checkpoint_dir or (self.recorder is not None and self.options.examples)
        for event in self.loop.run(self._saved if saves else None):
            if type(event) in _PHASES:
                heartbeat.phase(_PHASES[type(event)])
            if isinstance(event, events.Progress):
                heartbeat.at_step(event.step)
                if event.evaluating:
                    heartbeat.phase("evaluates")
            if self.recorder is not None:
                self.recorder.record(event)
                self.reporter.record(event)
                alone = self._replicas.num_processes == 1
                more = (
                    isinstance(event, events.Evaluated) and self.loop.state.step < self.loop.clock.train_steps
                )
                if alone and more and (why := advice.saturated(self.config, self.recorder.history.records)):
                    self.loop.stop(why)
            if self._saver is not None and isinstance(event, events.Progress | events.BlockStarted):
                self._saver.check()  # Not when a result has come, which a failed save cannot change.
        if self._profile is not None:
            self._profile.close()
        if self._saver is not None:
            heartbeat.phase(heartbeat.SAVES)
            self._saver.finish(self._replicas)
        return event

    def _leave(self) -> None:
        """Ends the exchanges once the first process has written its results, so that all launchers report alike.

        Raises PeerLostError if the first process failed before that. In the first one, and after that, nothing counts.
        """
        written = self.recorder is not None
        try:
            self._replicas.agree(0)
            written = True
            self._replicas.close()
        except Exception as error:
            if not written:
                raise PeerLostError() from error
            self.reporter.say(f"leaving the other processes: {error}")
