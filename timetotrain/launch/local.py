"""The launcher: starts this machine's processes of a run and runs them until they end."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import importlib.util
import os
import pathlib
import shutil
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence

from common.distributed.heartbeat import GRACE_VARIABLE
from common.distributed.listening import own_address
from common.errors import UserError
from timetotrain.launch import binding, plan, procfs
from timetotrain.launch.children import adopt_orphans
from timetotrain.launch.watch import unfinished_log
from timetotrain.launch.watch.failure_cause import Cause
from timetotrain.launch.watch.loop import Limits, Watch
from timetotrain.launch.watch.worker import Worker

# The longest wait before a restart; the first from a checkpoint is of 1 s, each further one twice as long.
LONGEST_WAIT_SECONDS = 60.0
_TEMPORARY = "timetotrain-launch-"


@dataclasses.dataclass(frozen=True)
class Job:
    """The run to launch.

    Attributes:
      replicas: the backend.
      command: what each process runs.
      hosts: of all launchers.
      launcher: this launcher's place among them.
      port: where several hosts meet.
      limits: of the watch.
      max_restarts: how often the run starts again after failures, from one checkpoint.
      min_processes: least number of processes of a restarted run on one machine; 0 keeps their number.
      hosts_file: file of `hosts`, read again at a restart; "" if there is none.
      environment: added to each process's.
      bind: bind each process to the cores and memory nearest its GPU.
    """

    replicas: str
    command: Sequence[str]
    hosts: Sequence[plan.Host]
    launcher: int = 0
    port: int = plan.PORT
    limits: Limits = Limits()
    max_restarts: int = 0
    min_processes: int = 0
    hosts_file: str = ""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    bind: bool = False


def launch(job: Job) -> int:
    """Runs this machine's processes of a job until they end, again after failures; returns the exit status."""
    adopt_orphans()
    began, failures = time.monotonic(), list[int]()
    newest, in_vain = -1, 0  # The step of the newest checkpoint at a start, and the restarts from there.
    trained, before = False, ""  # Whether any attempt has trained, and why the one before failed.
    while True:
        status, cause = _attempt(job)
        if cause is None:
            break
        if cause.start > newest:
            newest, in_vain = cause.start, 0
        trained = trained or cause.trained
        # Bad input ends a run. After training, so does what two starts in a row say of it; a disk may have space again.
        bad = cause.code == UserError("").exit_code and not cause.trained
        helps = not cause.stopped and not (bad and (not trained or str(cause) == before))
        before = str(cause)
        if in_vain >= job.max_restarts or not helps:
            break
        again = _again(job, cause, failures)
        failures.append(cause.rank)
        fewer = "" if again.hosts == job.hosts else f", with {sum(h.slots for h in again.hosts)} processes"
        wait = min(2.0**in_vain, LONGEST_WAIT_SECONDS)
        in_vain += 1
        _say(f"restart {in_vain} of {job.max_restarts}: from the newest checkpoint{fewer}, in {wait:.0f} s")
        time.sleep(wait)
        job = again
    if failures:
        _say(
            f"restarted {len(failures)} times; {time.monotonic() - began:.1f} s from the first start to the end, with "
            "what failures lost; a resumed run has no score"
        )
    return status


def _again(job: Job, cause: Cause, failures: Sequence[int]) -> Job:
    """Returns the job of the next attempt: hosts that the file lists now; without a rank that fails twice in a row."""
    hosts = plan.parse_hosts(job.hosts_file) if job.hosts_file else list(job.hosts)
    size = sum(host.slots for host in hosts)
    if 0 < job.min_processes < size and len(hosts) == 1 and failures[-1:] == [cause.rank]:
        hosts = [plan.Host(hosts[0].name, size - 1)]
    if not 0 <= job.launcher < len(hosts):
        raise UserError(f"{job.hosts_file}: lists {len(hosts)} hosts, and this is number {job.launcher}")
    before = sum(host.slots for host in job.hosts)
    command = plan.rescaled(job.command, before, sum(host.slots for host in hosts))
    return dataclasses.replace(job, hosts=hosts, command=command)


def _attempt(job: Job) -> tuple[int, Cause | None]:
    """Runs this machine's processes once; returns the exit status, and why the run failed."""
    ranks = plan.ranks(job.hosts)
    own_ranks = [rank for rank in ranks if rank.launcher == job.launcher]
    # Several launchers may share a host: a process uses the GPU of its rank on the host.
    bound = binding.prefixes(max(rank.local_rank for rank in own_ranks) + 1) if job.bind else []
    with environments(job, ranks) as by_rank, temporary_folder() as scratch:
        common = {"PYTHONUNBUFFERED": "1", "TMPDIR": scratch, GRACE_VARIABLE: str(job.limits.grace)}
        workers: list[Worker] = []
        try:
            for rank in own_ranks:
                environment = {**os.environ, **job.environment, **by_rank[rank.rank], **common}
                words = [*(bound[rank.local_rank] if bound else []), *job.command]
                workers.append(Worker(rank.rank, words, environment))
        except OSError as error:
            for worker in workers:
                worker.kill()
            raise UserError(f"{job.command[0]}: {error.strerror}; is the command right?") from error
        watch = Watch(workers, job.limits)
        cause = watch.run()
    closed_logs = [close_log(worker, str(cause or "the run ended")) for worker in workers]
    if cause is None:
        return int(workers[0].told.get("result", workers[0].code or 0)), None
    ended = "" if len(workers) == 1 else f"; all {len(workers)} processes have ended"
    watch.say(f"error: {cause}{ended}" + "".join(f"; {closed}" for closed in closed_logs if closed))
    return cause.code, cause


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def close_log(worker: Worker, reason: str) -> str:
    """Ends the log that a process left open; returns a note about it, or "" if there is none."""
    name = worker.told.get("log")
    if not name or not pathlib.Path(name).exists():
        return ""
    try:
        path = unfinished_log.close_log(name, reason)
    except UserError as error:
        return str(error)
    return f"{path} ends as aborted" if path else ""


@contextlib.contextmanager
def environments(job: Job, ranks: Sequence[plan.Rank]) -> Iterator[list[dict[str, str]]]:
    """Yields each rank's environment; runs Horovod's rendezvous server meanwhile."""
    alone = len(job.hosts) == 1
    first = "127.0.0.1" if alone else job.hosts[0].name
    if job.replicas in ("multiworker", "pjrt"):
        if alone:
            addresses = [f"{first}:{port}" for port in plan.free_ports(len(ranks))]
        else:
            addresses = [f"{rank.host}:{job.port + 1 + rank.local_rank}" for rank in ranks]
        own = [rank.local_rank for rank in ranks if rank.launcher == job.launcher]
        shown = {**os.environ, **job.environment}.get("CUDA_VISIBLE_DEVICES")
        yield [
            plan.multiworker_environment(rank, addresses, shown, own[0], len(own))
            if rank.launcher == job.launcher
            else {}
            for rank in ranks
        ]
        return
    if importlib.util.find_spec("horovod") is None:
        raise UserError("--replicas=horovod: Horovod is not installed; run `make horovod`")
    interface = "lo" if alone else plan.interface_to(first)
    with (
        _rendezvous(job, ranks, first if alone else "")
        if job.launcher == 0
        else contextlib.nullcontext(job.port) as port
    ):
        yield [plan.horovod_environment(rank, first, port, interface) for rank in ranks]


@contextlib.contextmanager
def _rendezvous(job: Job, ranks: Sequence[plan.Rank], loopback: str) -> Iterator[int]:
    """Runs the server where Horovod's processes find one another; yields its port. `loopback`: of a run on one host."""
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    address = loopback or own_address([host.name for host in job.hosts], job.launcher)
    try:
        server = RendezvousHTTPServer((address, 0 if loopback else job.port), RendezvousHandler, 0)
    except OSError as error:
        raise UserError(f"--port={job.port}: {error.strerror}; give another") from error
    server.daemon_threads = True
    # The server reads these fields of horovod.runner.common.util.hosts.SlotInfo.
    server.init([types.SimpleNamespace(hostname=rank.host, **dataclasses.asdict(rank)) for rank in ranks])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """Yields a folder for TMPDIR; removes it at the end, and those of launchers that were killed."""
    for path in pathlib.Path(tempfile.gettempdir()).glob(f"{_TEMPORARY}*"):
        owner, _, began = path.name.removeprefix(_TEMPORARY).partition("-")
        if owner.isdecimal() and procfs.began(int(owner)) != began.partition("-")[0]:
            # In another container the owner has another number here; its lock says that it lives.
            with contextlib.suppress(OSError), _locked(path):
                shutil.rmtree(path, ignore_errors=True)
    mark = f"{_TEMPORARY}{os.getpid()}-{procfs.began(os.getpid())}-"
    path = tempfile.mkdtemp(prefix=mark)
    try:
        with _locked(path):
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: str | os.PathLike) -> Iterator[None]:
    """Locks a folder; raises OSError if another process has."""
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
