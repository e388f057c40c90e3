"""Writes a run's configuration and events as MLPerf log lines. TensorFlow-free.

mlperf_logging.mllog writes rulesets from 0.7.0 on. It cannot write the `:::MLL <seconds> <key>: {...}` form of ruleset
0.6.0; a small formatter here does. Rounds from 5.1 on count samples, not epochs, and their header says more of the
system (round_keys.py). Every line is checked by the rules of `timetotrain check` as it is written.
"""

import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from common.config.digest import digest
from common.config.run_length import RunLength
from common.config.schema import RunConfig
from common.distributed import heartbeat
from common.errors import UserError
from common.train import events
from common.train.timing import jump, now
from timetotrain.log_writer import Format
from timetotrain.run import round_keys
from timetotrain.run.log_file import LogFile
from timetotrain.run.own_output import Output

Hyperparameters = Sequence[tuple[str, Any, Mapping[str, Any]]]


class RunLog:
    """Writes the log of one run: `header`, `init_stop`, `record` for each event, then `publish` or `abort`.

    Lines go to `<path>.partial`; only a log that ends with run_stop gets the final name.
    """

    def __init__(self, path: str | os.PathLike, config: RunConfig, checker: Any = None):
        """`checker` is a compliance.log.engine.StreamChecker, or None to write unchecked.

        Raises UserError if the folder is not writable, the disk is full, or another run holds this log.
        """
        self.path = pathlib.Path(path)
        self._config, self._run_length = config, RunLength.of(config)
        self._checker = checker
        self._file = LogFile(self.path.with_suffix(self.path.suffix + ".partial"))
        self._line = 0
        self._format = Format(config.ruleset, config.benchmark)
        self._place = round_keys.place_of(config, self._run_length)
        self._output = Output(config, self._write) if round_keys.header(config) else None
        self.started = self.stopped = self._resumed = False
        heartbeat.send(log=str(self._file.path.resolve()), clock=now() - time.monotonic())

    # -- the parts of a log ---------------------------------------------------------------------------------------

    def header(
        self, hyperparameters: Hyperparameters, cache_cleared: bool, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Writes submission fields, cache_clear, init_start, this run's `facts` and every hyperparameter."""
        config = self._config
        self.event("submission_benchmark", config.benchmark)
        self.event("submission_division", config.division)
        self.event("submission_org", config.submission_org)
        self.event("submission_platform", config.hardware)
        self.event("submission_status", config.submission_status)
        if config.ruleset == "0.6.0":
            self.event("submission_poc_name", config.submission_org)
            self.event("submission_entry", config.system)
        self.event("cache_clear", cache_cleared)
        self.event("init_start", kind="INTERVAL_START")
        if config.smoke_run:
            self.event("smoke_run", True)
        if config.logged_target is None:
            self.event("no_mlperf_result", events.NO_TARGET)
        self.event("seed", config.seed)
        self.event("config_digest", digest(config))
        for key, value in (round_keys.header(config) | dict(facts or {})).items():
            self.event(key, value)
        for key, value, metadata in hyperparameters:
            self.event(key, value, metadata)
        self.event("train_samples", config.num_train_examples)
        self.event("eval_samples", config.num_eval_examples)
        if self._output is not None:
            self._output.header()

    def init_stop(self, resumed_from_step: int = 0) -> None:
        """Ends the initialization; marks a resumed run, which has no score."""
        if resumed_from_step:
            self._resumed = True
            self.event("resumed_from_step", resumed_from_step)
        self.event("init_stop", kind="INTERVAL_END")

    def record(self, event: events.Event) -> None:
        """Writes the log lines of a loop event."""
        if self._output is not None:
            self._output.record(event)
        match event:
            case events.RunStarted():
                self.started = True
                self.event("run_start", kind="INTERVAL_START", at=event.time)
            case events.BlockStarted():
                first = event.interval.first_epoch
                metadata = self._place.of_block(event.interval, started=True)
                self.event("block_start", None, metadata, "INTERVAL_START", event.time)
                if self._config.ruleset == "0.6.0":
                    self.event("epoch_start", None, {"epoch_num": first}, "INTERVAL_START", event.time)
            case events.Trained():
                self._trained(event)
            case events.EvalRan():
                place = self._place.of_evaluation(event.interval)
                self.event("eval_start", None, place, "INTERVAL_START", event.start)
                self.event("eval_stop", None, place, "INTERVAL_END", event.stop)
            case events.Evaluated():
                metadata = {**self._place.of_evaluation(event.interval), **event.details}
                self.event("eval_accuracy", event.value, metadata, at=event.time)
            case events.BlockStopped():
                metadata = self._place.of_block(event.interval, started=False)
                self.event("block_stop", None, metadata, "INTERVAL_END", event.time)
            case events.RunStopped():
                self._run_stopped(event)

    def abort(self, reason: str, at: float | None = None) -> None:
        """Writes run_stop with status aborted, from the reserved space if necessary, and publishes the log.

        `at`: when the run failed, in seconds since 1970; None means now.
        """
        self._file.release_reserve()
        if not self.stopped:
            self._run_stopped(events.RunStopped(at or now(), "aborted", -1, reason))
        self.publish()

    def publish(self) -> None:
        """Gives the log its final name."""
        self._file.publish(self.path)

    def discard(self) -> None:
        """Removes a log that has not reached run_start, and the folders that it made."""
        self._file.discard()

    # -- events ---------------------------------------------------------------------------------------------------

    def _trained(self, event: events.Trained) -> None:
        interval, times = event.interval, event.times
        if self._config.ruleset == "0.6.0" and len(times) == interval.num_steps:
            for epoch in range(interval.first_epoch, interval.last_epoch + 1):
                done = (epoch - interval.first_epoch + 1) * interval.num_steps // interval.epoch_count
                # A run stopped during an evaluation resumes in that block with no step left.
                at = times[max(done, 1) - 1] if times else now()
                self.event("epoch_stop", None, {"epoch_num": epoch}, "INTERVAL_END", at)
                if epoch < interval.last_epoch:
                    self.event("epoch_start", None, {"epoch_num": epoch + 1}, "INTERVAL_START", at)
        if times:
            metadata = {**self._place.of_evaluation(interval), "step": interval.first_step + len(times)}
            self.event("train_loss", event.losses[-1], metadata, at=times[-1])

    def _run_stopped(self, event: events.RunStopped) -> None:
        self.stopped = True
        if seconds := jump():
            self.event("wall_clock_set_seconds", round(seconds, 3), at=event.time)
        if event.status != "success":
            self._checker = None  # Ruleset 0.6.0 has no aborted run; write the line anyway.
        reason = {"reason": event.reason} if event.reason else {}
        # MLPerf has two statuses; success means that the run met the target.
        status = "success" if event.status == "success" else "aborted"
        self.event("run_stop", None, {"status": status, **reason}, "INTERVAL_END", event.time)

    # -- lines ----------------------------------------------------------------------------------------------------

    def event(
        self,
        key: str,
        value: Any = None,
        metadata: Mapping[str, Any] | None = None,
        kind: str = "POINT_IN_TIME",
        at: float | None = None,
    ) -> None:
        """Writes one line; `at` is in seconds since 1970, None means now.

        Raises UserError if the disk is full, or the rules forbid the line.
        """
        line = self._format.line(key, value, dict(metadata or {}), kind, now() if at is None else at)
        self._write(line)
        if self._checker is not None:
            self._check(line)

    def _write(self, line: str) -> None:
        self._file.write(line)
        self._line += 1

    def _check(self, line: str) -> None:
        from compliance.log import logs

        record = logs.parse_line(line, self._line)
        for finding in self._checker.feed(record):
            # A resumed log begins in the middle: the order of its epochs is not that of a whole run.
            if finding.severity == "error" and not (self._resumed and finding.rule.endswith(".order")):
                self._checker = None
                raise UserError(
                    f"{self._file.path}:{self._line}: {finding.message} (rule {finding.rule}); {finding.fix}"
                )
