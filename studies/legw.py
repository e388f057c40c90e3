"""LEGW's figures as a table of runs: one row a run of the real benchmark, resumed row by row.

Sources: "Large-Batch Training for LSTM and Beyond", figures 1 and 4 to 7. Every row is `python -m BENCHMARK` with
flags, in a process of its own, to the end of its epochs; the quality that counts is that of the last evaluation, on the
test set. The base rate is tuned with `--tune`, which evaluates on held-out data and never touches the test set.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import pathlib
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

from common.errors import UserError
from studies import legw_report
from studies.data import ROOT

VERSION = 1  # Of the rows' records: raise it when the same flags mean another run.
SEEDS = 3  # Of the smallest and the largest batch; the others have one.


@dataclasses.dataclass(frozen=True)
class Study:
    """What differs between the benchmarks.

    Attributes:
      name: of the study, and its folder in studies/.
      benchmark: the package.
      preset: base configuration, at the base batch.
      batch: of the preset.
      rate: base rate of the preset.
      factors: by which the batch is multiplied.
      never: a quality target that no run meets, so that all train for their epochs.
      lower_is_better: perplexity, not accuracy.
      unit: of the quality, for axes.
      held_out: flags that evaluate on held-out data.
      tuned_rates: figure 6, at the largest batch.
      base_rates: tried by `--tune` at the base batch.
      long_epochs: of figure 7.
      long_flags: what else is longer there.
      solvers: {name: flags}, each at its tuned or its usual rate.
      poly: flags of polynomial decay in place of the preset's schedule.
      data: makes the data folder.
    """

    name: str
    benchmark: str
    preset: str
    batch: int
    rate: float
    factors: tuple[int, ...]
    never: float
    lower_is_better: bool
    unit: str
    held_out: tuple[str, ...]
    tuned_rates: tuple[float, ...]
    base_rates: tuple[float, ...]
    long_epochs: int
    long_flags: tuple[str, ...]
    solvers: dict[str, tuple[str, ...]]
    poly: tuple[str, ...]
    data: Callable[[], pathlib.Path]

    @property
    def largest(self) -> int:
        return self.factors[-1]


@dataclasses.dataclass(frozen=True)
class Row:
    """One run.

    Attributes:
      part: "methods" (figures 1, 4 and 5), "solvers", "rates" (figure 6), "long" (figure 7) or "tune".
      method: what is compared in the part.
      batch, rate: of the run; rate None is the solver's.
      seed: of the run.
      flags: of `python -m BENCHMARK`, besides data and result folders.
    """

    part: str
    method: str
    batch: int
    rate: float | None
    seed: int
    flags: tuple[str, ...]

    @property
    def id(self) -> str:
        rate = "" if self.rate is None else f"-{self.rate:.4g}"
        return f"{self.part}-{self.method}-{self.batch}{rate}-{self.seed}"


def _set(**values: object) -> tuple[str, ...]:
    """Flags from `optimizer__momentum=0.9`."""
    return tuple(f"--config.{k.replace('__', '.')}={v}" for k, v in values.items())


def _batch(study: Study, k: int, rate: float, warmup: float = 0.0) -> tuple[str, ...]:
    return _set(
        global_batch_size=study.batch * k,
        optimizer__base_learning_rate=rate,
        schedule__warmup_epochs=warmup,
    )


def methods(study: Study, k: int) -> dict[str, tuple[float | None, tuple[str, ...]]]:
    """{method: (rate, flags)} of figures 1, 4 and 5 at k times the base batch."""
    linear = study.rate * k
    return {
        "legw": (study.rate * math.sqrt(k), _set(legw=k)),
        "unscaled": (study.rate, _batch(study, k, study.rate)),
        "linear": (linear, _batch(study, k, linear)),
        "linear-poly": (linear, (*_batch(study, k, linear), *study.poly)),
        "linear-poly-warmup": (linear, (*_batch(study, k, linear, 5.0), *study.poly)),
        "adam": (None, (*_batch(study, k, 0.0), *study.solvers["adam"])),  # Its own rate comes last.
    }


def rows(study: Study) -> Iterable[Row]:
    """All rows but those whose rate depends on others, the most telling first."""
    ends = (1, study.largest)
    for k in study.factors:
        rate, flags = methods(study, k)["legw"]
        for seed in range(SEEDS if k in ends else 1):
            yield Row("methods", "legw", study.batch * k, rate, seed, flags)
    yield from _competitors(study, study.largest)
    for rate in study.tuned_rates:
        batch = study.batch * study.largest
        yield Row("rates", "tuned", batch, rate, 0, _batch(study, study.largest, rate))
    for solver, flags in study.solvers.items():
        yield Row("solvers", solver, study.batch, None, 0, flags)
    for k in reversed(study.factors[:-1]):
        yield from _competitors(study, k)


def _competitors(study: Study, k: int) -> Iterable[Row]:
    for method, (rate, flags) in methods(study, k).items():
        # At the base batch the linear rate is the unscaled one.
        if method != "legw" and (k, method) != (1, "linear"):
            yield Row("methods", method, study.batch * k, rate, 0, flags)


def long_rows(study: Study, best_rate: float) -> Iterable[Row]:
    """Figure 7: LEGW and the best tuned rate, with many more epochs."""
    k, more = study.largest, (*_set(train_epochs=study.long_epochs), *study.long_flags)
    rate, flags = methods(study, k)["legw"]
    yield Row("long", "legw", study.batch * k, rate, 0, (*flags, *more))
    yield Row("long", "tuned", study.batch * k, best_rate, 0, (*_batch(study, k, best_rate), *more))


def tune_rows(study: Study) -> Iterable[Row]:
    """Base rates at the base batch, on held-out data."""
    for rate in study.base_rates:
        flags = (*_set(optimizer__base_learning_rate=rate), *study.held_out)
        yield Row("tune", "base", study.batch, rate, 0, flags)


class Runner:
    """Runs rows, keeps a record of each in results/study-NAME/rows, and skips those that have one."""

    def __init__(
        self, study: Study, epochs: float | None, minutes: float | None, overrides: Iterable[str] = ()
    ):
        """`epochs` replaces the preset's, for a trial; no row is started after `minutes`; `overrides` are flags."""
        self.study = study
        self.extra = (*overrides, *(_set(train_epochs=epochs) if epochs else ()))
        trial = f"-trial-{epochs:g}" if epochs else ""
        self.folder = ROOT / "results" / f"study-{study.name}{trial}"
        self._deadline = time.monotonic() + minutes * 60 if minutes else math.inf
        self._data: pathlib.Path | None = None

    def record(self, row: Row) -> dict | None:
        """The record of a finished row, or None.

        Raises:
          UserError: it was written by another version of the study, or is damaged.
        """
        path = self._path(row)
        if not path.is_file():
            return None
        try:
            record = json.loads(path.read_text())
            same = record["version"] == VERSION and record["flags"] == [*row.flags, *self.extra]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: no record of this study ({error}); delete it") from error
        if not same:
            raise UserError(f"{path}: written by another version of the study; move {self.folder} away")
        return record

    def run(self, row: Row) -> dict | None:
        """Trains a row unless it is done; None when the time is up."""
        done = self.record(row)
        if done is not None:
            return done
        if time.monotonic() > self._deadline:
            return None
        record = self._train(row)
        path = self._path(row)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(record, indent=1))
        partial.replace(path)
        print(f"{row.id}: {record['quality']} after {record['minutes']:.1f} minutes", flush=True)
        return record

    def _path(self, row: Row) -> pathlib.Path:
        return self.folder / "rows" / f"{row.id}.json"

    def _train(self, row: Row) -> dict:
        self._data = self._data or self.study.data()
        # A row that was interrupted leaves a log: each try has a folder of its own.
        results = self.folder / "logs" / f"{row.id}-{os.getpid()}"
        flags = [*row.flags, *self.extra]
        command = [sys.executable, "-m", self.study.benchmark, f"--system={self.study.preset}"]
        command += [f"--data_dir={self._data}", f"--result_dir={results}", f"--seed={row.seed}", "--run=0"]
        command += [*_set(quality_target=self.study.never, division="open"), *flags]
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise UserError(
                f"{shlex.join(command)} failed: {done.stderr.strip().splitlines()[-1:]}", done.returncode
            )
        log = results / self.study.preset / self.study.benchmark / "result_0.txt"
        return {**dataclasses.asdict(row), **_summary(log), "flags": flags, "version": VERSION}


def _summary(log: pathlib.Path) -> dict:
    """What a log says: every evaluation, the last one as the quality (None after a loss that is no number)."""
    from compliance.logs import Record, read_log

    found = [r for r in read_log(log) if isinstance(r, Record)]
    times = {r.key: r.time_ms for r in found}
    stop = next(r for r in found if r.key == "run_stop")
    diverged = "loss is" in stop.metadata.get("reason", "")
    evaluations = [r.value for r in found if r.key == "eval_accuracy"]
    return {
        "quality": None if diverged or not evaluations else evaluations[-1],
        "evaluations": evaluations,
        "diverged": diverged,
        "minutes": (times["run_stop"] - times["run_start"]) / 60000,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `python -m studies legw-...`."""
    parser.add_argument("--tune", action="store_true", help="try base rates, on held-out data only")
    parser.add_argument("--parts", default="methods,rates,solvers,long", help="which of these, by commas")
    parser.add_argument("--limit", type=int, help="train at most so many rows now")
    parser.add_argument("--minutes", type=float, help="start no row after so many minutes")
    parser.add_argument("--epochs", type=float, help="a trial: so many epochs, in a folder of its own")
    parser.add_argument("overrides", nargs="*", help="flags of every run, after --: --config.precision=bf16")
    parser.add_argument(
        "--list", action="store_true", help="print the rows and which are done; train nothing"
    )


def run(study: Study, args: argparse.Namespace) -> int:
    """Trains what is missing, then writes table and pictures of what there is."""
    runner = Runner(study, args.epochs, args.minutes, args.overrides)
    parts = args.parts.split(",")
    unknown = set(parts) - {"methods", "rates", "solvers", "long"}
    if unknown:
        raise UserError(f"--parts={args.parts}: unknown {min(unknown)}; known: methods, rates, solvers, long")
    table = list(tune_rows(study)) if args.tune else [r for r in rows(study) if r.part in parts]
    if args.list:
        for row in table:
            done = runner.record(row)
            print(f"{row.id:40} {done['quality'] if done else '-'}")
        return 0
    records, trained = [], 0
    for row in _with_long(study, table, records, "long" in parts and not args.tune):
        done = runner.record(row)
        if done is None and args.limit is not None and trained >= args.limit:
            continue
        trained += done is None
        record = runner.run(row)
        if record:
            records.append(record)
    target = runner.folder if args.epochs else ROOT / "studies" / study.name
    legw_report.publish(study, records, target, "tune" if args.tune else "results")
    return 0


def _with_long(study: Study, table: list[Row], records: list[dict], wanted: bool) -> Iterable[Row]:
    """The rows, then those of figure 7, once the best rate of figure 6 is among `records`."""
    yield from table
    swept = [r for r in records if r["part"] == "rates" and r["quality"] is not None]
    if wanted and len(swept) == len(study.tuned_rates):
        sign = 1 if study.lower_is_better else -1
        yield from long_rows(study, min(swept, key=lambda r: sign * r["quality"])["rate"])
