"""Writes what the first process of a run leaves: the log, the history, the picture and run.json."""

import contextlib
import dataclasses
import datetime
import itertools
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from common import files
from common.config import automatic, benchmarks
from common.config.schema import RunConfig
from common.errors import UserError
from common.train import events
from common.train.timing import jump
from timetotrain.launch.watch.unfinished_log import close_log
from timetotrain.run import advice, closed_division, ending, results
from timetotrain.run import mllog as logs
from timetotrain.run.history import History
from timetotrain.run.locks import FolderLock
from timetotrain.run.options import RunOptions


class Recorder:
    """Call `open`, `header`, `built`, `begin`, then `record` for each event, then `finish`; `failed` after an error.

    Attributes:
      options: the run's options; a run of `--system=here` gets a folder for checkpoints.
      folder, path: folder of the results; path of the log.
      history: the history and the best checkpoint.
      facts: what the log and run.json say about the configuration.
    """

    def __init__(
        self,
        config: RunConfig,
        options: RunOptions,
        processes: int,
        hyperparameters: logs.Hyperparameters,
        facts: Mapping[str, Any],
    ):
        """`facts` describes the configuration, for the log and run.json.

        "config_overrides" is {path: value} of the fields that differ from the preset; "chosen" says what
        `--system=here` chose, and why.

        Raises UserError if the log of this number exists, or the folder cannot be one.
        """
        self.config, self.options, self.hyperparameters = config, options, hyperparameters
        self.facts = {**facts, "initial_weights": closed_division.initial_weights(config)}
        self.folder = pathlib.Path(options.result_dir) / config.system / config.benchmark
        try:
            self.folder.exists()
        except OSError as error:  # A name that is too long, or a folder that nobody may enter.
            raise UserError(
                f"--result_dir={options.result_dir}: {error.strerror}; name another folder"
            ) from error
        self._close_lost()
        self.index = self._free_index() if options.run is None else options.run
        self.path = self.folder / f"result_{self.index}.txt"
        if self.path.exists():
            raise UserError(f"{self.path}: exists; give another --run or --result_dir, or move it away")
        if config.system == automatic.NAME and not options.checkpoint_dir and processes == 1:
            # In a new folder: only --checkpoint_dir continues a killed run.
            folders = (self.folder / f"checkpoints_{i}" for i in itertools.count(self.index))
            free = next(str(folder) for folder in folders if not folder.exists())
            self.options = dataclasses.replace(options, checkpoint_dir=free)
        self.baseline = ending.baseline(config, options.data_dir)
        rule = automatic.rule_of(benchmarks.module(config.benchmark, "presets"))
        self.facts["outlook"] = advice.outlook(config, self.baseline, rule)
        path = self.folder / f"history_{self.index}.jsonl"
        self.history = History(config, path, self.options.checkpoint_dir, self.baseline)
        self._log: Any = None
        self._resumed = 0  # The step at which the run resumed.
        self._started = 0.0
        self._stopped: Any = None  # The run's last event, once the log contains it.
        self._new_folders: list[pathlib.Path] = []  # Folders for checkpoints that did not exist.
        self._lock: FolderLock | None = None  # On the folder for checkpoints.

    def _close_lost(self) -> None:
        """Ends the logs of runs that were lost with their machine, so that the time they took stays on record."""
        for path in self.folder.glob("result_*.txt.partial"):
            with contextlib.suppress(UserError, ValueError):  # Its run still writes it, or it is not a log.
                close_log(path, "the run was lost; a later run ended its log")

    def _free_index(self) -> int:
        """Returns the first number whose log no run has written or writes."""
        names = {p.name.removesuffix(".partial") for p in self.folder.glob("result_*.txt*")}
        return next(i for i in range(len(names) + 1) if f"result_{i}.txt" not in names)

    @property
    def profile_folder(self) -> pathlib.Path:
        """The folder of a trace."""
        return self.folder / f"profile_{self.index}"

    def open(self) -> None:
        """Opens the log.

        Raises UserError if the folder is not writable, the disk is full, or another run holds or has ended this log.
        """
        self._log = logs.RunLog(self.path, self.config, _checker(self.config))
        if self.path.exists():  # This process holds the log's lock, so no one else can take the name.
            self._log.discard()
            raise UserError(f"{self.path}: another run has just ended there; give another --run")

    def header(self) -> None:
        """Writes the log's header, and locks the folder for checkpoints.

        Raises UserError if the folder cannot be written, or another run writes there.
        """
        self._log.header(self.hyperparameters, self.options.cache_cleared, self.facts)
        if self.options.checkpoint_dir:
            folder = pathlib.Path(self.options.checkpoint_dir)
            self._new_folders = files.try_to_write(folder, "--checkpoint_dir")
            self._lock = FolderLock(folder, "--checkpoint_dir")

    def built(self, programs: Any, say: Callable[[str], None]) -> None:
        """Notes what the compiled `programs` run on, and says what `--system=here` chose."""
        self.facts["compiled"] = str(programs.compiled)
        if programs.replicas.platform:
            self.facts["devices"] = f"{programs.replicas.num_replicas} x {programs.replicas.platform}"
        for field, choice in self.facts.get("chosen", {}).items():
            say(f"chosen: {automatic.Choice(field, **choice)}")
        if outlook := self.facts["outlook"]:
            say(f"outlook: this run {outlook}")

    def begin(self, step: int) -> None:
        """Ends the initialization; the run starts at `step`, which is above 0 if it resumes."""
        self._resumed = step
        self.history.begin(step)
        self._log.init_stop(step)

    def record(self, event: events.Event) -> None:
        """Writes an event to the log and the history."""
        self._log.record(event)
        if isinstance(event, events.RunStarted):
            self._started = event.time
        elif isinstance(event, events.RunStopped):
            self._stopped = event
        self.history.record(event)

    def publish(self) -> None:
        """Gives the log its final name."""
        self._log.publish()

    def failed(self, reason: str, failed: float, say: Callable[[str], None]) -> None:
        """Ends the log of a run that failed at `failed`, in seconds since 1970, for `reason`."""
        if self._log.started:
            with contextlib.suppress(UserError):  # The error that ends the run matters more.
                self._log.abort(reason, failed)
            with contextlib.suppress(UserError, OSError):  # The disk may be full, or the log gone.
                self._write_record(*(self._result() if self._stopped else ("aborted", None)))
            if self._stopped:
                say(f"the run had ended, {self._stopped.status}, before the error: {self.path}")
        with contextlib.suppress(UserError):
            self.history.close()
        self.release()
        if not self._log.started:
            self.history.discard()
            files.remove_empty(self._new_folders)
            self._log.discard()

    def release(self) -> None:
        """Lets other runs write into the folder for checkpoints."""
        if self._lock is not None:
            self._lock.release()

    def _result(self) -> tuple[str, float | None]:
        """Returns status and score in minutes; a resumed run has no score."""
        scored = self._stopped.status == "success" and not self._resumed
        return self._stopped.status, (self._stopped.time - self._started) / 60 if scored else None

    def finish(self, profile: Any, say: Callable[[str], None]) -> None:
        """Writes run.json and the picture, and prints where the results are. `profile` is the run's trace or None."""
        status, minutes = self._result()
        profiled = [] if profile is None else [self._profiled(profile)]
        self._write_record(status, minutes)
        try:
            self.history.close()
        except UserError as error:
            say(f"error: {error}")
        self.release()
        # The log and the record are written; the picture can be drawn later.
        try:
            picture = self.folder / f"curve_{self.index}.png"
            curve: Any = results.draw_curve(self.history.records, self.config, picture)
        except (OSError, UserError) as error:
            curve = f"none: {error}"
        print(f"result   {self.path}")
        print(f"score    none: {status}" if minutes is None else f"score    {minutes:.3f} minutes")
        print(f"verdict  {ending.verdict(self.config, self.path)}")
        print(f"curve    {curve}")
        if seconds := jump():
            print(
                f"clock    the wall clock was set by {seconds:+.0f} s; the times are of a clock that nobody sets"
            )
        diverged = self._stopped.reason.startswith(events.NOT_FINITE)
        beside_baseline = ending.against(self.config, self.baseline, self._records(), diverged)
        go_on = ending.continued(self._stopped, self.options.checkpoint_dir)
        for line in [*profiled, *self.history.summary(), *beside_baseline, *go_on]:
            print(line)

    def _records(self) -> list[Any]:
        """Returns the history since this process started."""
        since = itertools.takewhile(lambda r: r["kind"] != "run", reversed(self.history.records))
        return list(since)[::-1]

    def _profiled(self, profile: Any) -> str:
        """Returns the line about the profiled steps."""
        if not profile.steps:
            return f"profile  none: the run had no step of {self.options.profile_steps}"
        self.facts["profile"] = {"steps": profile.steps, "folder": str(profile.folder)}
        return f"profile  {profile.folder}: {profile.steps} steps (tensorboard --logdir {profile.folder})"

    def _write_record(self, status: str, minutes: float | None) -> None:
        from systems import detect

        record = results.describe_run(self.config, sys.argv, detect()[0], self.facts)
        started = datetime.datetime.fromtimestamp(self._started, datetime.UTC)
        record |= {
            "status": status,
            "score_minutes": minutes,
            "quality": next((r["value"] for r in self._records()[::-1] if r["kind"] == "evaluation"), None),
            "started": started.isoformat(timespec="seconds"),
            "resumed_from_step": self._resumed,
            "wall_clock_set_seconds": jump(),
        }
        results.update_run_json(self.folder, self.path, record)


def _checker(config: RunConfig) -> Any:
    from compliance.log.engine import StreamChecker

    return StreamChecker(config.ruleset, config.benchmark, config.division)
