"""The launcher: starts this machine's processes of a run and runs them until they end."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence

from common.errors import UserError
from timetotrain.launch import binding, plan
from timetotrain.launch.children import adopt_orphans
from timetotrain.launch.elastic import Membership
from timetotrain.launch.watch import unfinished_log
from timetotrain.launch.watch.loop import Limits, Watch
from timetotrain.launch.watch.worker import Worker


@dataclasses.dataclass(frozen=True)
class Job:
    """The run to launch: `hosts` lists the hosts of all launchers; this is launcher number `launcher`.

    `elastic`: if processes are lost, the others continue while at least `min_processes` remain. `environment` is added
    to each process's environment. `bind` binds each process to the cores and memory nearest its GPU.
    """

    replicas: str
    command: Sequence[str]
    hosts: Sequence[plan.Host]
    launcher: int = 0
    port: int = plan.PORT
    limits: Limits = Limits()
    elastic: bool = False
    min_processes: int = 1
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    bind: bool = False


def launch(job: Job) -> int:
    """Runs this machine's processes of a job until they end; returns the exit status."""
    adopt_orphans()
    ranks = plan.ranks(job.hosts)
    own_ranks = [rank for rank in ranks if rank.launcher == job.launcher]
    # Several launchers may share a host: a process uses the GPU of its rank on the host.
    bound = binding.prefixes(max(rank.local_rank for rank in own_ranks) + 1) if job.bind else []
    with _environments(job, ranks) as (environments, membership):
        workers: list[Worker] = []
        try:
            for rank in own_ranks:
                environment = {
                    **os.environ, **job.environment, **environments[rank.rank], "PYTHONUNBUFFERED": "1"
                }  # fmt: skip
                words = [*(bound[rank.local_rank] if bound else []), *job.command]
                workers.append(Worker(rank.rank, words, environment))
        except OSError as error:
            for worker in workers:
                worker.kill()
            raise UserError(f"{job.command[0]}: {error.strerror}; is the command right?") from error
        watch = Watch(workers, job.limits, membership.lose if membership else lambda rank: False)
        cause = watch.run()
    closed_logs = [close_log(worker, str(cause or "the run ended")) for worker in workers]
    if cause is None:
        # Rank 0 determines the run's result; launchers on other hosts report success.
        return 0 if job.launcher else int(workers[0].told.get("result", workers[0].code or 0))
    ended = "" if len(workers) == 1 else f"; all {len(workers)} processes have ended"
    watch.say(f"error: {cause}{ended}" + "".join(f"; {closed}" for closed in closed_logs if closed))
    return cause.code


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
def _environments(
    job: Job, ranks: Sequence[plan.Rank]
) -> Iterator[tuple[list[dict[str, str]], Membership | None]]:
    """Yields each rank's environment and an elastic run's membership; runs the rendezvous server meanwhile."""
    alone = len(job.hosts) == 1
    first = "127.0.0.1" if alone else job.hosts[0].name
    if job.replicas in ("multiworker", "pjrt"):
        if alone:
            addresses = [f"{first}:{port}" for port in plan.free_ports(len(ranks))]
        else:
            addresses = [f"{rank.host}:{job.port + 1 + rank.local_rank}" for rank in ranks]
        yield [plan.multiworker_environment(rank, addresses) for rank in ranks], None
        return
    if importlib.util.find_spec("horovod") is None:
        raise UserError("--replicas=horovod: Horovod is not installed; run `make horovod`")
    interface = "lo" if alone else plan.interface_to(first)
    server, port, membership = None, job.port, None
    if job.launcher == 0:
        from timetotrain.launch.rendezvous import Rendezvous

        server = Rendezvous(ranks, first if alone else "", 0 if alone else port)
        port = server.port
        if job.elastic:
            membership = server.elastic(ranks, job.min_processes)
    extra = {"HOROVOD_ELASTIC": "1"} if job.elastic else {}
    try:
        yield [plan.horovod_environment(rank, first, port, interface) | extra for rank in ranks], membership
    finally:
        if server:
            server.close()
