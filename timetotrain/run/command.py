"""Starts runs: `timetotrain run BENCHMARK`, which BENCHMARK/run_and_time.sh calls too. TensorFlow-free.

It plans the command of the run, generates practice data, starts the processes, and repeats the run with other seeds.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.config import automatic, benchmarks
from common.config.schema import RunConfig
from common.errors import UserError, near
from common.files import INSTALLED, ROOT
from timetotrain import flags
from timetotrain.launch import commands, containers
from timetotrain.run import help as helps
from timetotrain.run import request
from timetotrain.run.options import BenchmarkFlags, RunFlags

_PROGRAM = "timetotrain run"
_USAGE = """usage: timetotrain run BENCHMARK [--system=NAME] [--data_dir=DIR] [--FLAG=VALUE] [--config.FIELD=VALUE]
       timetotrain run BENCHMARK --help [--system=NAME]    every flag and every field

Trains a benchmark as its preset says, and times it. Without --system, the preset `here` trains your own data
(timetotrain data): it fits this machine and them. Without --data_dir too, the run is practice: it generates the data
of the preset cpu-tiny and trains on them.

benchmarks: {names}

Flags beside those of `python -m BENCHMARK`:"""
# The fields of the flags that a run's own process reads.
_PASSED_ON = [field.name for field in dataclasses.fields(BenchmarkFlags)]
_SHOWN = ("system", "data_dir", "result_dir")  # Given even at their defaults, and first.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # A series passes them on to its run.
_CLUSTERS = ("sbatch", "mpirun", "horovodrun", "gcloud")


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status, if a run does not replace this process.

    Raises:
      UserError: no such benchmark, a wrong flag, a configuration that cannot run, or no data.
    """
    if not argv or argv[0].startswith("-"):
        print(_USAGE.format(names=", ".join(benchmarks.NAMES)))
        print(
            "\n".join(
                helps.flag_lines(RunFlags, {f.name for f in dataclasses.fields(RunFlags)} - {*_PASSED_ON})
            )
        )
        return 0 if argv and argv[0] in helps.ASKS else 2
    benchmark, *words = argv
    if benchmark not in benchmarks.NAMES:
        hint = near(benchmark, benchmarks.NAMES)
        raise UserError(f"{benchmark}: no benchmark{hint}; known: {', '.join(benchmarks.NAMES)}")
    program = f"{_PROGRAM} {benchmark}"
    if helps.asked(words):
        helps.print_help(benchmark, RunFlags, program, words)
        return 0
    options, overrides = _in_root(*flags.parse(RunFlags, words, program))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.describe or options.export:  # They start no training: no data, no launcher.
        from timetotrain.run import cli

        cli.main(benchmark, _words(options, overrides))
    return Series(benchmark, options, overrides).execute()


class Series:
    """The runs that a command line asks for.

    Attributes:
      benchmark: its name.
      options: the flags, with preset and folder of data.
      practice: whether the data are generated.
    """

    def __init__(self, benchmark: str, options: RunFlags, overrides: Sequence[tuple[str, str]]):
        """Decides preset and data.

        Raises:
          UserError: the data ask for no preset.
        """
        self.benchmark, self._overrides = benchmark, overrides
        # `generate` says that the data are for practice, whatever the folder holds.
        otherwise = None if options.data_dir and options.generate is None else automatic.TINY
        options = request.with_system(options, otherwise)
        if not options.system:
            request.check_data_dir(options.data_dir, benchmark)
            raise request.no_system(benchmark, options.data_dir)
        self.practice = not options.dry_run and _is_practice(options)
        data = options.data_dir or (f".cache/{benchmark}-tiny" if self.practice else None)
        if not data and (options.dry_run or options.print_command):
            data = "none" if options.dry_run else "DATA_DIR"
        self.options = dataclasses.replace(options, data_dir=data)

    def execute(self) -> int:
        """Runs the series; returns the exit status of the last run.

        A missed target, status 1, is a result; a higher status ends the series. A single run replaces this process.

        Raises:
          UserError: the configuration cannot run, there are no data, or the launcher is not installed.
        """
        config = self._config()
        lines = [self._line(config, i) for i in range(self.options.runs)]
        if self.options.print_command:
            print("\n".join(map(shlex.join, lines)))
            return 0
        self._check(lines[0])
        if self.practice:
            tiny = [_python(), "-m", benchmarks.command(f"{self.benchmark}.tiny")]
            status, signalled = _child([*tiny, str(self.options.data_dir)])
            if status or signalled:
                return status or 128 + signal.SIGTERM
        worst = 0
        for line in lines:
            if self.options.clear_caches:
                _clear_caches()
            sys.stdout.flush()
            if len(lines) == 1:
                os.execvp(line[0], line)
            status, signalled = _child(line)
            worst = max(worst, status)
            if signalled or status > 1:
                return status
        return worst

    def _config(self) -> RunConfig:
        """Returns the configuration; data that are still to be generated have no description yet."""
        options = self.options
        if self.practice or options.data_dir in ("none", "DATA_DIR"):
            options = dataclasses.replace(options, data_dir=None)
        return request.configure(self.benchmark, options, self._overrides)[0]

    def _line(self, config: RunConfig, number: int) -> list[str]:
        """Returns the command of one run."""
        options = self.options
        if options.seed is not None or options.runs > 1:
            options = dataclasses.replace(options, seed=(options.seed or 0) + number)
        if options.clear_caches and not options.print_command:
            options = dataclasses.replace(options, cache_cleared=True)
        program = [_python(), "-m", benchmarks.command(self.benchmark), *_words(options, self._overrides)]
        where = commands.shape(config, commands.describe(config.hardware))
        launcher = commands.launcher(config, where) if options.launcher == "auto" else options.launcher
        return commands.command(config, where, launcher, program, options)

    def _check(self, line: Sequence[str]) -> None:
        elsewhere = line[0] in _CLUSTERS or any(word.startswith("--hosts=") for word in line)
        if elsewhere and self.options.clear_caches:
            raise UserError(
                "--clear_caches: it clears the caches of this machine, not of those that run; clear them there"
            )
        data = self.options.data_dir
        # The data of a cluster's run may lie there alone.
        if not (self.practice or self.options.dry_run or (elsewhere and data)):
            request.check_data_dir(data, self.benchmark)
        if shutil.which(line[0]) is None:
            fix = "LAUNCHER=none on the TPU's own host" if line[0] == "gcloud" else "another LAUNCHER"
            raise UserError(f"{line[0]}: not installed here; install it, or use {fix}")


def _words(options: RunFlags, overrides: Sequence[tuple[str, str]]) -> list[str]:
    """Returns the words that give `python -m BENCHMARK` these flags and fields."""
    fields = [f"--config.{path}={value}" for path, value in overrides]
    return [*flags.words(options, _PASSED_ON, always=_SHOWN), *fields]


def _in_root(
    options: RunFlags, overrides: Sequence[tuple[str, str]]
) -> tuple[RunFlags, list[tuple[str, str]]]:
    """Goes to a checkout's root, where commands are started; relative paths stay those of the caller's folder."""
    caller = Path(options.folder or "").resolve()
    root = caller if INSTALLED else ROOT
    os.chdir(root)

    def moved(value: str) -> str:
        absolute = not value or "://" in value or os.path.isabs(value)
        return value if absolute or caller == root else str(caller / value)

    given = {name: getattr(options, name) for name in flags.paths(RunFlags)}
    # The default folder of results is the checkout's.
    changes: dict[str, Any] = {
        name: moved(value) for name, value in given.items() if value and value != getattr(RunFlags, name)
    }
    fields = [(name, moved(value) if name in containers.PATH_FIELDS else value) for name, value in overrides]
    return dataclasses.replace(options, **changes), fields


def _is_practice(options: RunFlags) -> bool:
    """Whether a run's data are generated: of cpu-tiny, or of `here` without data."""
    if options.system == automatic.NAME:
        return not options.data_dir
    if options.system != automatic.TINY:
        return False
    if options.generate is not None:
        return options.generate
    return not options.data_dir or _generated(Path(options.data_dir))


def _generated(folder: Path) -> bool:
    """Whether generated data belong into a folder: it is new or empty, or holds generated data already."""
    return not folder.is_dir() or (folder / automatic.TINY_NOTE).exists() or not any(folder.iterdir())


def _python() -> str:
    """Returns the interpreter of the runs: $PYTHON, or this one; in a checkout its path from there, for other hosts."""
    if given := os.environ.get("PYTHON"):
        return given
    path = Path(sys.executable)
    return str(path.relative_to(ROOT)) if not INSTALLED and path.is_relative_to(ROOT) else str(path)


def _child(line: Sequence[str]) -> tuple[int, bool]:
    """Runs a command; returns its exit status, and whether a signal came meanwhile, which it passes on as SIGTERM."""
    signals: list[int] = []
    process: subprocess.Popen | None = None

    def pass_on(number: int, _: Any) -> None:
        signals.append(number)
        if process is not None:
            process.terminate()

    before = {number: signal.signal(number, pass_on) for number in _SIGNALS}
    try:
        process = subprocess.Popen(line)
        if signals:  # The signal came before there was a process.
            process.terminate()
        code = process.wait()
    except OSError as error:
        raise UserError(f"{line[0]}: {error.strerror}; is PYTHON right?") from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return (code if code >= 0 else 128 - code), bool(signals)


def _clear_caches() -> None:
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError as error:
        raise UserError(f"--clear_caches: needs root ({error.strerror})") from error
