"""Executes one timed run: all processes train; the first also writes log and results."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pathlib
import signal
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from common import files
from common.config import automatic, benchmarks
from common.config.clock import Clock
from common.config.schema import RunConfig
from common.distributed import heartbeat
from common.distributed.process import Process
from common.errors import UserError
from common.train import events
from timetotrain.run import closed_division, ending, results
from timetotrain.run import mllog as logs
from timetotrain.run.artifacts import Kept
from timetotrain.run.options import RunOptions
from timetotrain.run.progress import Reporter


class Training:
    """A run in any process but the first: trains, and writes no results."""

    def __init__(self, benchmark: str, config: RunConfig, options: RunOptions, process: Process):
        self.benchmark, self.config, self.options = benchmark, config, options
        self.reporter = Reporter(config, sys.stderr if process.main else None)
        self.loop: Any = None
        self._stopped_by = ""  # A signal's name; it also stops a loop that replaces the current one.
        self._training = False
        self._replicas: Any = None
        self._start = 0
        self._span: Any = None
        self._profile: Any = None
        if options.profile_steps is not None:
            from common.train.profile import Span

            self._span = Span.parse(options.profile_steps, Clock.of(config).train_steps)

    def execute(self) -> int:
        """Returns the exit status: 0 if the run reached its target, or trained to its end without having one."""
        self._listen()
        try:
            self._initialise()
            self._start = self._resume()
            return ending.exit_status(self._train())
        except BaseException as error:
            explained = self._explain(error)
            if explained:
                raise explained from error
            raise

    def _listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: Any) -> None:
        name = signal.Signals(number).name
        heartbeat.tell(signal=name)
        self._stopped_by = self._stopped_by or name
        if self.loop is not None:
            self.loop.stop(name)
        elif not self._training:
            raise _stopped_early(name)

    def _initialise(self) -> None:
        self.reporter.say(f"{self.benchmark} on {self.config.system}, seed {self.config.seed}: initialising")
        self._build(self.config)
        if self._stopped_by:  # Python drops an exception that a signal raises inside one of its callbacks.
            raise _stopped_early(self._stopped_by)

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
        self.loop = loop
        if self._span is not None:
            from common.train.profile import Profile

            loop.profile = self._profile = Profile(self._span, self._profile_folder())
        if config.init:
            self._take_weights(loop)
        if self._stopped_by:
            loop.stop(self._stopped_by)
        return loop

    def _profile_folder(self) -> pathlib.Path | None:
        """Returns the trace's folder; None in any process but the first, which records nothing."""
        return None

    def _take_weights(self, loop: Any) -> None:
        from common.train import warm_start as start

        found = start.start(loop.state, loop.task, self.config.init)
        self.reporter.say(found.table())
        self._record_weights(found.facts())

    def _record_weights(self, facts: dict[str, Any]) -> None:
        """Records what the run took from `config.init`; does nothing in any process but the first."""

    def _resume(self) -> int:
        if not self.options.checkpoint_dir:
            return 0
        from common.train import checkpoint

        start = checkpoint.restore_latest(self.loop, self.options.checkpoint_dir) or 0
        if start:
            self.reporter.say(f"resumed from step {start}: this run gives no time to train")
        return start

    def _save(self, step: int) -> None:
        from common.train import checkpoint

        folder, keep = self.options.checkpoint_dir, self.options.keep_checkpoints
        checkpoint.save(self.loop, folder, keep, self._protected(step))

    def _saves(self) -> bool:
        """Whether `_save` does anything after an evaluation."""
        return bool(self.options.checkpoint_dir)

    def _protected(self, step: int) -> Collection[int]:
        """Returns the steps of older checkpoints to keep; only the first process drops checkpoints."""
        return ()

    def _train(self) -> Any:
        """Trains to the end; returns the last event."""
        event, self._training = None, True
        for event in self._events(self._save if self._saves() else None):
            if isinstance(event, events.Progress):
                heartbeat.at_step(event.step)
            self._record(event)
        if self._profile is not None:
            self._profile.close()
        try:
            self._replicas.close()
        except Exception as error:
            # The result is already recorded: a peer that fails during shutdown changes nothing.
            self.reporter.say(f"leaving the other processes: {error}")
        return event

    def _events(self, save: Any) -> Iterator[events.Event]:
        """Returns the loop's events; in an elastic run, the events of all successive loops."""
        from timetotrain.run import elastic

        return elastic.Elastic(self, save).events() if elastic.enabled() else self.loop.run(save)

    def rebuild(self, count: int) -> int:
        """Replaces the loop with one of `count` replicas, restored from the last checkpoint; returns its step."""
        config = dataclasses.replace(self.config, num_replicas=count)
        config.validate()
        from common.train import checkpoint

        return checkpoint.restore_latest(self._build(config), self.options.checkpoint_dir)

    def _record(self, event: Any) -> None:
        """Records an event; does nothing in any process but the first."""

    def _explain(self, error: BaseException) -> UserError | None:
        if isinstance(error, UserError):
            return None
        if (
            self._stopped_by and not self._training
        ):  # Python wraps what a signal raises inside some of its own code.
            return _stopped_early(self._stopped_by)
        from timetotrain.run.step_errors import explained

        diagnose = None if self.loop is None else self.loop.task.diagnose
        return explained(error, self._replicas, "global_batch_size", diagnose, self.reporter.say)


class Run(Training):
    """A run in its first process: trains, and writes the log, the picture and run.json."""

    def __init__(
        self,
        benchmark: str,
        config: RunConfig,
        options: RunOptions,
        process: Process,
        hyperparameters: logs.Hyperparameters,
        facts: Mapping[str, Any],
    ):
        """`facts` describes the configuration, for the log and run.json.

        "config_overrides" is {path: value} of the fields that differ from the preset; "chosen" says what
        `--system=here` chose, and why.
        """
        super().__init__(benchmark, config, options, process)
        self.hyperparameters = hyperparameters
        self.facts = {
            **facts,
            "initial_weights": closed_division.initial_weights(config),
        }
        self.folder = pathlib.Path(self.options.result_dir) / config.system / config.benchmark
        self.index = self._free_index() if self.options.run is None else self.options.run
        self.path = self.folder / f"result_{self.index}.txt"
        if self.path.exists():
            raise UserError(f"{self.path}: exists; give another --run or --result_dir, or move it away")
        if config.system == automatic.NAME and not options.checkpoint_dir and process.count == 1:
            self.options = dataclasses.replace(options, checkpoint_dir=str(self._free_checkpoints()))
        self.curve = results.Curve(config)
        self._least = self.reporter.least = ending.baseline(config, options.data_dir)
        self.kept = Kept(config, self.options, self.folder / f"history_{self.index}.jsonl")
        self._looker: Any = None
        self._log: Any = None
        self._stopped: Any = None  # The run's last event, once the log contains it.
        self._made: list[pathlib.Path] = []  # Folders for checkpoints that did not exist.

    def _free_index(self) -> int:
        taken = {p.name for p in self.folder.glob("result_*.txt")}
        return next(i for i in range(len(taken) + 1) if f"result_{i}.txt" not in taken)

    def _free_checkpoints(self) -> pathlib.Path:
        """Returns a new folder for checkpoints: only --checkpoint_dir continues a killed run."""
        folders = (self.folder / f"checkpoints_{i}" for i in itertools.count(self.index))
        return next(folder for folder in folders if not folder.exists())

    def execute(self) -> int:
        """Returns the exit status: 0 if the run reached its target, or trained to its end without having one."""
        self._listen()
        log = self._log = logs.RunLog(self.path, self.config, _checker(self.config))
        if self.path.exists():  # This process holds the log's lock, so no one else can take the name.
            log.discard()
            raise UserError(f"{self.path}: another run has just ended there; give another --run")
        try:
            log.header(self.hyperparameters, self.options.cache_cleared, self.facts)
            if self.options.checkpoint_dir:
                folder = pathlib.Path(self.options.checkpoint_dir)
                self._made = files.try_to_write(folder, "--checkpoint_dir")
            self._initialise()
            self._start = self._resume()
            self.kept.begin(self._start)
            log.init_stop(self._start)
            stopped = self._train()
            log.publish()
        except BaseException as error:
            self._failed(log, error)
            raise
        return self._finish(stopped)

    def _record_weights(self, facts: dict[str, Any]) -> None:
        self.facts["weights"] = facts

    def _profile_folder(self) -> pathlib.Path | None:
        return self.folder / f"profile_{self.index}"

    def _profiled(self) -> list[str]:
        """Returns the line about the profiled steps, if any were requested."""
        profile = self._profile
        if profile is None:
            return []
        from common.train import trace

        try:
            found = trace.read(profile.folder) if profile.steps else None
        except Exception as error:  # TensorFlow's trace format differs between versions.
            return [f"profile  {profile.folder}: cannot be read here ({error}); TensorBoard may"]
        if found is None:
            return [f"profile  none: the run had no step of {self.options.profile_steps}"]
        self.facts["profile"] = {"steps": profile.steps, **dataclasses.asdict(found)}
        return [f"profile  {profile.folder}: {found.line(profile.steps)}"]

    def _initialise(self) -> None:
        super()._initialise()
        self.facts["compiled"] = str(self.loop.compiled)
        if self._replicas.platform:
            self.facts["devices"] = f"{self._replicas.num_replicas} x {self._replicas.platform}"
        if self.options.examples:
            from timetotrain.run.examples import Looker

            folder = self.folder / f"examples_{self.index}"
            self._looker = Looker(self.loop, folder, self.options.examples)
        for field, choice in self.facts.get("chosen", {}).items():
            self.reporter.say(f"chosen: {automatic.Choice(field, **choice)}")

    def _failed(self, log: logs.RunLog, error: BaseException) -> None:
        """Ends the log of a run that raised `error`; raises a UserError instead if one explains it."""
        self.reporter.close()
        failed = time.time()
        explained = self._explain(error)
        if log.started:
            log.abort(str(explained or error) or type(error).__name__, failed)
            with contextlib.suppress(UserError):  # The disk may be full; the log matters more.
                self._write_record(*(self._result(self._stopped) if self._stopped else ("aborted", None)))
            if self._stopped:
                self.reporter.say(f"the run had ended, {self._stopped.status}, before the error: {self.path}")
        with contextlib.suppress(UserError):
            self.kept.close()
        if not log.started:
            self.kept.discard()
            files.remove_empty(self._made)
            log.discard()
        if explained:
            raise explained from error

    def _result(self, stopped: Any) -> tuple[str, float | None]:
        """Returns status and score in minutes; a resumed run has no score."""
        scored = stopped.status == "success" and not self._start
        return stopped.status, (stopped.time - self.curve.start) / 60 if scored else None

    def _record(self, event: Any) -> None:
        self._log.record(event)
        if isinstance(event, events.RunStopped):
            self._stopped = event
        self.curve.record(event)
        self.reporter.record(event)
        self.kept.record(event)

    def _protected(self, step: int) -> Collection[int]:
        return self.kept.protected(step)

    def _saves(self) -> bool:
        return super()._saves() or bool(self.options.examples)

    def _save(self, step: int) -> None:
        if super()._saves():
            super()._save(step)
            self.kept.saved()
        if self._looker is not None:
            self._looker.look(step)

    def _finish(self, stopped: Any) -> int:
        status, minutes = self._result(stopped)
        profiled = self._profiled()
        self._write_record(status, minutes)
        try:
            self.kept.close()
        except UserError as error:
            self.reporter.say(f"error: {error}")
        # The log and the record are written; the picture can be drawn later.
        try:
            curve: Any = self.curve.draw(self.folder / f"curve_{self.index}.png")
        except (OSError, UserError) as error:
            curve = f"none: {error}"
        print(f"result   {self.path}")
        print(f"score    none: {status}" if minutes is None else f"score    {minutes:.3f} minutes")
        print(f"verdict  {ending.verdict(self.config, self.path)}")
        print(f"curve    {curve}")
        for line in [
            *profiled,
            *self.kept.summary(),
            *ending.against(
                self.config,
                self._least,
                [value for _, value in self.curve.evaluations],
                stopped.reason.startswith(events.NOT_FINITE),
            ),
            *ending.continued(stopped, self.options.checkpoint_dir),
        ]:
            print(line)
        return ending.exit_status(stopped)

    def _write_record(self, status: str, minutes: float | None) -> None:
        from systems import detect

        record = results.describe_run(self.config, sys.argv, detect()[0], self.facts)
        record |= {
            "status": status,
            "score_minutes": minutes,
            "quality": self.curve.evaluations[-1][1] if self.curve.evaluations else None,
            "started": self.curve.started_iso,
            "resumed_from_step": self._start,
        }
        results.update_run_json(self.folder, self.path, record)


def _stopped_early(name: str) -> UserError:
    message = f"{name} during initialisation: nothing was trained"
    return UserError(message, 128 + signal.Signals[name].value)


def _checker(config: RunConfig) -> Any:
    from compliance.log.engine import StreamChecker

    return StreamChecker(config.ruleset, config.benchmark, config.division)
