"""Starts a preset: python -m common.launch.preset BENCHMARK [--launcher=L] [--print_command] -- FLAGS

run_and_time.sh calls it. It starts `python -m BENCHMARK FLAGS` in as many processes as the configuration needs, by the
launcher that fits the preset's system.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence

from common.config import benchmarks, here, own_data
from common.config import overrides as configs
from common.config.schema import RunConfig
from common.errors import UserError
from common.launch import commands


def configure(benchmark: str, flags: Sequence[str]) -> RunConfig:
    """Returns the configuration that `python -m BENCHMARK FLAGS` would train.

    Raises:
      UserError: a preset or field is unknown, or fields contradict each other.
    """
    module = benchmarks.module(benchmark, "presets")
    overrides, rest = configs.split_overrides(flags)
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False, prefix_chars="-")
    reader.add_argument("--system", "-system")
    reader.add_argument("--replicas", "-replicas")
    reader.add_argument("--data_dir", "-data_dir")
    known, _ = reader.parse_known_args(rest)
    if known.system == here.NAME:
        return here.configure(module, overrides, known.replicas, None, known.data_dir)[0]
    config = configs.configure(module.PRESETS, module.Config, known.system, overrides, known.replicas)
    return own_data.filled(config, known.data_dir, overrides)


def plan(benchmark: str, launcher_name: str, flags: Sequence[str]) -> list[str]:
    """Returns the command line that starts a run; the launcher "auto" is the preset's own."""
    config = configure(benchmark, flags)
    where = commands.shape(config, commands.describe(config.hardware))
    if launcher_name == "auto":
        launcher_name = commands.launcher(config, where)
    program = [os.environ.get("PYTHON", "python"), "-m", benchmarks.command(benchmark), *flags]
    return commands.command(config, where, launcher_name, program)


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Returns (this command's arguments, the run's flags behind --); --print_command counts on either side."""
    parser = argparse.ArgumentParser(
        prog="python -m common.launch.preset", usage="%(prog)s BENCHMARK [options] -- FLAGS"
    )
    parser.add_argument("benchmark")
    parser.add_argument(
        "--launcher",
        choices=("auto", *commands.LAUNCHERS),
        default="auto",
        help="in place of the preset's own",
    )
    parser.add_argument("--print_command", action="store_true", help="show the command, run nothing")
    behind = argv.index("--") if "--" in argv else len(argv)
    arguments = parser.parse_args(argv[:behind])
    flags = list(argv[behind + 1 :])
    arguments.print_command |= "--print_command" in flags
    return arguments, [flag for flag in flags if flag != "--print_command"]


def main(argv: Sequence[str]) -> int:
    """Prints the command, or replaces this process by it; returns the exit status."""
    arguments, flags = parse(argv)
    try:
        line = plan(arguments.benchmark, arguments.launcher, flags)
        if arguments.print_command:
            print(shlex.join(line))
            return 0
        _become(line)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _become(line: Sequence[str]) -> None:
    if shutil.which(line[0]) is None:
        fix = "LAUNCHER=none on the TPU's own host" if line[0] == "gcloud" else "another LAUNCHER"
        raise UserError(f"{line[0]}: not installed here; install it, or use {fix}")
    sys.stdout.flush()
    os.execvp(line[0], list(line))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
