"""Builds the command that starts a preset on its machine, per launcher, from the preset and systems/*.json.

TensorFlow-free. `shape` checks that the preset and its machine's description agree.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import systems
from common.config.schema import RunConfig
from common.errors import UserError
from common.files import INSTALLED
from timetotrain.flags import flag
from timetotrain.launch import containers, settings

SBATCH = "timetotrain/launch/slurm.sbatch"  # Relative to the checkout's root, where commands start.
if INSTALLED:
    SBATCH = str(Path(__file__).with_name("slurm.sbatch"))
LAUNCHERS = ("none", "local", "slurm", "mpirun", "tpu-vm")
# A TPU v3 or v4 chip has two cores. A preset runs a replica on each core, on each chip (v4's megacore), or on a
# fraction of the cores (v0.7's Transformer on 8,192).
CORES_PER_CHIP = 2
# Environment variables that mpirun forwards: those that locate programs and those that configure a run's libraries.
_STEERS = re.compile(r"OMP_NUM_THREADS|CUDA_VISIBLE_DEVICES|(HOROVOD|NCCL|TF|XLA|UCX)_\w+")
_PASSED_ON = re.compile(rf"PATH|LD_LIBRARY_PATH|PYTHONPATH|{_STEERS.pattern}")


@dataclasses.dataclass(frozen=True)
class Options:
    """Options that a cluster's user chooses.

    Attributes:
      partition: SLURM partition.
      account: SLURM account.
      time: SLURM time limit of the job, HH:MM:SS.
      project: Google Cloud project of a TPU.
      zone: Google Cloud zone of a TPU.
      container: image that the run's processes start in.
      container_runtime: program that starts the container.
    """

    partition: str = ""
    account: str = ""
    time: str = ""
    project: str = ""
    zone: str = ""
    container: str = ""
    container_runtime: str = flag("auto", choices=("auto", *containers.RUNTIMES))

    def check(self, launcher_name: str) -> None:
        """Raises UserError for an option that the launcher ignores."""
        for names, launcher in ((("partition", "account", "time"), "slurm"), (("project", "zone"), "tpu-vm")):
            for name in names:
                if getattr(self, name) and launcher_name != launcher:
                    raise UserError(
                        f"--{name}={getattr(self, name)}: LAUNCHER={launcher_name} has no such option; "
                        f"use LAUNCHER={launcher}, or leave it out"
                    )
        if self.container_runtime != "auto" and not self.container:
            raise UserError(f"--container_runtime={self.container_runtime}: give --container=IMAGE too")


NO_OPTIONS = Options()


@dataclasses.dataclass(frozen=True)
class Shape:
    """The number of processes and hosts of a run.

    Attributes:
      processes: total. Horovod: one per replica. Multiworker: one per host, or per replica on one host without
        accelerators. Pjrt: one per host. Otherwise one.
      hosts: number of machines; 0 if the system's description does not say.
      accelerators: number per host.
    """

    processes: int
    hosts: int
    accelerators: int


def describe(hardware: str) -> dict[str, str]:
    """Reads a machine's description; "local" (this machine) is one host with no accelerator count.

    Raises UserError if there is no such description.
    """
    if hardware == "local":
        return {"number_of_nodes": "1", "accelerators_per_node": ""}
    return systems.load(hardware)


def shape(config: RunConfig, system: Mapping[str, str]) -> Shape:
    """Returns a configuration's processes on a system, and where they run.

    Raises UserError if the replicas do not fit the number of hosts or accelerators.
    """
    hosts = int(system["number_of_nodes"] or 0)
    accelerators = int(system["accelerators_per_node"] or 0)
    name = f"config.num_replicas={config.num_replicas}: {config.hardware} has {hosts} hosts"
    if config.replicas == "tpu":
        cores = hosts * accelerators * CORES_PER_CHIP
        if not cores or cores % config.num_replicas:
            raise UserError(
                f"{name} of {accelerators} chips; use as many replicas as cores, {cores}, or a divisor"
            )
        return Shape(1, hosts, accelerators)
    if config.replicas == "multiworker":
        processes = hosts if hosts > 1 or accelerators else config.num_replicas
    elif config.replicas == "pjrt":
        processes = max(hosts, 1)
    elif config.replicas == "horovod":
        processes = config.num_replicas
        if hosts and processes % hosts:
            raise UserError(f"{name}, among which they do not divide; use a multiple of {hosts}")
    else:
        return Shape(1, 1, accelerators)
    if accelerators and config.num_replicas != hosts * accelerators:
        raise UserError(f"{name} of {accelerators} accelerators; use {hosts * accelerators} replicas")
    return Shape(processes, hosts, accelerators)


def launcher(config: RunConfig, where: Shape) -> str:
    """Returns a preset's usual launcher."""
    if config.replicas == "tpu":
        return "tpu-vm"
    one_process = config.replicas == "pjrt" and where.processes == 1
    if one_process or config.replicas not in ("horovod", "multiworker", "pjrt"):
        return "none"
    # A TPU's hosts have no scheduler that we control: the same command runs on each.
    return "local" if where.hosts == 1 or config.hardware.startswith("tpu") else "slurm"


def command(
    config: RunConfig,
    where: Shape,
    launcher_name: str,
    program: Sequence[str],
    options: Options = NO_OPTIONS,
    environment: Mapping[str, str] = os.environ,
) -> list[str]:
    """Returns the command line that starts `program` (python -m resnet ...) in every process of the run.

    hosts.txt lists several hosts, one line `NAME slots=PROCESSES` each; `local` and `mpirun` read it.
    mpirun and docker forward parts of this process's `environment`.

    Raises UserError if the launcher is unknown, or does not support this backend or an option.
    """
    if launcher_name not in LAUNCHERS:
        raise UserError(f"LAUNCHER={launcher_name}: unknown; known: {', '.join(LAUNCHERS)}")
    options.check(launcher_name)
    inside: list[str] = []
    if options.container:
        program = [containers.PYTHON, *program[1:]]
        runtime = containers.runtime(options.container_runtime, launcher_name)
        nvidia = "NVIDIA" in describe(config.hardware).get("accelerator_model_name", "")
        variables = {name: environment[name] for name in environment if _STEERS.fullmatch(name)}
        folders = containers.mounts(program, os.getcwd())
        inside = containers.words(runtime, options.container, folders, nvidia, variables)
    if launcher_name == "none":
        return [*inside, *program]
    _check_starts(launcher_name, config.replicas)
    if launcher_name == "tpu-vm":
        return _tpu_vm(config, where, program, options, environment)
    ours = [program[0], "-m", "timetotrain", "launch", f"--replicas={config.replicas}"]
    tuned = settings.name_of(config.hardware)
    count = [f"--processes={where.processes}", *([f"--settings={tuned}"] if tuned else [])]
    alone = where.hosts == 1
    if launcher_name == "local":
        hosts = [] if alone else ["--hosts=@hosts.txt"]
        return [*inside, *ours, *count, *hosts, "--", *program]
    if launcher_name == "slurm":
        wrapped = [*inside, "::"] if inside else []
        return [*_sbatch(where, options), SBATCH, *wrapped, *ours[4:], *count, "--", *program]
    # mpirun starts one timetotrain launch per host; that starts, binds and watches the host's processes.
    hosts = [] if alone else ["--hostfile", "hosts.txt", "--map-by", "ppr:1:node"]
    placed = [] if alone else ["--hosts=@hosts.txt"]
    passed_on = [word for name in sorted(environment) if _PASSED_ON.fullmatch(name) for word in ("-x", name)]
    started = ["mpirun", "-np", str(max(where.hosts, 1)), *hosts, "--bind-to", "none", *passed_on]
    return [*started, *inside, *ours, *count, *placed, "--", *program]


def _check_starts(launcher_name: str, replicas: str) -> None:
    """Raises UserError if a launcher cannot start the processes of a backend."""
    if (launcher_name == "tpu-vm") != (replicas == "tpu"):
        fix = "tpu-vm" if replicas == "tpu" else "another, or config.replicas=tpu"
        raise UserError(f"LAUNCHER={launcher_name}: cannot start config.replicas={replicas}; use {fix}")
    if replicas not in ("tpu", "horovod", "multiworker", "pjrt"):
        raise UserError(
            f"LAUNCHER={launcher_name}: config.replicas={replicas} is one process; use LAUNCHER=none"
        )


def _sbatch(where: Shape, options: Options) -> list[str]:
    """Returns sbatch with one task per host (it starts the host's processes), or per process for unknown hosts.

    sbatch waits for the job, so runs follow each other and their exit status counts. It forwards the environment.
    """
    line = ["sbatch", "--wait"]
    for name in ("partition", "account", "time"):
        if getattr(options, name):
            line.append(f"--{name}={getattr(options, name)}")
    if not where.hosts:
        return [*line, f"--ntasks={where.processes}"]
    line += [f"--nodes={where.hosts}", "--ntasks-per-node=1"]
    return line + ([f"--gpus-per-node={where.accelerators}"] if where.accelerators else [])


def _tpu_vm(
    config: RunConfig, where: Shape, program: Sequence[str], options: Options, environment: Mapping[str, str]
) -> list[str]:
    """Returns the command for a slice's first host, from which TensorFlow drives the servers on all hosts."""
    name = environment.get("TPU_NAME", config.hardware)
    gcloud_options = {"project": options.project, "zone": options.zone or environment.get("ZONE", "")}
    flags = [f"--{flag}={value}" for flag, value in gcloud_options.items() if value]
    variables = [f"TPU_NAME={name}", *(["TPU_LOAD_LIBRARY=0"] if where.hosts > 1 else [])]
    if options.container:
        # The container reaches the chips as devices of the host; its folder is the checkout on that host.
        run = ["sudo", "docker", "run", "--rm", "--init", "--privileged", "--network=host", "--ipc=host"]
        mounted = "" if INSTALLED else '--volume="$PWD:$PWD" --workdir="$PWD" '
        each = shlex.join(f"--env={variable}" for variable in variables)
        remote = f"{shlex.join(run)} {mounted}{each} {shlex.join([options.container, *program])}"
    else:
        pairs = [variable.split("=", 1) for variable in variables]
        remote = " ".join([*(f"{key}={shlex.quote(value)}" for key, value in pairs), shlex.join(program)])
    folder = "" if INSTALLED else "cd timetotrain && "  # The checkout on that host.
    ssh = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", name, *flags, "--worker=0"]
    return [*ssh, f"--command={folder}{remote}"]
