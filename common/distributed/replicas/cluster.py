"""Reads the processes of a run from TF_CONFIG, and waits until all of them have started."""

import contextlib
import dataclasses
import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

from common.distributed import listening
from common.errors import NoAnswerError, UserError

# How long the processes wait for each other at the start; a scheduler may start them minutes apart.
START_SECONDS = 120
_POLL_SECONDS = 0.2

LAUNCH = "start it with `timetotrain launch --replicas=multiworker --processes=N -- COMMAND`"


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The content of TF_CONFIG: the address of every process, "host:port", and this process's index."""

    workers: tuple[str, ...]
    index: int

    @property
    def port(self) -> int:
        """The port of this process."""
        return _address(self.workers[self.index])[1]

    def local_address(self) -> str:
        """Returns the address that this process listens on (listening.local_address)."""
        return listening.local_address([_address(worker)[0] for worker in self.workers], self.index)


def from_environment(text: str | None, backend: str = "multiworker") -> Cluster:
    """Parses the environment variable TF_CONFIG; `backend` is the name that errors use.

    Raises UserError if the variable is missing or not JSON, or a field is missing or wrong.
    """
    if not text:
        raise UserError(f"config.replicas={backend}: the environment variable TF_CONFIG is not set; {LAUNCH}")
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"TF_CONFIG is not JSON ({error}); {LAUNCH}") from None
    cluster, task = (_part(parsed, name) for name in ("cluster", "task"))
    if set(cluster) != {"worker"}:
        fix = f"name every process in cluster.worker, or {LAUNCH}"
        raise UserError(f"TF_CONFIG: cluster has the jobs {sorted(cluster)}; {fix}")
    workers = cluster["worker"]
    if not isinstance(workers, list) or not workers or not all(map(_is_address, workers)):
        raise UserError(f'TF_CONFIG: cluster.worker={workers!r} is not a list of "host:port"; {LAUNCH}')
    if len(set(workers)) != len(workers):
        raise UserError(f"TF_CONFIG: cluster.worker names an address twice: {', '.join(workers)}; {LAUNCH}")
    if task.get("type") != "worker":
        raise UserError(f'TF_CONFIG: task.type={task.get("type")!r} must be "worker"; {LAUNCH}')
    index = task.get("index")
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(workers):
        raise UserError(
            f"TF_CONFIG: task.index={index!r} must be a whole number from 0 to {len(workers) - 1}; {LAUNCH}"
        )
    return Cluster(tuple(workers), index)


def _part(parsed: Any, name: str) -> dict:
    part = parsed.get(name) if isinstance(parsed, dict) else None
    if not isinstance(part, dict):
        raise UserError(f"TF_CONFIG: the field {name!r} is missing or no object; {LAUNCH}")
    return part


def _is_address(worker: Any) -> bool:
    match = re.fullmatch(r".+:(\d{1,5})", worker) if isinstance(worker, str) else None
    return bool(match) and 0 < int(match[1]) < 65536


def rendezvous(cluster: Cluster, seconds: float = START_SECONDS) -> None:
    """Returns once every process listens on its address; start TensorFlow's server only then.

    The server of process 0 waits for the others without a time limit. So each process first listens on its own port
    until it has reached all others. Then it hands the port to the server, and slower processes reach the server
    instead. Raises UserError if this process's port is taken, or another process does not answer in time.
    """
    with _listening(cluster):
        _reach_all(cluster, seconds, "multiworker")


@contextlib.contextmanager
def meeting(cluster: Cluster, backend: str) -> Iterator[None]:
    """Context that begins once every process listens on its address, for a `backend` with a server only in process 0.

    Inside the context, process 0's port is free; the other processes keep listening, so that slower ones reach them.

    Raises UserError: see `rendezvous`.
    """
    with _listening(cluster) as server:
        _reach_all(cluster, START_SECONDS, backend)
        if cluster.index == 0:
            server.close()
        yield


def _listening(cluster: Cluster) -> socket.socket:
    host, port = _address(cluster.workers[cluster.index])
    address = cluster.local_address()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=len(cluster.workers))
    except OSError as error:
        raise UserError(
            f"TF_CONFIG: cannot listen on port {port} of cluster.worker[{cluster.index}]={host}:{port} "
            f"({error.strerror}); choose a free port, or {LAUNCH}"
        ) from None


def _reach_all(cluster: Cluster, seconds: float, backend: str) -> None:
    missing = [i for i in range(len(cluster.workers)) if i != cluster.index]
    deadline = time.monotonic() + seconds
    while missing := [i for i in missing if not _answers(cluster.workers[i])]:
        if time.monotonic() > deadline:
            names = ", ".join(f"{i} ({cluster.workers[i]})" for i in missing)
            raise NoAnswerError(
                f"{backend}: process {cluster.index} got no answer from process {names} of TF_CONFIG within "
                f"{seconds:g} s; start every process, and check its address and the firewall"
            )
        time.sleep(_POLL_SECONDS)


def _address(worker: str) -> tuple[str, int]:
    host, port = worker.rsplit(":", 1)
    return host.strip("[]"), int(port)


def _answers(worker: str) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(_address(worker), timeout=2) as connection:
        # If nobody listens on the port, the system can assign it to this very socket, which then connects to itself.
        return connection.getsockname() != connection.getpeername()
    return False
