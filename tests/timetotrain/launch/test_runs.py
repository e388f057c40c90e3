"""Tests whole runs under the launcher: killed runs resume or start again, to the right weights."""

import functools
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from common.train import checkpoint_file
from lab.bench.harness import faulty, launched
from tests.common.distributed.replicas import processes
from timetotrain.launch import plan

ROOT = pathlib.Path(__file__).resolve().parents[3]
STEPS, EPOCH = 420, 84
OWN_FLAGS = ["--config.activation=tanh", f"--config.train_steps={STEPS}"]
FLAGS = [*launched.NETWORK, *launched.BATCH, *OWN_FLAGS]

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def data():
    with launched.digits() as folder:
        yield folder


def command(data, folder, backend, processes, *flags):
    run = [sys.executable, "-m", "mnist", "--system=cpu-tiny", f"--data_dir={data}", f"--result_dir={folder}"]
    run += [f"--checkpoint_dir={folder}/checkpoints", f"--replicas={backend}", *FLAGS]
    if backend == "single":
        return run
    launcher = [
        sys.executable, "-m", "timetotrain", "launch", f"--replicas={backend}", f"--processes={processes}",
    ]  # fmt: skip
    return [*launcher, *flags, "--", *run, f"--config.num_replicas={processes}"]


def environment():
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"}


def run(data, folder, backend, processes=1, *flags):
    line = command(data, folder, backend, processes, *flags)
    return subprocess.run(line, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)


def run_and_kill(data, folder, backend, processes, rank, *flags, then=lambda: None):
    """Kills one process of a run after two blocks, having called `then`; returns (exit status, output)."""
    folder.mkdir(exist_ok=True)
    saves = f"--checkpoint_dir={folder}/checkpoints"
    started = launched.Launched(folder, data, backend, processes, flags, *OWN_FLAGS, saves)
    try:
        until = time.monotonic() + 200
        while len(list((folder / "checkpoints").glob("*.npz"))) < 2:
            assert time.monotonic() < until and started.launcher.poll() is None, started.text
            time.sleep(0.05)
        then()
        os.kill(started.pids()[rank], signal.SIGKILL)
        return started.launcher.wait(200), started.text
    finally:
        started.close()


def weights(folder):
    """The arrays of the last checkpoint."""
    path = folder / "checkpoints" / f"checkpoint_{STEPS:08d}.npz"
    with np.load(path) as file:
        return {name: file[name] for name in file.files if name != "meta"}


def log_records(folder, number=0):
    text = (folder / "cpu-tiny" / "mnist" / f"result_{number}.txt").read_text()
    return [json.loads(line.partition(" ")[2]) for line in text.splitlines()]


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    result = run(data, folder, "single")
    assert result.returncode == 1, result.stderr  # The target is out of reach.
    return weights(folder)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A function that returns the weights of a backend's uninterrupted run of two processes."""

    @functools.cache
    def weights_of(backend):
        folder = tmp_path_factory.mktemp(backend)
        assert run(data, folder, backend, 2).returncode == 1
        return weights(folder)

    return weights_of


@pytest.mark.parametrize("backend, rank", [("horovod", 0), ("multiworker", 1), ("pjrt", 1)])
def test_a_killed_run_resumes_to_the_weights_of_an_uninterrupted_one(
    data, tmp_path, backend, rank, whole, alone
):
    processes.require(backend)
    broken = tmp_path / "broken"
    code, text = run_and_kill(data, broken, backend, 2, rank)
    assert code == 137 and f"error: rank {rank} was killed by SIGKILL; all 2 processes have ended" in text
    assert log_records(broken)[-1]["metadata"]["status"] == "aborted"
    again = run(data, broken, backend, 2)
    assert again.returncode == 1 and "resumed from step" in again.stderr, again.stderr
    for name, value in whole(backend).items():
        np.testing.assert_array_equal(value, weights(broken)[name], err_msg=name)
        np.testing.assert_allclose(value, alone[name], rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("backend, rank", [("horovod", 1), ("multiworker", 0), ("pjrt", 0)])
def test_a_failed_run_starts_again_by_itself_and_ends_with_the_same_weights(
    data, tmp_path, backend, rank, whole
):
    processes.require(backend)
    code, text = run_and_kill(data, tmp_path / "broken", backend, 2, rank, "--max_restarts=1")
    assert code == 1, text  # The target is out of reach: a result, not a failure.
    assert "restart 1 of 1: from the newest checkpoint" in text and "resumed from step" in text
    assert log_records(tmp_path / "broken")[-1]["metadata"]["status"] == "aborted"
    assert log_records(tmp_path / "broken", 1)[-1]["metadata"]["reason"].startswith("the target was not")
    for name, value in whole(backend).items():
        np.testing.assert_array_equal(value, weights(tmp_path / "broken")[name], err_msg=name)


def test_a_run_restarts_with_the_hosts_that_are_left(data, tmp_path, alone):
    """The file of hosts is read again: here it loses one of two processes."""
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("localhost slots=2\n")
    code, text = run_and_kill(
        data, tmp_path, "multiworker", 2, 1, f"--hosts=@{hosts}", "--max_restarts=1",
        then=lambda: hosts.write_text("localhost slots=1\n"),
    )  # fmt: skip
    assert code == 1, text
    assert "restart 1 of 1: from the newest checkpoint, with 1 processes" in text
    for name, value in weights(tmp_path).items():
        np.testing.assert_allclose(value, alone[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_a_rank_whose_tf_data_pipeline_stalls_is_named(data, tmp_path):
    """A map function that never returns, as on a dead file server: its process lives, and its heart beats."""
    flags = ["--progress_seconds=15", "--phase_seconds=600", "--max_restarts=0"]
    run = launched.Launched(tmp_path, data, "multiworker", 2, flags, "--config.train_steps=100000")
    try:
        until = time.monotonic() + 200
        while not run.steps() and time.monotonic() < until:
            time.sleep(0.2)
        os.kill(run.pids()[1], faulty.STALL)
        assert run.launcher.wait(120) == 3
        assert "error: rank 1 makes no progress: it waits for its input" in run.text
        assert "warning: stuck: rank 0" in run.text and not run.pids()
    finally:
        run.close()


def mounts() -> list[str]:
    """A command's words that run it where it may mount a folder; [] where that is forbidden."""
    words = ["unshare", "--user", "--map-root-user", "--mount"]
    allowed = (
        shutil.which("unshare") and subprocess.run([*words, "true"], capture_output=True).returncode == 0
    )
    return words if allowed else []


@pytest.mark.skipif(not mounts(), reason="no user namespaces here")
def test_a_disk_that_fills_in_mid_run_ends_it_with_the_reason_and_a_whole_checkpoint(data, tmp_path):
    """A file system of 4 MB has room for one checkpoint of 3.4 MB; the thread that writes the second one fails."""
    folder, after = tmp_path / "checkpoints", tmp_path / "after"
    folder.mkdir()
    script = f'mount -t tmpfs -o size=4000k tmpfs "$0" && "$@"; status=$?; cp -r "$0" {after}; exit $status'
    line = [*mounts(), "sh", "-c", script, folder, *command(data, tmp_path, "single", 1)]
    done = subprocess.run(line, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)
    reason = (
        f"--checkpoint_dir={folder}: cannot write a checkpoint: No space left on device; free space there"
    )
    assert done.returncode == 2 and f"error: {reason}\n" in done.stderr and "Traceback" not in done.stderr
    stopped = log_records(tmp_path)[-1]
    assert (stopped["key"], stopped["metadata"]["status"]) == ("run_stop", "aborted")
    assert stopped["metadata"]["reason"] == reason
    saved = checkpoint_file.checkpoints(after)
    assert [path.name for path in after.glob("*checkpoint*")] == [saved[0].name] and len(saved) == 1
    assert checkpoint_file.read(saved[0]).meta["step"] == EPOCH


def slurm_runs():
    return (
        shutil.which("sinfo") is not None and subprocess.run(["sinfo"], capture_output=True).returncode == 0
    )


@pytest.mark.skipif(not slurm_runs(), reason="no SLURM is running here (docs/reliability.md starts one)")
@pytest.mark.parametrize("backend", ["horovod", "multiworker", "pjrt"])
def test_the_sbatch_file_runs_two_tasks(data, tmp_path, backend):
    processes.require(backend)
    output = tmp_path / "out"
    run_line = command(data, tmp_path, backend, 2)
    flags = run_line[run_line.index("--") + 1 :]
    submit = [
        "sbatch", "--wait", "--nodes=1", "--ntasks=2", f"--output={output}",
        "timetotrain/launch/slurm.sbatch",
    ]  # fmt: skip
    submit += [f"--replicas={backend}", "--processes=2", "--", *flags]
    result = subprocess.run(submit, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)
    assert result.returncode == 1, output.read_text()  # The status of rank 0, whose target is out of reach.
    assert log_records(tmp_path)[-1]["metadata"]["reason"].startswith("the target was not reached")


def start_preset(data, folder, backend, launcher, *options, **variables):
    """Starts the run by the command that run_and_time.sh takes for a launcher, and returns it."""
    flags = command(data, folder, backend, 2)
    flags = flags[flags.index("mnist") + 1 :]
    line = [
        sys.executable, "-m", "timetotrain", "run", "mnist", f"--launcher={launcher}", "--generate=0",
        *options, *flags,
    ]  # fmt: skip
    # A launcher that refuses root: Open MPI's.
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    variables = {**environment(), **root, "PYTHON": sys.executable, **variables}
    return subprocess.run(line, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300)


@pytest.mark.skipif(not slurm_runs(), reason="no SLURM is running here (docs/reliability.md starts one)")
def test_slurm_runs_a_preset_with_its_options_behind_a_container_s_words(data, tmp_path):
    """`env` stands for a container's command: the words go to srun, and Python is found on the PATH."""
    processes.require("horovod")
    output = tmp_path / "out"
    tool = tmp_path / "apptainer"
    tool.write_text(
        f'#!/bin/sh\necho "$@" >{tmp_path}/words\nwhile [ "$1" != image ]; do shift; done\nshift\nexec "$@"\n'
    )
    tool.chmod(0o755)
    path = f"{tmp_path}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    options = ["--partition=main", "--time=00:10:00", "--container=image", "--container_runtime=apptainer"]
    done = start_preset(data, tmp_path, "horovod", "slurm", *options, SBATCH_OUTPUT=str(output), PATH=path)
    assert done.returncode == 1, done.stderr + output.read_text()  # The target is out of reach.
    assert (tmp_path / "words").read_text().startswith(f"exec --bind={ROOT} --bind=")
    assert log_records(tmp_path)[-1]["metadata"]["reason"].startswith("the target was not reached")


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun here (apt-get install openmpi-bin)")
@pytest.mark.parametrize("backend", ["horovod", "multiworker"])
def test_mpirun_runs_a_preset(data, tmp_path, backend, alone):
    processes.require(backend)
    done = start_preset(data, tmp_path, backend, "mpirun")
    assert done.returncode == 1, done.stdout + done.stderr
    for name, value in weights(tmp_path).items():
        np.testing.assert_allclose(value, alone[name], rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun here (apt-get install openmpi-bin)")
def test_two_launchers_of_mpirun_meet(data, tmp_path):
    """Each of mpirun's processes is a launcher of one host; here both names are this machine's."""
    processes.require("horovod")
    line = command(data, tmp_path, "horovod", 2, f"--hosts=localhost:1,{socket.gethostname()}:1")
    line.remove("--processes=2")
    # Open MPI takes nothing of the environment to other hosts but what -x names.
    started = ["mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none", "-x", "FAULT_MARK"]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    variables = {**environment(), **root, "FAULT_MARK": "here"}
    done = subprocess.run(
        [*started, *line], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert log_records(tmp_path)[-1]["metadata"]["reason"].startswith("the target was not reached")


@pytest.mark.parametrize("backend", ["multiworker", "pjrt", "horovod"])
def test_the_check_says_a_line_of_each_thing_that_a_run_needs(data, tmp_path, backend):
    processes.require(backend)
    line = [
        sys.executable, "-m", "timetotrain", "launch", f"--replicas={backend}", "--processes=2", "--check",
    ]  # fmt: skip
    line += ["--", "python", f"--data_dir={data}", f"--result_dir={tmp_path}"]
    done = subprocess.run(line, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [words[1] for text in done.stdout.splitlines() if (words := text.split())[:1] == ["ok"]]
    disks = ["space", "disk"] * 2
    assert names == ["names", "clocks", "command", "versions", *disks, "data", *["sums"] * 3, "products"]


@pytest.mark.parametrize(
    "backend, more",
    [("multiworker", []), ("pjrt", ["--config.num_replicas=4"]), ("multiworker", ["--dry_run"])],
)
def test_a_process_that_refuses_to_start_says_so_on_every_host(data, tmp_path, backend, more):
    port, launchers = plan.free_ports(1)[0] - 1, []
    for i in range(2):
        line = command(data, tmp_path, backend, 2, f"--launcher={i}", f"--port={port}")
        line[line.index("--processes=2")] = "--hosts=127.0.0.1:1,127.0.0.1:1"
        line = (
            line[:-1] + more if backend == "pjrt" else line + more
        )  # The last one is --config.num_replicas.
        line += ["--config.optimiser=sgd"] if i else []
        launchers.append(
            subprocess.Popen(line, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True)
        )
    errors = [launcher.communicate(timeout=200)[1] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [2, 2], errors
    assert "error: rank 0 failed: rank 1 does not start: --config.optimiser=sgd" in errors[0]
    assert "error: rank 1 failed: --config.optimiser=sgd" in errors[1]
    assert errors[1].startswith("rank 1: error: --config.optimiser=sgd")


WRONG = {
    "program": ("command", ["-m"], ["mnist"], "the program differs: rank 0 has -m, rank 1 has -m mnist"),
    "no data": ("data", ["--data_dir", "/no such folder"], [], "there is no such folder"),
    "settings": (
        "command",
        [],
        ["--config.global_batch_size=32"],
        "global_batch_size differs: rank 0 has none",
    ),
    "other bytes": ("data", ["--data_dir={}/a b"], ["--data_dir={}/b"], "the data differs"),
    "checkpoints": (
        "checkpoints",
        ["--checkpoint_dir={}/x"],
        [],
        "not every process sees what process 0 writes",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_check_fails_for_what_hosts_have_in_different_ways(tmp_path, name):
    """Two launchers of one process each; the mount of the second hides a folder."""
    check, both, second, text = WRONG[name]
    for folder, content in (("a b", bytes(1000)), ("b", bytes(999) + b"1")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train").write_bytes(content)
    port, launchers = plan.free_ports(1)[0] - 1, []  # Process 0 meets the others at the port after it.
    for i in range(2):
        line = [sys.executable, "-m", "timetotrain", "launch", "--replicas=multiworker", f"--launcher={i}"]
        line += ["--hosts=127.0.0.1:1,127.0.0.1:1", f"--port={port}", "--check", "--", "python"]
        words = [word.format(tmp_path) for word in both + (second if i else [])]
        hidden = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs x {tmp_path} && exec "$@"', "sh"]
        if name == "checkpoints" and i:
            if subprocess.run([*hidden, "true"], capture_output=True).returncode:
                pytest.skip("needs the right to mount a tmpfs")
            line = [*hidden, *line]
        launchers.append(
            subprocess.Popen([*line, *words], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)
        )
    outputs = [launcher.communicate(timeout=200)[0] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [1, 1]
    failed = [line for line in outputs[0].splitlines() if line.startswith("FAILS")]
    assert len(failed) == 1 and failed[0].split()[1] == check and text in failed[0], outputs[0]
