"""Runs the rows of a study with the real benchmark, several at a time, and resumes row by row from their records.

`jobs` runs train at a time, each on its share of the cores. The networks are small: on two cores, two runs with one
thread each do more than one run with two (docs/studies.md has the times).
"""

import concurrent.futures
import contextlib
import dataclasses
import importlib
import json
import math
import pathlib
import shlex
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from common import files
from common.config import overrides as configs
from common.config.digest import digest
from common.distributed import process
from common.errors import UserError
from lab.studies.data import ROOT
from timetotrain.launch.children import Children
from timetotrain.run import locks, log_ending
from timetotrain.search import trial

Identity = tuple[str, int]  # A configuration's digest and a seed.
FIX = "begin the study again"  # What to do after a signal ended the runs.
VERSION = 2  # Version of the rows' records: raise it when equal configurations come to mean another run.


class Row(Protocol):
    """One run, a dataclass: a file name, the seed, its own flags."""

    id: str
    seed: int
    flags: tuple[str, ...]


def settings(**values: object) -> tuple[str, ...]:
    """Builds --config flags from keywords: `optimizer__momentum=0.9` gives --config.optimizer.momentum=0.9."""
    return tuple(f"--config.{k.replace('__', '.')}={v}" for k, v in values.items())


def identity(study: Any, row: Row, extra: Iterable[str] = ()) -> Identity:
    """Returns the digest of a row's whole configuration (including the preset) and its seed; equal ones share a run.

    Raises UserError if the configuration is not valid.
    """
    preset = importlib.import_module(f"{study.benchmark}.presets").PRESETS[study.preset]
    config = configs.override_all(preset, [*row.flags, *extra])
    config.validate()
    return digest(config), row.seed


class Runner:
    """Runs rows, keeps a record of each in results/study-NAME/rows, and skips rows that have one."""

    def __init__(
        self,
        study: Any,
        minutes: float | None = None,
        overrides: Iterable[str] = (),
        jobs: int = 1,
        done: Mapping[Identity, dict] | None = None,
    ):
        """Checks the arguments; trains nothing.

        Args:
          study: name, `python -m BENCHMARK --system=PRESET`, `data` that makes the data folder, flags.
          minutes: time limit after which no further row starts.
          overrides: flags of every run, besides the study's.
          jobs: number of rows that train at the same time.
          done: records of runs to keep instead of training them, from `published`.

        Raises UserError if a number is not above 0, or an override names no field of the configuration.
        """
        for name, value in (("jobs", jobs), ("minutes", minutes)):
            if value is not None and value <= 0:
                raise UserError(f"--{name}={value:g}: must be above 0")
        if others := configs.split_overrides([*overrides])[1]:
            raise UserError(
                f"{others[0]}: only --config.FIELD=VALUE may follow --; the rest is the study's to say"
            )
        self.study, self.jobs = study, jobs
        self.extra = (*study.flags, *overrides)
        self.folder = ROOT / "results" / f"study-{study.name}"
        self._deadline = time.monotonic() + minutes * 60 if minutes else math.inf
        self._done = done or {}
        self._data: pathlib.Path | None = None
        self._children = Children(FIX)

    def record(self, row: Row) -> dict | None:
        """Returns the record of a finished row, or None.

        Raises UserError if the record was written by another version of the study, or is damaged.
        """
        path, expected = self._path(row), identity(self.study, row, self.extra)
        if not path.is_file():
            return self._done.get(expected)
        try:
            record = json.loads(path.read_text())
            same = (record["version"], record["config"]) == (VERSION, expected[0])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: no record of this study ({error}); delete it") from error
        if not same:
            raise UserError(f"{path}: written by another version of the study; move {self.folder} away")
        return record

    def run_all(self, rows: Sequence[Row]) -> list[dict]:
        """Trains `rows`, `jobs` at a time; returns their records in order, without rows that ran out of time.

        Raises UserError if a run failed, a signal ended the runs, or another call of the study trains. After a failure,
        runs that had started finish first, and no further run starts.
        """
        ended = threading.Event()

        def run_unless_ended(row: Row) -> dict | None:
            try:
                return None if ended.is_set() else self._run(row)
            except BaseException:
                ended.set()  # Set here, because the main thread may wait an hour for an earlier row.
                raise

        with contextlib.ExitStack() as stack:
            if any(self.record(row) is None for row in rows) and not self._time_is_up():
                stack.enter_context(self._locked())
                self._data = self._data or self.study.data()
            stack.enter_context(self._children.signals)
            pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(self.jobs))
            futures = [pool.submit(run_unless_ended, row) for row in rows]
            try:
                return [record for f in futures if (record := f.result())]
            except BaseException:
                ended.set()
                raise

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps another call of the study from removing what this one's runs write."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / locks.NAME, "a") as file:
            locks.lock(file, self.folder / locks.NAME, "wait for it")
            yield

    def _run(self, row: Row) -> dict | None:
        """Trains a row unless it is finished; returns its record, or None when the time is up."""
        done = self.record(row)
        if done is not None or self._time_is_up():
            return done
        record = self._train(row)
        files.write_atomically(self._path(row), json.dumps(record, indent=1).encode())
        print(f"{row.id}: {record['quality']} after {record['minutes']:.1f} minutes", flush=True)
        return record

    def _time_is_up(self) -> bool:
        return time.monotonic() > self._deadline

    def _path(self, row: Row) -> pathlib.Path:
        return self.folder / "rows" / f"{row.id}.json"

    def _train(self, row: Row) -> dict:
        # What an interrupted run left goes: one that resumed would lack a part of its curve and its time to train.
        results = self.folder / "logs" / row.id
        shutil.rmtree(results, ignore_errors=True)
        results.mkdir(parents=True, exist_ok=True)
        flags = [*row.flags, *self.extra]
        common = [f"--system={self.study.preset}", f"--data_dir={self._data}", f"--seed={row.seed}"]
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **process.core_share(self.jobs)}
        status, command = trial.attempt(
            self.study.benchmark, [*common, *flags], results, self._children, environment
        )
        # An exception makes Python exit with 1, as a missed target does; the log tells them apart.
        end = trial.ending_of(results)
        if status not in (0, 1) or end is None or not end.whole:
            last = trial.last_line(results) or "no message"
            raise UserError(
                f"{shlex.join(command)} failed: {last} (all of it: {results / 'output.txt'})", status or 1
            )
        about = {"flags": flags, "config": identity(self.study, row, self.extra)[0], "version": VERSION}
        return {**dataclasses.asdict(row), **_summary(end), **about}


def published(path: pathlib.Path) -> dict[Identity, dict]:
    """Reads the records of a table that `legw_report.publish` wrote.

    Raises UserError if the table does not exist, or another version of the study wrote it.
    """
    try:
        records = json.loads(path.read_text())
        if any(r["version"] != VERSION for r in records):
            raise UserError(f"{path}: written by another version of the study; move it away")
        return {(r["config"], r["seed"]): r for r in records}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: no table of this study ({error}); move it away") from error


def _summary(end: log_ending.Ending) -> dict:
    """Returns the results in a log: every evaluation, and the last one as the quality."""
    return {
        "quality": end.quality,
        "evaluations": list(end.evaluations),
        "diverged": end.diverged,
        "minutes": end.minutes,
    }
