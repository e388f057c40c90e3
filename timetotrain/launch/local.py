"""The launcher: starts this machine's processes of a run and runs them until they end."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import pathlib
import tempfile
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence

from common.distributed import listening
from common.distributed.heartbeat import BACKEND_VARIABLE, GRACE_VARIABLE, SCRATCH
from common.errors import PeerLostError, UserError
from timetotrain.launch import binding, plan, procfs
from timetotrain.launch.watch import unfinished_log
from timetotrain.launch.watch.failure_cause import Cause
from timetotrain.launch.watch.loop import Limits, Watch, say
from timetotrain.launch.watch.signals import Signals
from timetotrain.launch.watch.worker import Worker

# The longest wait before a restart; the first from a checkpoint is of 1 s, each further one twice as long.
LONGEST_WAIT_SECONDS = 60.0


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
      hosts_file: file of `hosts`, read again at a restart; "" if there is none.
      environment: added to each process's.
    """

    replicas: str
    command: Sequence[str]
    hosts: Sequence[plan.Host]
    launcher: int = 0
    port: int = plan.PORT
    limits: Limits = Limits()
    max_restarts: int = 0
    hosts_file: str = ""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


def launch(job: Job) -> int:
    """Runs this machine's processes of a job until they end, again after failures; returns the exit status."""
    procfs.adopt_orphans()
    with Signals() as signals:
        return _launch(job, signals)


def _launch(job: Job, signals: Signals) -> int:
    began, failures = time.monotonic(), 0
    newest, in_vain = -1, 0  # The step of the newest checkpoint at a start, and the restarts from there.
    trained, before = False, ""  # Whether any attempt has trained, and why the one before failed.
    while True:
        status, cause = _attempt(job, signals)
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
        again, failures = _again(job), failures + 1
        fewer = "" if again.hosts == job.hosts else f", with {sum(h.slots for h in again.hosts)} processes"
        wait = min(2.0**in_vain, LONGEST_WAIT_SECONDS)
        in_vain += 1
        say(f"restart {in_vain} of {job.max_restarts}: from the newest checkpoint{fewer}, in {wait:.0f} s")
        signals.end_at_once(True)
        time.sleep(wait)
        job = again
    if failures:
        say(
            f"restarted {failures} times; {time.monotonic() - began:.1f} s from the first start to the end, with "
            "what failures lost; a resumed run has no score"
        )
    return status


def _again(job: Job) -> Job:
    """Returns the job of the next attempt, on the hosts that the file lists now."""
    hosts = plan.parse_hosts(job.hosts_file) if job.hosts_file else job.hosts
    if not 0 <= job.launcher < len(hosts):
        raise UserError(f"{job.hosts_file}: lists {len(hosts)} hosts, and this is number {job.launcher}")
    before = sum(host.slots for host in job.hosts)
    command = plan.rescaled(job.command, before, sum(host.slots for host in hosts))
    return dataclasses.replace(job, hosts=hosts, command=command)


def _attempt(job: Job, signals: Signals) -> tuple[int, Cause | None]:
    """Runs this machine's processes once; returns the exit status, and why the run failed."""
    signals.end_at_once(True)  # Also while the other hosts' names are yet to come.
    ranks = plan.ranks(job.hosts)
    own_ranks = [rank for rank in ranks if rank.launcher == job.launcher]
    # Several launchers may share a host: a process uses the GPU of its rank on the host.
    cores = binding.cores(max(rank.local_rank for rank in own_ranks) + 1)
    scratch_folder = tempfile.TemporaryDirectory(prefix=SCRATCH, ignore_cleanup_errors=True)
    with environments(job, ranks) as by_rank, scratch_folder as scratch:
        common = {"PYTHONUNBUFFERED": "1", "TMPDIR": scratch, GRACE_VARIABLE: str(job.limits.grace)}
        if len(job.hosts) > 1:
            common[BACKEND_VARIABLE] = job.replicas
        workers: list[Worker] = []
        try:
            signals.end_at_once(False)
            for rank in own_ranks:
                environment = {**os.environ, **job.environment, **by_rank[rank.rank], **common}
                with binding.bound(cores[rank.local_rank]):
                    workers.append(Worker(rank.rank, job.command, environment))
            cause = Watch(workers, job.limits, signals).run()
        finally:
            for worker in workers:
                worker.kill()  # Those that have started where another could not.
            procfs.kill_children()
    if cause and cause.lost and cause.code == PeerLostError().exit_code:
        cause = dataclasses.replace(cause, text=cause.text + _silent_hosts(job, ranks))
    closed_logs = [close_log(worker, str(cause or "the run ended")) for worker in workers]
    if cause is None:
        return int(workers[0].facts.get("result", workers[0].code or 0)), None
    ended = "" if len(workers) == 1 else f"; all {len(workers)} processes have ended"
    say(f"error: {cause}{ended}" + "".join(f"; {closed}" for closed in closed_logs if closed))
    return cause.code, cause


def _silent_hosts(job: Job, ranks: Sequence[plan.Rank]) -> str:
    """Returns a note of the hosts that no longer answer this one, with their ranks; "" if all do."""
    others = dict.fromkeys(host.name for i, host in enumerate(job.hosts) if i != job.launcher)
    lost = listening.silent(others, job.port)
    numbers = [f"{name} (rank {', '.join(str(r.rank) for r in ranks if r.host == name)})" for name in lost]
    return f": no answer from {', '.join(numbers)}" if numbers else ""


def close_log(worker: Worker, reason: str) -> str:
    """Ends the log that a process left open; returns a note about it, or "" if there is none."""
    name = worker.facts.get("log")
    if not name or not pathlib.Path(name).exists():
        return ""
    try:
        path = unfinished_log.close_log(name, reason, worker.facts["clock"] + time.monotonic())
    except UserError as error:
        return str(error)
    return f"{path} ends as aborted" if path else ""


@contextlib.contextmanager
def environments(job: Job, ranks: Sequence[plan.Rank]) -> Iterator[list[dict[str, str]]]:
    """Yields each rank's environment; runs Horovod's rendezvous server meanwhile."""
    alone = len(job.hosts) == 1
    names = (
        ["127.0.0.1"] if alone else listening.names_from_here([host.name for host in job.hosts], job.launcher)
    )
    first = names[0]
    if job.replicas in ("multiworker", "pjrt"):
        if alone:
            addresses = [f"{first}:{port}" for port in plan.free_ports(len(ranks))]
        else:
            addresses = [f"{names[rank.launcher]}:{job.port + 1 + rank.local_rank}" for rank in ranks]
        local_ranks = [rank.local_rank for rank in ranks if rank.launcher == job.launcher]
        gpus = {**os.environ, **job.environment}.get("CUDA_VISIBLE_DEVICES")
        yield [
            plan.multiworker_environment(rank, addresses, gpus, local_ranks[0], len(local_ranks))
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

    address = loopback or listening.local_address([host.name for host in job.hosts], job.launcher)
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
