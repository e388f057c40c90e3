"""`timetotrain run BENCHMARK`: what BENCHMARK/run_and_time.sh does, with flags for its variables. TensorFlow-free."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from common.config import automatic, benchmarks
from common.errors import UserError, near
from common.files import INSTALLED, ROOT
from timetotrain.launch import commands

# Flags of a run that starts no training: it needs no data, and no launcher.
_ALONE = ("describe", "export")
_USAGE = """usage: timetotrain run BENCHMARK [--system=NAME] [--data_dir=DIR] [--FLAG=VALUE] [--config.FIELD=VALUE]
       timetotrain run BENCHMARK --help [--system=NAME]    every flag and every field

Trains a benchmark as its preset says, and times it. Without --system, data of your own (timetotrain data) are trained
by the preset here, which fits this machine and them; without --data_dir too it is a practice run: preset cpu-tiny,
whose data are generated.

benchmarks: {names}

Flags beside those of the benchmark:
  --launcher=NAME   {launchers}; default auto, the preset's own
  --runs=N          so many runs, with the seeds --seed, --seed + 1, ...
  --partition, --account, --time   of a SLURM job
  --project, --zone                of a TPU in Google's cloud
  --container=IMAGE [--container_runtime=docker|apptainer|pyxis]   start the processes in this image
  --clear_caches    drop the system's page cache before each run (needs root)
  --print_command   print the command, run nothing"""


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status, if this process is not replaced by the run.

    Raises:
      UserError: no such benchmark, or a flag without its value.
    """
    if not argv or argv[0].startswith("-"):
        launchers = ", ".join(commands.LAUNCHERS)
        print(_USAGE.format(names=", ".join(benchmarks.NAMES), launchers=launchers))
        return 0 if argv and argv[0] in ("-h", "--help") else 2
    benchmark, *words = argv
    if benchmark not in benchmarks.NAMES:
        hint = near(benchmark, benchmarks.NAMES)
        raise UserError(f"{benchmark}: no benchmark{hint}; known: {', '.join(benchmarks.NAMES)}")
    options, flags = _split(words)
    from timetotrain.run import help as helps

    if helps.asked(words) or any(_given(flags, name) for name in _ALONE):
        # In this process: help shall answer at once.
        from timetotrain.run import cli

        named = {"system": options.system, "data_dir": options.data_dir, "seed": options.seed}
        known = [f"--{name}={value}" for name, value in named.items() if value]
        sys.argv = [f"timetotrain run {benchmark}", *known, *flags]
        cli.main(benchmark)
    command, variables = plan(benchmark, options, flags)
    os.environ.update(variables)
    sys.stdout.flush()
    return os.execv(command[0], command)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the flags that this verb adds to, or reads of, those of a benchmark."""
    made = argparse.ArgumentParser(
        prog="timetotrain run", add_help=False, allow_abbrev=False, exit_on_error=False
    )
    made.add_argument("--system")
    made.add_argument("--data_dir")
    made.add_argument("--result_dir")
    made.add_argument("--seed")
    made.add_argument("--launcher")
    made.add_argument("--runs")
    made.add_argument("--clear_caches", action="store_true")
    made.add_argument("--print_command", action="store_true")
    return made


def plan(
    benchmark: str, options: argparse.Namespace, flags: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Returns the command that runs a benchmark, and the environment variables that it needs.

    Args:
      benchmark: its name.
      options: what `parser` reads.
      flags: the other flags, which go to `python -m BENCHMARK`.

    Raises:
      UserError: no folder of data is named, or no preset for it.
    """
    from timetotrain.run.cli import check_data_dir, no_system

    system, data = options.system or automatic.fitting(options.data_dir), options.data_dir
    if not system and data:
        check_data_dir(data, benchmark)
        raise no_system(benchmark, data)
    if data and system != options.system:
        print(automatic.taken(system, data), file=sys.stderr)
    system = system or automatic.TINY
    dry = _given(flags, "dry_run")
    generate = system == automatic.TINY and not dry and (not data or _generated(Path(data)))
    generate |= system == automatic.NAME and not dry and not data
    if not (generate or dry or options.print_command):
        check_data_dir(data, benchmark)
    variables = {"SYSTEM": system, "PYTHON": _python(), "GENERATE": str(int(generate))}
    named = {
        "DATA_DIR": data or ("none" if dry else None),
        "RESULT_DIR": options.result_dir,
        "SEED": options.seed,
        "NEXP": options.runs,
        "LAUNCHER": options.launcher,
        "CLEAR_CACHES": "1" if options.clear_caches else "0",
        "PRINT_COMMAND": "1" if options.print_command else "0",
    }
    variables |= {name: value for name, value in named.items() if value is not None}
    return [str(ROOT / "timetotrain/run_and_time.sh"), benchmark, *flags], variables


def _python() -> str:
    """Returns this interpreter; the one in a checkout relative to it, as other machines have it."""
    path = Path(sys.executable)
    return str(path.relative_to(ROOT)) if not INSTALLED and path.is_relative_to(ROOT) else str(path)


def _generated(folder: Path) -> bool:
    """Whether generated data belong into a folder: it is new or empty, or holds generated data already."""
    from common.data.tiny_data import NOTE

    return not folder.is_dir() or (folder / NOTE).exists() or not any(folder.iterdir())


def _split(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    try:
        return parser().parse_known_args(words)
    except argparse.ArgumentError as error:
        raise UserError(f"{error}; see timetotrain run --help") from None


def _given(flags: Sequence[str], name: str) -> bool:
    return any(flag.lstrip("-").partition("=")[0] == name for flag in flags if flag.startswith("-"))
