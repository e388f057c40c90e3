"""Starts runs: `timetotrain run BENCHMARK`, which BENCHMARK/run_and_time.sh also calls. TensorFlow-free.

It builds the run's command, generates practice data, starts the processes, and repeats the run with other seeds.
"""

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
from timetotrain.launch.watch.signals import caught
from timetotrain.run import data_folder, request
from timetotrain.run import help as helps
from timetotrain.run.options import BenchmarkFlags, RunFlags

_PROGRAM = "timetotrain run"
_USAGE = """usage: timetotrain run BENCHMARK [--system=NAME] [--data_dir=DIR] [--FLAG=VALUE] [--config.FIELD=VALUE]
       timetotrain run BENCHMARK --help [--system=NAME]    every flag and every field

Trains a benchmark as its preset says, and times it. Without --system, the preset `here` trains your own data
(timetotrain data): it fits this machine and them. Without --data_dir too, the run is practice: it generates the data
of the preset cpu-tiny and trains on them.

benchmarks: {names}

Flags beside those of `python -m BENCHMARK`:"""
# The flags that the run's own process reads.
_PASSED_ON = [field.name for field in dataclasses.fields(BenchmarkFlags)]
_SHOWN = ("system", "data_dir", "result_dir")  # Always given, and first.
_CLUSTERS = ("sbatch", "mpirun", "gcloud")


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status, unless a run replaces this process.

    Raises UserError if the benchmark is unknown, a flag is wrong, the configuration cannot run, or there are no data.
    """
    if argv and argv[0] in helps.ASKS:
        print(_USAGE.format(names=", ".join(benchmarks.NAMES)))
        print(
            "\n".join(
                helps.flag_lines(RunFlags, {f.name for f in dataclasses.fields(RunFlags)} - {*_PASSED_ON})
            )
        )
        return 0
    if not argv or argv[0].startswith("-"):
        raise UserError(f"name a benchmark first: {', '.join(benchmarks.NAMES)}; see {_PROGRAM} --help")
    benchmark, *words = argv
    if benchmark not in benchmarks.NAMES:
        hint = near(benchmark, benchmarks.NAMES)
        raise UserError(f"{benchmark}: no benchmark{hint}; known: {', '.join(benchmarks.NAMES)}")
    program = f"{_PROGRAM} {benchmark}"
    if helps.asks_for_help(words):
        helps.print_help(benchmark, RunFlags, program, words)
        return 0
    options, overrides = _in_root(*flags.parse(RunFlags, words, program))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.describe or options.export:  # Neither trains, so neither needs data or a launcher.
        from timetotrain.run import cli

        cli.main(benchmark, _words(options, overrides))
    return Series(benchmark, options, overrides).execute()


class Series:
    """The runs that a command line requests.

    Attributes:
      benchmark: its name.
      options: the flags, with the preset and data folder filled in.
      practice: whether the data are generated practice data.
    """

    def __init__(self, benchmark: str, options: RunFlags, overrides: Sequence[tuple[str, str]]):
        """Chooses preset and data. Raises UserError if the data do not determine a preset."""
        self.benchmark, self._overrides = benchmark, overrides
        # `generate` means practice data, whatever the folder contains.
        otherwise = None if options.data_dir and options.generate is None else automatic.TINY
        options = request.with_system(options, otherwise)
        if not options.system:
            data_folder.check(options.data_dir, benchmark)
            raise data_folder.no_system(benchmark, options.data_dir)
        self.practice = not options.dry_run and _is_practice(options)
        data = options.data_dir or (f".cache/{benchmark}-tiny" if self.practice else None)
        if not data and (options.dry_run or options.print_command):
            data = "none" if options.dry_run else "DATA_DIR"
        self.options = dataclasses.replace(options, data_dir=data)

    def execute(self) -> int:
        """Runs the series; returns the worst exit status, or the one that ended the series.

        A missed target (status 1) is a result; a higher status ends the series. A single run is this process's own, or
        its launcher replaces this process. Raises UserError if the configuration cannot run, there are no data, or the
        launcher is not installed.
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
                if self._starts_here(line):
                    from timetotrain.run import cli

                    cli.main(self.benchmark, line[3:])
                os.execvp(line[0], line)
            status, signalled = _child(line)
            worst = max(worst, status)
            if signalled or status > 1:
                return status
        return worst

    def _config(self) -> RunConfig:
        """Returns the configuration; data that are yet to be generated have no description."""
        options = self.options
        if self.practice or options.data_dir in ("none", "DATA_DIR"):
            options = dataclasses.replace(options, data_dir=None)
        return request.configure(self.benchmark, options, self._overrides)[0]

    def _line(self, config: RunConfig, number: int) -> list[str]:
        """Returns one run's command."""
        options = self.options
        if options.seed is not None or options.runs > 1:
            options = dataclasses.replace(options, seed=(options.seed or 0) + number)
        if options.clear_caches and not options.print_command:
            options = dataclasses.replace(options, cache_cleared=True)
        program = [_python(), "-m", benchmarks.command(self.benchmark), *_words(options, self._overrides)]
        where = commands.shape(config, commands.describe(config.hardware))
        launcher = commands.launcher(config, where) if options.launcher == "auto" else options.launcher
        return commands.command(config, where, launcher, program, options)

    def _starts_here(self, line: Sequence[str]) -> bool:
        """Whether a command is one process of this interpreter, without a launcher, so that it needs no other one."""
        python = os.path.abspath(shutil.which(line[0]) or line[0])
        same_module = line[1:3] == ["-m", benchmarks.command(self.benchmark)]
        return same_module and python == os.path.abspath(sys.executable)

    def _check(self, line: Sequence[str]) -> None:
        elsewhere = line[0] in _CLUSTERS or any(word.startswith("--hosts=") for word in line)
        if elsewhere and self.options.clear_caches:
            raise UserError(
                "--clear_caches: it clears the caches of this machine, not of those that run; clear them there"
            )
        data = self.options.data_dir
        # A cluster run's data may exist only on the cluster.
        if not (self.practice or self.options.dry_run or (elsewhere and data)):
            data_folder.check(data, self.benchmark)
        if shutil.which(line[0]) is None:
            fix = "LAUNCHER=none on the TPU's own host" if line[0] == "gcloud" else "another LAUNCHER"
            raise UserError(f"{line[0]}: not installed here; install it, or use {fix}")


def _words(options: RunFlags, overrides: Sequence[tuple[str, str]]) -> list[str]:
    """Returns the words that pass these flags and fields to `python -m BENCHMARK`."""
    fields = [f"--config.{path}={value}" for path, value in overrides]
    return [*flags.words(options, _PASSED_ON, always=_SHOWN), *fields]


def _in_root(
    options: RunFlags, overrides: Sequence[tuple[str, str]]
) -> tuple[RunFlags, list[tuple[str, str]]]:
    """Changes to a checkout's root, where commands start; relative paths still refer to the caller's folder."""
    caller = Path(options.folder or "").resolve()
    root = caller if INSTALLED else ROOT
    os.chdir(root)

    def moved(value: str) -> str:
        absolute = not value or "://" in value or os.path.isabs(value)
        return value if absolute or caller == root else str(caller / value)

    values = {name: getattr(options, name) for name in flags.paths(RunFlags)}
    # The default results folder is in the checkout.
    changes: dict[str, Any] = {
        name: moved(value) for name, value in values.items() if value and value != getattr(RunFlags, name)
    }
    fields = [(name, moved(value) if name in containers.PATH_FIELDS else value) for name, value in overrides]
    return dataclasses.replace(options, **changes), fields


def _is_practice(options: RunFlags) -> bool:
    """Whether a run uses generated data: cpu-tiny, or `here` without data."""
    if options.system == automatic.NAME:
        return not options.data_dir
    if options.system != automatic.TINY:
        return False
    if options.generate is not None:
        return options.generate
    if not options.data_dir:
        return True
    # Generated data may go into a folder that is new or empty, or already holds generated data.
    folder = Path(options.data_dir)
    return not folder.is_dir() or (folder / automatic.TINY_NOTE).exists() or not any(folder.iterdir())


def _python() -> str:
    """Returns the runs' interpreter: $PYTHON, or this one (in a checkout as a relative path, valid on other hosts)."""
    if executable := os.environ.get("PYTHON"):
        return executable
    path = Path(sys.executable)
    return str(path.relative_to(ROOT)) if not INSTALLED and path.is_relative_to(ROOT) else str(path)


def _child(line: Sequence[str]) -> tuple[int, bool]:
    """Runs a command, forwarding any signal as SIGTERM; returns its exit status and whether a signal came."""
    signals: list[int] = []
    process: subprocess.Popen | None = None

    def pass_on(number: int, _: Any) -> None:
        signals.append(number)
        if process is not None:
            process.terminate()

    before = {number: signal.signal(number, pass_on) for number in caught()}
    try:
        process = subprocess.Popen(line)
        if signals:  # The signal came before the process started.
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
