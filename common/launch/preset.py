"""Starts a preset: python -m common.launch.preset BENCHMARK [--launcher=L] [--print_command] [OPTIONS] -- FLAGS

run_and_time.sh calls it. It starts `python -m BENCHMARK FLAGS` in as many processes as the configuration needs, by the
launcher that fits the preset's system. OPTIONS are a cluster's, and count on either side of --: --partition, --account,
--time, --project, --zone, --container, --container_runtime.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import shutil
import sys
from collections.abc import Sequence

from common.config import backend, benchmarks, here, own_data
from common.config import overrides as configs
from common.config.schema import RunConfig
from common.errors import UserError
from common.launch import commands, containers


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
    if known.system:
        config = backend.chosen(config, known.replicas, overrides)
    return own_data.filled(config, known.data_dir, overrides)


def plan(
    benchmark: str, launcher_name: str, flags: Sequence[str], options: commands.Options = commands.NO_OPTIONS
) -> list[str]:
    """Returns the command line that starts a run; the launcher "auto" is the preset's own."""
    config = configure(benchmark, flags)
    where = commands.shape(config, commands.describe(config.hardware))
    if launcher_name == "auto":
        launcher_name = commands.launcher(config, where)
    program = [os.environ.get("PYTHON", "python"), "-m", benchmarks.command(benchmark), *flags]
    return commands.command(config, where, launcher_name, program, options)


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Returns (this command's arguments, the run's flags behind --); a cluster's options count on either side."""
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
    behind = argv.index("--") if "--" in argv else len(argv)
    chosen, flags = options_parser().parse_known_args(argv[behind + 1 :])
    parser = argparse.ArgumentParser(
        parents=[parser, options_parser()], prog=parser.prog, usage=parser.usage, add_help=False
    )
    parser.set_defaults(**vars(chosen))
    return parser.parse_args(argv[:behind]), flags


def options_parser() -> argparse.ArgumentParser:
    """Returns the parser of the flags that a launcher reads, wherever they stand."""
    made = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    made.add_argument("--print_command", action="store_true", help="show the command, run nothing")
    made.add_argument("--partition", default="", help="SLURM's partition")
    made.add_argument("--account", default="", help="SLURM's account")
    made.add_argument("--time", default="", help="SLURM's limit of the job, as HH:MM:SS")
    made.add_argument("--project", default="", help="Google Cloud's project of a TPU")
    made.add_argument("--zone", default="", help="Google Cloud's zone of a TPU")
    made.add_argument(
        "--container", default="", metavar="IMAGE", help="start the run's processes in this image"
    )
    runtimes = ("auto", *containers.RUNTIMES)
    made.add_argument("--container_runtime", choices=runtimes, default="auto", help="what starts it")
    return made


def main(argv: Sequence[str]) -> int:
    """Prints the command, or replaces this process by it; returns the exit status."""
    arguments, flags = parse(argv)
    try:
        names = [field.name for field in dataclasses.fields(commands.Options)]
        options = commands.Options(**{name: getattr(arguments, name) for name in names})
        line = plan(arguments.benchmark, arguments.launcher, flags, options)
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
