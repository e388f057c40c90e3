"""Tests the placement of processes: hosts from flags, files and SLURM, the ranks on them, and their shares of cores."""

import pytest

from common.config.schema import RunConfig
from common.distributed import process
from common.errors import UserError
from timetotrain.launch import local, plan
from timetotrain.launch.watch.failure_cause import Cause


def test_ranks_of_uneven_hosts():
    actual = plan.ranks(plan.parse_hosts("a:2,b:1,a:1"))
    assert [(r.rank, r.host, r.local_rank, r.local_size, r.cross_rank, r.cross_size) for r in actual] == [
        (0, "a", 0, 3, 0, 2),
        (1, "a", 1, 3, 0, 1),
        (2, "b", 0, 1, 1, 2),
        (3, "a", 2, 3, 0, 1),
    ]
    assert [r.launcher for r in actual] == [0, 0, 1, 2]


def test_ranks_equal_horovod_s():
    """Compares with Horovod's own assignment, where it is installed."""
    hosts = pytest.importorskip("horovod.runner.common.util.hosts")
    for text in ("a:4", "a:3,b:1,c:2", "a:2,b:2"):
        theirs = hosts.get_host_assignments(hosts.parse_hosts(text), 1)
        names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
        ours = plan.ranks(plan.parse_hosts(text))
        assert [[getattr(r, n) for n in names] for r in ours] == [
            [getattr(r, n) for n in names] for r in theirs
        ]


def test_hosts_of_a_file(tmp_path):
    (tmp_path / "hosts.txt").write_text("# ours\na slots=8\n\nb  slots=4\n")
    assert plan.parse_hosts(f"@{tmp_path}/hosts.txt") == [plan.Host("a", 8), plan.Host("b", 4)]


def test_hosts_of_srun():
    srun = {"SLURM_NTASKS": "2", "SLURM_PROCID": "1", plan.SLURM_HOSTS: "n1 n2"}
    assert plan.slurm_hosts(4, srun) == ([plan.Host("n1", 2), plan.Host("n2", 2)], 1)
    with pytest.raises(UserError, match="--processes=3: does not divide among the 2 tasks"):
        plan.slurm_hosts(3, srun)
    for wrong in ({}, {**srun, "SLURM_PROCID": ""}):
        with pytest.raises(
            UserError, match="not started by timetotrain/launch/slurm.sbatch; submit that, or"
        ):
            plan.slurm_hosts(4, wrong)
    with pytest.raises(
        UserError, match="_HOSTS has 2 hosts, and this step of the job 1 tasks; start one per"
    ):
        plan.slurm_hosts(4, {**srun, "SLURM_NTASKS": "1"})


def test_runs_side_by_side_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.os, "sched_getaffinity", lambda _: set(range(8)))
    assert process.core_share(1) == {}
    assert process.core_share(4)["TF_NUM_INTRAOP_THREADS"] == "2"
    assert process.core_share(16)["TF_NUM_INTRAOP_THREADS"] == "1"


def test_pjrt_is_one_process_or_those_of_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_RANK", raising=False)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    config = RunConfig(replicas="pjrt", num_replicas=4)
    assert process.place(config) == process.Process()
    ranks = plan.ranks([plan.Host("localhost", 2)])
    for name, value in plan.multiworker_environment(ranks[1], ["a:1", "a:2"]).items():
        monkeypatch.setenv(name, value)
    assert process.place(config) == process.Process(1, 2)


@pytest.mark.parametrize(
    "visible, first, count, gpus",
    [
        (None, 0, 2, ["0", "1", "2", "3"]),
        ("4,5,6,7", 0, 4, ["4", "5", "6", "7"]),
        ("GPU-a,GPU-b", 2, 2, [None, None, "GPU-a", "GPU-b"]),  # A task of srun sees its own GPUs alone.
        ("0", 3, 1, [None, None, None, "unset"]),
        ("", 0, 4, ["unset"] * 4),
    ],
)
def test_each_process_of_a_host_gets_its_own_gpu_of_those_that_a_scheduler_shows(visible, first, count, gpus):
    ranks = plan.ranks([plan.Host("a", 4)])
    for rank, gpu in zip(ranks, gpus):
        if gpu is not None:
            environment = plan.multiworker_environment(rank, ["a:1"], visible, first, count)
            assert environment.get("CUDA_VISIBLE_DEVICES", "unset") == gpu


def test_fewer_gpus_than_processes_are_an_error():
    with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES=0: 1 GPUs for 2 processes"):
        plan.multiworker_environment(plan.ranks([plan.Host("a", 2)])[1], ["a:1"], "0", 0, 2)


def test_a_restart_s_command_has_replicas_in_proportion():
    assert plan.rescaled(["4", "--config.num_replicas=16"], 4, 3) == ["4", "--config.num_replicas=12"]


def attempts_of(monkeypatch, causes, restarts):
    """The exit status of a launcher whose attempts end with these causes, how many it made, and its waits."""
    remaining, waits = iter(causes), []
    monkeypatch.setattr(local, "_attempt", lambda *_: (2, next(remaining)))
    monkeypatch.setattr(local.time, "sleep", waits.append)
    status = local.launch(local.Job("pjrt", ["true"], [plan.Host("localhost", 2)], max_restarts=restarts))
    return status, len(causes) - len(list(remaining)), waits


def test_each_restart_from_one_checkpoint_waits_twice_as_long_up_to_a_minute(monkeypatch):
    starts = [0, 0, 0, 84, 84, 84, 84, 84, 84, 84, 84, 84]
    causes = [Cause(1, "was killed", 137, start=start, trained=True) for start in starts]
    waits = attempts_of(monkeypatch, causes, restarts=8)
    assert waits == (2, len(starts), [1, 2, 4, 1, 2, 4, 8, 16, 32, 60, 60])


@pytest.mark.parametrize(
    "errors, attempts",
    [
        (["disk full"], 1),  # At the start of a run it is its input.
        (["", "log 1: disk full", "log 2: disk full", "log 3: disk full", "log 4: disk full"], 4),
        (["", "batch 64 for 3 replicas", "batch 64 for 3 replicas"], 3),
    ],
)
def test_after_training_a_run_starts_again_unless_two_starts_find_the_same_error(
    monkeypatch, errors, attempts
):
    """An empty error is one of a step."""
    causes = [Cause(0, f"failed: {e}", 2 if e else 1, trained=not e) for e in errors]
    assert attempts_of(monkeypatch, causes, restarts=3)[:2] == (2, attempts)
