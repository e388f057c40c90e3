"""Assigns a run's processes to hosts and builds each process's environment. TensorFlow-free."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import socket
from collections.abc import Mapping, Sequence

from common.distributed import listening
from common.errors import UserError

BACKENDS = ("horovod", "multiworker", "pjrt")
# Ports where several hosts meet: PORT for Horovod's rendezvous, PORT + 1 + local rank for multiworker's processes.
PORT = 29400
# slurm.sbatch puts the name of each task's host there.
SLURM_HOSTS = "TIMETOTRAIN_SLURM_HOSTS"
# What a user's own variables replace.
_HOROVOD_DEFAULTS = {
    # Horovod's default is 30 s, too little for processes that import TensorFlow from a slow disk. Silent ones end by
    # the launcher's heartbeat.
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "120",
    # As under multiworker, a process that misses an exchange for ten minutes ends the run.
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "600",
    # Horovod reports a lost process from every other process; the launcher reports it once.
    "HOROVOD_LOG_LEVEL": "fatal",
}


@dataclasses.dataclass(frozen=True)
class Host:
    """One launcher's share: `slots` processes on machine `name`."""

    name: str
    slots: int


@dataclasses.dataclass(frozen=True)
class Rank:
    """One process; the fields use Horovod's terms: `cross` counts the hosts that have this local rank."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    host: str
    launcher: int


def parse_hosts(text: str) -> list[Host]:
    """Returns the hosts of "a:8,b:8", or of "@FILE" with one line "a slots=8" per host, as horovodrun and mpirun read.

    Raises UserError if the list is malformed, or the file does not exist.
    """
    if not text.startswith("@"):
        form, example = r"([\w.-]+):([1-9]\d*)", "HOST:PROCESSES; write for example a:8,b:8"
        entries = [(f"--hosts={text}", part.strip()) for part in text.split(",")]
    else:
        form, example = r"([\w.-]+)\s+slots=([1-9]\d*)", "NAME slots=N; write for example a slots=8"
        fix = "write a line NAME slots=N for each host"
        try:
            with open(text[1:], encoding="utf-8") as file:
                lines = [line.split("#")[0].strip() for line in file]
        except OSError as error:
            raise UserError(f"--hosts={text}: {error.strerror}; {fix}") from error
        entries = [(f"{text[1:]}:{number}", line) for number, line in enumerate(lines, 1) if line]
        if not entries:
            raise UserError(f"--hosts={text}: empty; {fix}")
    hosts = []
    for place, entry in entries:
        match = re.fullmatch(form, entry)
        if not match:
            raise UserError(f"{place}: {entry!r} is not {example}")
        hosts.append(Host(match[1], int(match[2])))
    return hosts


def slurm_hosts(processes: int, environment: Mapping[str, str] = os.environ) -> tuple[list[Host], int]:
    """Returns the hosts of a SLURM job step (one per task) for all `processes` of the run, and this task's number.

    Raises UserError if this is not a task of slurm.sbatch, or of a step with other tasks than slurm.sbatch counted, or
    the processes do not divide evenly among the tasks.
    """
    names, number = environment.get(SLURM_HOSTS, "").split(), environment.get("SLURM_PROCID", "")
    tasks, fix = len(names), "give --hosts=HOST:PROCESSES,... --launcher=$SLURM_PROCID"
    if not names or not number.isdecimal():
        raise UserError(
            f"--hosts=slurm: not started by timetotrain/launch/slurm.sbatch; submit that, or {fix}"
        )
    if (step := environment.get("SLURM_NTASKS", "no")) != str(tasks):
        raise UserError(
            f"--hosts=slurm: ${SLURM_HOSTS} has {tasks} hosts, and this step of the job {step} tasks; start one per "
            f"host, or {fix}"
        )
    if processes % tasks:
        raise UserError(f"--processes={processes}: does not divide among the {tasks} tasks; use a multiple")
    return [Host(name, processes // tasks) for name in names], int(number)


def ranks(hosts: Sequence[Host]) -> list[Rank]:
    """Returns every process of the run, in host order."""
    local_sizes: dict[str, int] = {}
    places = []
    for launcher, host in enumerate(hosts):
        for _ in range(host.slots):
            local = local_sizes.get(host.name, 0)
            local_sizes[host.name] = local + 1
            places.append((launcher, host.name, local))
    names = list(local_sizes)
    numbered = []
    for rank, (launcher, name, local) in enumerate(places):
        across = [other for other in names if local_sizes[other] > local]
        sizes = len(places), local, local_sizes[name], across.index(name), len(across)
        numbered.append(Rank(rank, *sizes, name, launcher))
    return numbered


def horovod_environment(rank: Rank, address: str, port: int, interface: str = "") -> dict[str, str]:
    """Returns what horovodrun sets (horovod/runner/gloo_run.py) for a rendezvous server at `address`:`port`."""
    environment = {
        "HOROVOD_HOSTNAME": rank.host, "HOROVOD_RANK": str(rank.rank), "HOROVOD_SIZE": str(rank.size),
        "HOROVOD_LOCAL_RANK": str(rank.local_rank), "HOROVOD_LOCAL_SIZE": str(rank.local_size),
        "HOROVOD_CROSS_RANK": str(rank.cross_rank), "HOROVOD_CROSS_SIZE": str(rank.cross_size),
        "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }  # fmt: skip
    environment |= {name: os.environ.get(name, value) for name, value in _HOROVOD_DEFAULTS.items()}
    if interface:
        environment |= {"HOROVOD_GLOO_IFACE": interface, "NCCL_SOCKET_IFNAME": interface}
    return environment


def multiworker_environment(
    rank: Rank, addresses: Sequence[str], visible: str | None = None, first: int = 0, count: int = 1
) -> dict[str, str]:
    """Returns TF_CONFIG; if a host has several processes, each sees only the GPU of its local rank.

    A scheduler may have set CUDA_VISIBLE_DEVICES, to all GPUs of the job on this host or to those of this launcher's
    processes; then the process takes its own of them.

    Args:
      rank: the process's.
      addresses: of all processes.
      visible: CUDA_VISIBLE_DEVICES of the launcher; None if it is not set.
      first: the least local rank of this launcher's processes.
      count: their number.

    Raises UserError if the scheduler shows fewer GPUs than there are processes.
    """
    task = {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": rank.rank}}
    environment = {"TF_CONFIG": json.dumps(task)}
    if visible is None:
        if rank.local_size > 1:
            environment["CUDA_VISIBLE_DEVICES"] = str(rank.local_rank)
    elif count > 1 and (gpus := [gpu.strip() for gpu in visible.split(",") if gpu.strip() not in ("", "-1")]):
        place = rank.local_rank if len(gpus) >= rank.local_size else rank.local_rank - first
        if place >= len(gpus):
            raise UserError(
                f"CUDA_VISIBLE_DEVICES={visible}: {len(gpus)} GPUs for {count} processes; start as many "
                "processes as GPUs"
            )
        environment["CUDA_VISIBLE_DEVICES"] = gpus[place]
    return environment


def rescaled(command: Sequence[str], before: int, after: int) -> list[str]:
    """Returns the command of a restart with other processes: `num_replicas` times after / before."""
    flag = "--config.num_replicas="
    values = [word.removeprefix(flag) if word.startswith(flag) else "" for word in command]
    return [
        f"{flag}{int(value) * after // before}" if value.isdecimal() else word
        for word, value in zip(command, values)
    ]


def free_ports(count: int) -> list[int]:
    """Returns ports that are currently free."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def interface_to(host: str) -> str:
    """Returns the name of the network interface that reaches `host`; "" if unknown."""
    with contextlib.suppress(ImportError):
        import psutil  # Comes with Horovod.

        local_address = listening.route(host)
        for name, addresses in psutil.net_if_addrs().items():
            if any(address.address == local_address for address in addresses):
                return name
    return ""
