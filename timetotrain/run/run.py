"""Executes one timed run: all processes train; the recorder of the first one also writes log and results."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Any

from common.config import benchmarks
from common.config.run_length import RunLength
from common.config.schema import RunConfig
from common.distributed import heartbeat
from common.distributed.process import Process
from common.errors import PeerLostError
from common.train.timing import now
from timetotrain.launch.watch.signals import caught
from timetotrain.run import ending, same_start
from timetotrain.run.options import RunOptions
from timetotrain.run.progress import Reporter
from timetotrain.run.recorder import Recorder


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
        self._process = process
        self.options = options if recorder is None else recorder.options
        self.reporter = Reporter(config, sys.stderr if process.main else None)
        if recorder is not None:
            self.reporter.least = recorder.baseline
        self.loop: Any = None
        self._stopped_by = ""  # The name of the first signal.
        self._training = False
        self._replicas: Any = None
        self._results: Any = None
        self._span: Any = None
        self._profile: Any = None
        self._saver: Any = None
        if options.profile_steps is not None:
            from common.train.profile import Span

            self._span = Span.parse(options.profile_steps, RunLength.of(config).train_steps)

    def execute(self) -> int:
        """Returns the exit status: 0 if the run reached its target, or trained to its end without having one."""
        self._listen()
        recorder = self.recorder
        if recorder is not None:
            recorder.open()
        try:
            if recorder is not None:
                recorder.header()
            self._build()
            start, pending = self._resume()
            heartbeat.send(start=start)
            if recorder is not None:
                recorder.begin(start)
            self._training = True
            self.loop.run(pending)
            if self._saver is not None:
                heartbeat.phase(heartbeat.SAVES)
                self._saver.finish(self._replicas)
            if recorder is not None:
                recorder.publish()
        except BaseException as error:
            self.reporter.close()
            failed = now()
            # Python wraps what a signal raises inside some of its own code.
            signalled = "" if self._training else self._stopped_by
            if not signalled:
                same_start.refuse(error, self.config.num_replicas)  # First: its launcher ends what fails.
            task = self.loop and self.loop.programs.task
            explained = ending.explained(error, signalled, task, self._replicas, self.reporter.say)
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
        return ending.exit_status(self._results.stopped)

    def _listen(self) -> None:
        for number in caught():
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: Any) -> None:
        name = signal.Signals(number).name
        heartbeat.send(signal=name)
        self._stopped_by = self._stopped_by or name
        if self.loop is not None:
            self.loop.stop(name)
            if self._results.reading and self._replicas.num_processes == 1:
                raise ending.stopped_early(name, "while reading the data")
        elif not self._training:
            raise ending.stopped_early(name)

    def _build(self) -> None:
        """Makes the backend, the task, the compiled programs and the loop."""
        config = self.config
        self.reporter.say(f"{self.benchmark} on {config.system}, seed {config.seed}: initializing")
        task_module = benchmarks.module(self.benchmark, "task")
        from common.train.loop import Loop
        from common.train.programs import Programs
        from timetotrain.run import allocator

        allocator.keep_freed_by_steps(config)
        task = task_module.Task(config, self.options.data_dir)
        if self._process.count == 1:
            task.check_input()
        self._replicas = same_start.join(config)
        self._listen()  # TensorFlow's multi-process server has replaced the signal handlers.
        if self._process.count > 1:
            same_start.check(self._replicas, self.benchmark, task, self.options)
        programs = Programs(task, self._replicas)
        programs.compile()
        if config.init:
            self._take_weights(programs)
        self.loop = Loop(programs, self._listeners(programs))
        if self._stopped_by:  # Python drops an exception that a signal raises inside one of its callbacks.
            raise ending.stopped_early(self._stopped_by)
        if self.recorder is not None:
            self.recorder.built(programs, self.reporter.say)

    def _listeners(self, programs: Any) -> Iterator[Any]:
        """Yields what follows the run, in the order in which it acts."""
        from common.train.checkpoint_times import Checkpoints
        from common.train.guard import Guard
        from common.train.profile import Profile
        from timetotrain.run.listeners import Results, Watchdog

        self._results = Results(self.reporter, self.recorder)
        guard, options = Guard(programs, self.options.guard_steps), self.options
        yield from (Watchdog(), self._results, guard)
        if options.checkpoint_dir:
            seconds = 60 * options.checkpoint_minutes
            every = self.config.checkpoint_blocks
            yield Checkpoints(self._save, guard, every, seconds, lambda: self._saver.check())
        if self._span is not None:
            self._profile = Profile(self._span, self.recorder and self.recorder.profile_folder)
            yield self._profile  # Last: a trace that cannot be written loses no checkpoint.

    def _take_weights(self, programs: Any) -> None:
        from common.train import warm_start as start

        weights = start.start(programs.state, programs.task, self.config.init)
        self.reporter.say(weights.table())
        if self.recorder is not None:
            self.recorder.facts["weights"] = dict(vars(weights))

    def _resume(self) -> tuple[int, Any]:
        """Returns the step at which the run begins, and the evaluations that it begins with."""
        if not self.options.checkpoint_dir:
            return 0, ()
        from common.train import checkpoint

        folder, recorder = self.options.checkpoint_dir, self.recorder
        protected = (lambda step: ()) if recorder is None else recorder.history.protected
        self._saver = checkpoint.Saver(folder, self.options.keep_checkpoints, protected)
        restored = checkpoint.restore_latest(self.loop.programs, folder, self.reporter.say)
        start, pending = restored or (0, ())
        if start:
            self.reporter.say(f"resumed from step {start}: this run gives no time to train")
        return start, pending

    def _save(self, loop: Any) -> None:
        """Saves a checkpoint."""
        before = heartbeat.phase(heartbeat.SAVES)
        self._saver.save(loop.programs, loop.pending)
        if self.recorder is not None:
            self.recorder.history.saved()
        heartbeat.phase(before)

    def _leave(self) -> None:
        """Ends the exchanges once the first process has written its results, so that all launchers report alike.

        Raises PeerLostError if the first process failed before that. In the first one, and after that, nothing counts.
        """
        done = self.recorder is not None
        try:
            self._replicas.all_reduce_max(0)
            done = True
            self._replicas.close()
        except Exception as error:
            if not done:
                raise PeerLostError() from error
            self.reporter.say(f"leaving the other processes: {error}")
