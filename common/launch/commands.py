"""Makes the command that starts a preset on its machine, for each launcher, from the preset and systems/*.json.

TensorFlow-free. `shape` checks that the preset and the description of its machine agree.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from collections.abc import Mapping, Sequence

from common.config import benchmarks
from common.config.schema import RunConfig
from common.errors import UserError
from common.files import INSTALLED, ROOT

SBATCH = "common/launch/slurm.sbatch"  # From the root of a checkout, where commands are started.
if INSTALLED:
    SBATCH = str(ROOT / SBATCH)
LAUNCHERS = ("none", "local", "slurm", "horovodrun", "mpirun", "tpu-vm")
# A TPU v3 or v4 chip has two cores. Presets have a replica on each core, on each chip (v4's megacore), or on a part of
# the cores (v0.7's Transformer on 8,192).
CORES_PER_CHIP = 2


@dataclasses.dataclass(frozen=True)
class Shape:
    """The number of a run's processes and of its hosts.

    Attributes:
      processes: of the run; one per replica under Horovod, one per host under multiworker, else one in all.
      hosts: number of machines; 0 where the system's description does not say.
      accelerators: per host.
      processes_per_host: 0 where the number of hosts is not known.
    """

    processes: int
    hosts: int
    accelerators: int
    processes_per_host: int


def describe(hardware: str) -> dict[str, str]:
    """Reads systems/<hardware>.json; "local", the machine this runs on, is one host without a count of accelerators.

    Raises:
      UserError: no such description.
    """
    if hardware == "local":
        return {"number_of_nodes": "1", "accelerators_per_node": ""}
    path = ROOT / "systems" / f"{hardware}.json"
    if not path.exists():
        raise UserError(
            f"config.hardware={hardware}: no {path.relative_to(ROOT)}; see `python -m systems list`"
        )
    return json.loads(path.read_text())


def shape(config: RunConfig, system: Mapping[str, str]) -> Shape:
    """Returns the processes of a configuration on a system, and where they go.

    Raises:
      UserError: the replicas do not fit the number of hosts or accelerators.
    """
    hosts = int(system["number_of_nodes"] or 0)
    known = system["accelerators_per_node"] != ""
    accelerators = int(system["accelerators_per_node"] or 0)
    name = f"config.num_replicas={config.num_replicas}: {config.hardware} has {hosts} hosts"
    if config.replicas == "tpu":
        cores = hosts * accelerators * CORES_PER_CHIP
        if not cores or cores % config.num_replicas:
            raise UserError(
                f"{name} of {accelerators} chips; use as many replicas as cores, {cores}, or a divisor"
            )
        return Shape(1, hosts, accelerators, 0)
    if config.replicas == "multiworker":
        processes = hosts if hosts > 1 or accelerators else config.num_replicas
        per_host = processes // max(hosts, 1)
    elif config.replicas == "pjrt":
        processes, per_host = max(hosts, 1), 1
    elif config.replicas == "horovod":
        processes, per_host = config.num_replicas, config.num_replicas // hosts if hosts else 0
        if hosts and processes % hosts:
            raise UserError(f"{name}, among which they do not divide; use a multiple of {hosts}")
    else:
        return Shape(1, 1, accelerators, 1)
    if accelerators and known and config.num_replicas != hosts * accelerators:
        raise UserError(f"{name} of {accelerators} accelerators; use {hosts * accelerators} replicas")
    return Shape(processes, hosts, accelerators, per_host)


def launcher(config: RunConfig, where: Shape) -> str:
    """Returns the launcher that a preset is meant for: the first of LAUNCHERS that fits."""
    if config.replicas == "tpu":
        return "tpu-vm"
    if config.replicas == "pjrt" and where.processes == 1:
        return "none"
    if config.replicas not in ("horovod", "multiworker", "pjrt"):
        return "none"
    return "local" if where.hosts == 1 else "slurm"


def command(config: RunConfig, where: Shape, launcher_name: str, program: Sequence[str]) -> list[str]:
    """Returns the command line that starts `program` (python -m resnet ...) in every process of the run.

    hosts.txt names several hosts, a line `NAME slots=PROCESSES` each; every launcher but SLURM reads it.

    Raises:
      UserError: the launcher is unknown, or cannot start this backend.
    """
    if launcher_name not in LAUNCHERS:
        raise UserError(f"LAUNCHER={launcher_name}: unknown; known: {', '.join(LAUNCHERS)}")
    if launcher_name == "none":
        return list(program)
    if (launcher_name == "tpu-vm") != (config.replicas == "tpu"):
        fix = "tpu-vm" if config.replicas == "tpu" else "another, or config.replicas=tpu"
        raise UserError(
            f"LAUNCHER={launcher_name}: cannot start config.replicas={config.replicas}; use {fix}"
        )
    if launcher_name == "tpu-vm":
        return _tpu_vm(config, where, program)
    if config.replicas not in ("horovod", "multiworker", "pjrt"):
        raise UserError(
            f"LAUNCHER={launcher_name}: config.replicas={config.replicas} is one process; use LAUNCHER=none"
        )
    if launcher_name == "horovodrun" and config.replicas != "horovod":
        raise UserError(f"LAUNCHER=horovodrun: cannot start config.replicas={config.replicas}; use local")
    ours = [program[0], "-m", benchmarks.command("common.launch"), f"--replicas={config.replicas}"]
    count = f"--processes={where.processes}"
    alone = where.hosts == 1
    if launcher_name == "local":
        hosts = [] if alone else ["--hosts=@hosts.txt"]
        return [*ours, count, *hosts, "--", *program]
    if launcher_name == "slurm":
        return [*_sbatch(where), SBATCH, *ours[3:], count, "--", *program]
    if launcher_name == "horovodrun":
        hosts = ["-H", f"localhost:{where.processes}"] if alone else ["--hostfile", "hosts.txt"]
        return ["horovodrun", "--gloo", "-np", str(where.processes), *hosts, *program]
    # mpirun starts one common.launch per host, which starts the host's processes and watches them.
    hosts = [] if alone else ["--hostfile", "hosts.txt", "--map-by", "ppr:1:node"]
    placed = [] if alone else ["--hosts=@hosts.txt"]
    started = ["mpirun", "-np", str(max(where.hosts, 1)), *hosts, "--bind-to", "none"]
    return [*started, *ours, count, *placed, "--", *program]


def _sbatch(where: Shape) -> list[str]:
    """Returns sbatch with one task per host, which starts the host's processes; one per process for unknown hosts.

    sbatch waits for the job, so that runs follow each other and their exit status counts.
    """
    if not where.hosts:
        return ["sbatch", "--wait", f"--ntasks={where.processes}"]
    nodes = ["sbatch", "--wait", f"--nodes={where.hosts}", "--ntasks-per-node=1"]
    return nodes + ([f"--gpus-per-node={where.accelerators}"] if where.accelerators else [])


def _tpu_vm(config: RunConfig, where: Shape, program: Sequence[str]) -> list[str]:
    """Returns the command for a slice's first host, from which TensorFlow drives the servers on all hosts."""
    name = os.environ.get("TPU_NAME", config.hardware)
    zone = [f"--zone={os.environ['ZONE']}"] if os.environ.get("ZONE") else []
    library = " TPU_LOAD_LIBRARY=0" if where.hosts > 1 else ""
    folder = "" if INSTALLED else "cd timetotrain && "  # The checkout on that host.
    remote = f"{folder}TPU_NAME={shlex.quote(name)}{library} {shlex.join(program)}"
    return ["gcloud", "compute", "tpus", "tpu-vm", "ssh", name, *zone, "--worker=0", f"--command={remote}"]
