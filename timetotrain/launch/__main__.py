"""Starts the processes of a run: timetotrain launch --replicas=BACKEND --processes=N -- COMMAND"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import sys
from collections.abc import Sequence

from common.config import fields
from common.distributed.listening import ALLOWED
from common.errors import Parser, UserError, answering, outlive_output
from timetotrain.launch import plan, settings
from timetotrain.launch.local import Job, launch
from timetotrain.launch.watch.loop import Limits


def parser() -> argparse.ArgumentParser:
    """Returns the parser; its flags use underscores, as the benchmarks' flags do."""
    flags = Parser(
        prog="timetotrain launch",
        description="Runs COMMAND in several processes that train together, watches them, and ends them all "
        "when one fails.",
        epilog="example: timetotrain launch --replicas=horovod --processes=2 -- python -m resnet "
        "--system=cpu-tiny --data_dir=DIR --replicas=horovod --config.num_replicas=2",
    )
    flags.add_argument("--replicas", choices=plan.BACKENDS, required=True, help="how the processes talk")
    flags.add_argument("--processes", type=int, help="how many; on all hosts together")
    flags.add_argument(
        "--hosts",
        help="HOST:PROCESSES,... of all machines, or @FILE with lines HOST slots=PROCESSES: start the same command "
        "on each; or `slurm` within slurm.sbatch (default: this machine)",
    )
    flags.add_argument(
        "--launcher", type=int, help="which of --hosts this is, from 0 (default: mpirun's number, else 0)"
    )
    flags.add_argument("--port", type=int, default=plan.PORT, help="where several hosts meet (%(default)s)")
    flags.add_argument(
        "--max_restarts", type=int, default=0, metavar="N",
        help="after a failure, start all processes again, at most N times from one checkpoint (%(default)s)",
    )  # fmt: skip
    flags.add_argument(
        "--allow_public",
        action="store_true",
        help="let the processes listen on a public address: whoever reaches a port there can run code",
    )
    flags.add_argument(
        "--settings",
        default="",
        metavar="NAME",
        help="set the variables of a system in timetotrain/launch/settings.json",
    )
    flags.add_argument(
        "--check",
        action="store_true",
        help="start no run: check names, clocks, versions, free space, data, sums between the processes and each "
        "device's product, a line each",
    )
    meanings = fields.meanings(Limits)
    for field in dataclasses.fields(Limits):
        about = meanings[field.name].rstrip(".") + " (%(default)s)"
        name = f"--{field.name}_seconds"
        flags.add_argument(name, type=float, default=field.default, metavar="S", help=about)
    flags.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    return flags


def job(arguments: argparse.Namespace) -> Job:
    """Returns the job that the command line describes.

    Raises UserError if an argument is missing or wrong, or two arguments contradict each other.
    """
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if arguments.check:
        command = [sys.executable, "-m", "timetotrain.run.preflight", arguments.replicas, *command]
    if not command:
        raise UserError("no command; put it behind --, as in -- python -m resnet --system=cpu-tiny")
    if arguments.hosts != "slurm" and arguments.processes is not None and arguments.processes < 1:
        raise UserError(f"--processes={arguments.processes}: must be at least 1")
    # The rank that mpirun (Open MPI or MPICH) gave this process.
    rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or 0
    launcher = int(rank) if arguments.launcher is None else arguments.launcher
    if arguments.hosts == "slurm":
        if not arguments.processes:
            raise UserError("--hosts=slurm: give --processes too, the number on all hosts")
        hosts, launcher = plan.slurm_hosts(arguments.processes)
    elif arguments.hosts:
        hosts = plan.parse_hosts(arguments.hosts)
        slots = sum(host.slots for host in hosts)
        if arguments.processes not in (None, slots):
            raise UserError(f"--processes={arguments.processes}: --hosts={arguments.hosts} has {slots}")
    elif arguments.processes:
        hosts = [plan.Host("localhost", arguments.processes)]
        launcher = arguments.launcher or 0
    else:
        raise UserError("--processes: missing; give the number of processes")
    if not 0 <= launcher < len(hosts):
        raise UserError(f"--launcher={launcher}: there are {len(hosts)} hosts, numbered from 0")
    if arguments.max_restarts and not any(word.startswith("--checkpoint_dir") for word in command):
        raise UserError("--max_restarts: the command has no --checkpoint_dir=DIR to go on from; give one")
    if arguments.max_restarts and any(word == "--run" or word.startswith("--run=") for word in command):
        raise UserError("--max_restarts: each start writes a log of its own; leave --run out of the command")
    for name in ("port", "max_restarts", *(f"{field.name}_seconds" for field in dataclasses.fields(Limits))):
        value, most = getattr(arguments, name), 65535 if name == "port" else math.inf
        if not 0 <= value <= most:
            raise UserError(f"--{name}={value}: must be a number from 0 to {most}")
    environment = settings.environment(arguments.settings)
    if arguments.allow_public:
        os.environ[ALLOWED] = "1"  # For what the launcher and its processes listen on.
    limits = Limits(**{f.name: getattr(arguments, f"{f.name}_seconds") for f in dataclasses.fields(Limits)})
    hosts_file = arguments.hosts if (arguments.hosts or "").startswith("@") else ""
    restarts = arguments.max_restarts, hosts_file
    return Job(arguments.replicas, command, hosts, launcher, arguments.port, limits, *restarts, environment)


@answering()
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    described = job(parser().parse_args(argv))
    outlive_output()
    return launch(described)


if __name__ == "__main__":
    sys.exit(main())
