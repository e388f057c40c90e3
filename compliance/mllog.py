"""Writes the log of a run from anyone's training loop, in any framework: two lines besides the header.

    run = Run("result_0.txt", {"submission_benchmark": "llama31_8b", "global_batch_size": 16, ...})   # init_start
    with run:                                                                # init_stop, run_start
        while not run.evaluated(loss, samples_count=samples):                # eval_start, eval_accuracy, eval_stop
            ...
    # run_stop: success when the target is met; aborted at the end, after an exception, or on a signal

Every record goes through the checker as it is written. A header that the round's rules refuse raises UserError in the
constructor. docs/log-from-any-framework.md has examples.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType, SimpleNamespace, TracebackType

from common.errors import UserError
from compliance.findings import ERROR, Finding
from compliance.log import rules
from compliance.log.engine import StreamChecker
from compliance.log.lines import token_lines
from compliance.log.logs import Record
from compliance.log.preflight import evaluations_needed, missing_keys, newest_round, progress_unit
from compliance.tee import Tee

_SUBMISSION = ("submission_benchmark", "submission_division")
_FIRST = (*_SUBMISSION, "submission_org", "submission_platform", "submission_status", "cache_clear")
# What ends a job: the scheduler (SIGTERM), a closed terminal (SIGHUP). Ctrl-C is an exception.
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_WHOLE_OUTPUT_FROM = "6.1.0"
_MOST_TRIES = 10_000
_START, _END, _POINT = "INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"


def _warn(finding: Finding) -> None:
    print(f"{finding.path}: {finding.rule}: {finding.message} {finding.found}", file=sys.stderr)


class Run:
    """The log of one run; a context manager. Creating it begins the initialization, entering it starts the clock.

    Args:
      path: the log; it must not exist, because a log holds one run. See `again`.
      header: key -> value of every submission field and hyperparameter. A pair (value, {name: metadata}) gives
        metadata; a list of such pairs gives several records of the key.
      ruleset: the round; None: the newest one with the benchmark.
      write: False on every process but the first: nothing is written, all else stays the same.
      block_epochs: for benchmarks that count epochs, the epochs between two evaluations.
      tee: copy the program's standard output and error into the log, as rounds from 6.1 on ask; None: in those rounds.
      again: for a job that starts again: the log of an earlier try that has no run_stop becomes PATH.1, PATH.2, ...
      tell: takes each finding about a record after the clock has started; default: one line on standard error.

    Raises UserError if the header lacks a field or breaks a rule, the round or the benchmark is unknown, or the file
    exists or cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        header: Mapping[str, object],
        *,
        ruleset: str | None = None,
        write: bool = True,
        block_epochs: float = 1,
        tee: bool | None = None,
        again: bool = False,
        tell: Callable[[Finding], None] = _warn,
    ):
        self.path = Path(path)
        lacking = [key for key in _SUBMISSION if not header.get(key)]
        if lacking:
            raise UserError(f"{self.path}: the header lacks {', '.join(lacking)}; add it")
        self.benchmark, self.division = (str(header[key]) for key in _SUBMISSION)
        newest = newest_round(self.benchmark, self.division)
        self.ruleset = ruleset or newest
        if self.ruleset not in rules.RULESETS[1:]:
            raise UserError(f"ruleset {self.ruleset!r}: name one of {', '.join(rules.RULESETS[1:])}")
        self.unit = progress_unit(self.ruleset, self.division, self.benchmark)
        self.findings: list[Finding] = []
        self.reached = self.stopped = self.started = False
        self._tell, self._block_epochs, self._at = tell, block_epochs, 0.0
        self._checker = StreamChecker(self.ruleset, path=str(self.path))
        self._rules = self.ruleset, self.division, self.benchmark
        self._line, self._joined, self._block, self._logged_keys = 0, 0, {}, set()
        self._handlers: dict[int, object] = {}
        self._stopping, self._late = False, 0
        if write and again:
            self._put_aside()
        self._file = self._open() if write else None
        copies_output = self.ruleset >= _WHOLE_OUTPUT_FROM if tee is None else tee
        self._tee = Tee(self.path) if write and copies_output else None
        self._updates: dict[float, int] = {}  # checkpoints to evaluate later: their places and times, in ms
        try:
            self._write_header(header)
            self._judge_header()
        except UserError:
            self._refuse()
            raise

    def _open(self) -> int:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError:
            raise UserError(f"{self.path}: exists, and a log holds one run; give another name") from None
        except OSError as error:
            raise UserError(f"{self.path}: cannot write ({error.strerror}); give another folder") from None

    def _put_aside(self) -> None:
        """Renames the log of an earlier try that broke off. A log with run_stop stays, and its name is refused."""
        if self.path.is_file() and not any(
            line.__class__ is bytes and b'"run_stop"' in line for _, line in token_lines(self.path)
        ):
            numbers = range(1, _MOST_TRIES)
            free = (self.path.with_name(f"{self.path.name}.{number}") for number in numbers)
            self.path.rename(next(name for name in free if not name.exists()))

    def _write_header(self, header: Mapping[str, object]) -> None:
        for key in _FIRST:
            if key in header:
                self.event(key, header[key])
        self.event("init_start", kind=_START)
        for key, value in header.items():
            if key in _FIRST:
                continue
            pairs = isinstance(value, list) and bool(value) and all(map(_is_pair, value))
            for one in value if pairs else [value]:
                self.event(key, *(one if _is_pair(one) else (one, {})))

    def _judge_header(self) -> None:
        lacking = missing_keys(*self._rules, self._logged_keys)
        if lacking:
            reason = f"{self.ruleset} asks for {', '.join(lacking)}"
            raise UserError(f"{self.path}: {reason}; add it to the header")
        refused = next((one for one in self.findings if one.severity == ERROR), None)
        if refused is not None:
            reason = f"expected {refused.expected}, found {refused.found}"
            raise UserError(f"{self.path}: {refused.rule}: {refused.message} {reason}; {refused.fix}")

    # ------------------------------------------------------------------------------------------- the clock

    def start(self) -> None:
        """Writes init_stop and run_start; call it right before the first touch of training data.

        Raises UserError if the rules refuse a record that the program has written since the header, or the time since
        init_start.
        """
        self.event("init_stop", kind=_END)
        self._judge_header()
        self.event("run_start", kind=_START)
        self.started = True
        self._begin_block()

    def stop(self, status: str | None = None, reason: str = "") -> None:
        """Writes run_stop, once. Success is written only if an evaluation met the target.

        Args:
          status: "aborted" ends a run whatever its evaluations were; None: as the evaluations say. "success" counts
            where the rules let results follow run_stop.
          reason: why it ended, for the record's metadata.
        """
        self._stopping = True  # a signal waits until run_stop is written
        try:
            if not self.stopped:
                self._write_end(status, reason)
        finally:
            self._stopping, late, self._late = False, self._late, 0
            if late:
                os.kill(os.getpid(), late)

    def _write_end(self, status: str | None, reason: str) -> None:
        self.stopped = True
        if self.started:
            self._end_block()
            later = status == "success" and self._checker.info.get("offline_evaluation")
            status = "success" if status != "aborted" and (self.reached or later) else "aborted"
            about = {"reason": reason[:200]} if reason else {}
            place = {self.unit: self._number()} if self._at else {}
            updated = self._updates.get(self._at) if status == "success" else None
            self.event("run_stop", kind=_END, metadata={"status": status, **place, **about}, time_ms=updated)
            for finding in self._checker.finish():
                self._take_finding(finding)
        if self._tee is not None:
            self._tee.close()
            self._tee = None
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.fsync(self._file)
            os.close(self._file)
            self._file = None

    def _refuse(self) -> None:
        """Ends a run whose clock has not started, and removes its log, so that another try may have the name."""
        has_log = self._file is not None and not self.started
        self.stop()
        if has_log:
            self.path.unlink(missing_ok=True)

    # ---------------------------------------------------------------------------------------- evaluations

    def checkpoint(self, time_ms: int | None = None, **place: float) -> None:
        """Notes the weight update of a checkpoint that is evaluated after the training, where the rules ask for that.

        When an evaluation of it meets the target, run_stop gets the time of this update
        (mlcommons/training_policies #596).

        Args:
          time_ms: when the update ended, in ms since 1970; None: now.
          place: the training so far, as for `evaluation`.

        Raises UserError if the rules of the benchmark let no result follow run_stop, or `place` lacks the unit.
        """
        if not self._checker.info.get("offline_evaluation"):
            reason = f"the rules of {self.benchmark} stop the clock at the evaluation"
            raise UserError(f"{self.path}: {reason}; evaluate it with `evaluated`")
        self._at = self._place_in(place)
        self._updates[self._at] = time.time_ns() // 1_000_000 if time_ms is None else time_ms
        self._end_block()
        self._begin_block()

    def _place_in(self, place: Mapping[str, float]) -> float:
        if self.unit not in place:
            raise UserError(f"{self.path}: {self.benchmark} counts {self.unit}; give {self.unit}=...")
        return place[self.unit]

    @contextlib.contextmanager
    def evaluation(self, **place: float) -> Iterator[SimpleNamespace]:
        """Brackets an evaluation, for its time in the log: set `value` of what this yields.

        Args:
          place: the training so far, as `samples_count=...` or `epoch_num=...`; see `unit`.

        Raises UserError if `place` lacks the unit.
        """
        at = self._place_in(place)
        result = SimpleNamespace(value=None)
        if self.stopped:
            yield result
            return
        self._at = at
        self._end_block()
        self.event("eval_start", kind=_START, metadata=place)
        yield result
        self._log_result(result.value, place)
        self.event("eval_stop", kind=_END, metadata=place)
        if self.reached:
            self.stop()
        elif at not in self._updates:  # else the training is over
            self._begin_block()

    def evaluated(self, value: object, **place: float) -> bool:
        """Writes a finished evaluation. Returns whether the run has met its target and ended.

        Args:
          value: the quality: a number, or {metric: number} where the rules ask for several.
          place: as for `evaluation`.
        """
        with self.evaluation(**place) as result:
            result.value = value
        return self.reached

    def _log_result(self, value: object, place: Mapping[str, float]) -> None:
        how = self._checker.info.get("aggregates")
        if how is None or not isinstance(value, Mapping):
            self.event("eval_accuracy", value, place)
            self.reached = self._checker.whole_run.best is not None
            return
        # Each metric has a record of its own; the checker joins them at the end.
        for metric, part in value.items():
            self.event("eval_accuracy", part, {**place, how["metadata"]: metric})
        self._joined += 1
        meets_target = self._checker.target is not None and self._checker.target.judge(_plain(value))
        self.reached |= bool(meets_target) and self._joined >= evaluations_needed(*self._rules, how["into"])

    def _begin_block(self) -> None:
        by_epoch = self.unit == "epoch_num"
        self._block = {"first_epoch_num" if by_epoch else self.unit: self._number() + by_epoch}
        length = {"epoch_count": self._block_epochs} if by_epoch else {}
        self.event("block_start", kind=_START, metadata=self._block | length)

    def _end_block(self) -> None:
        block, self._block = self._block, {}
        if block:
            # An epoch's block keeps its first epoch; one of samples has the samples at its start, then at its end.
            end = {self.unit: self._number()} if self.unit in block else block
            self.event("block_stop", kind=_END, metadata=end)

    def _number(self) -> float:
        return int(self._at) if float(self._at).is_integer() else self._at

    # -------------------------------------------------------------------------------------------- records

    def event(
        self, key: str, value: object = None, metadata: Mapping[str, object] | None = None, kind: str = _POINT,
        time_ms: int | None = None,
    ) -> None:  # fmt: skip
        """Writes one record, and checks it. For what the other methods do not write, such as throughput.

        `time_ms`: when it happened, in ms since 1970; None: now.

        Raises UserError if the value has no JSON form, or the disk is full.
        """
        caller = _caller()
        about = {"file": caller.f_code.co_filename, "lineno": caller.f_lineno, **(metadata or {})}
        fields = {"namespace": "", "time_ms": time_ms or time.time_ns() // 1_000_000, "event_type": kind}
        fields |= {"key": key, "value": _plain(value), "metadata": {k: _plain(v) for k, v in about.items()}}
        try:
            text = f":::MLLOG {json.dumps(fields)}"
        except (TypeError, ValueError) as error:
            raise UserError(f"{key}: {error}; log a number, a text, a list or a dictionary") from None
        self._line += 1
        self._logged_keys.add(key)
        if self._file is not None:
            try:
                # One call: a signal or a crash leaves whole lines.
                os.write(self._file, text.encode() + b"\n")
            except OSError as error:
                raise UserError(f"{self.path}: cannot write ({error.strerror}); free some space") from None
        record = Record(
            key, fields["value"], fields["metadata"], fields["time_ms"], "", kind, self._line, text[:400]
        )
        for finding in self._checker.feed(record):
            self._take_finding(finding)

    def _take_finding(self, finding: Finding) -> None:
        self.findings.append(finding)
        if self.started:
            self._tell(finding)

    # ------------------------------------------------------------------------------- exceptions and signals

    def __enter__(self) -> Run:
        try:
            self.start()
        except UserError:
            self._refuse()
            raise
        if threading.current_thread() is threading.main_thread():
            for number in filter(_is_ours_to_set, _SIGNALS):
                self._handlers[number] = signal.signal(number, self._signalled)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.stop()
            else:
                self.stop("aborted", f"{kind.__name__}: {error}")
        finally:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            if _is_ours_to_set(number):
                signal.signal(number, handler)
        self._handlers = {}

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        """Writes run_stop, then lets the signal do what it did before."""
        if self._stopping:
            self._late = number
            return
        try:
            self.stop("aborted", signal.Signals(number).name)
        finally:
            self._restore()
        os.kill(os.getpid(), number)


def _is_ours_to_set(number: int) -> bool:
    """Whether a signal is not ignored (as under nohup), and its handler is not one that only C knows."""
    return signal.getsignal(number) not in (signal.SIG_IGN, None)


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Mapping)


def _plain(value: object) -> object:
    """Converts a number of numpy, JAX or PyTorch to Python's; other values stay as they are."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():
        return item()
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    return value


def _caller() -> FrameType:
    """Returns the frame that called this module: the seed checker compares the file and line of each seed."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename in (__file__, contextlib.__file__):
        frame = frame.f_back
    return frame
