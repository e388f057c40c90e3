"""Tests the command of every preset against its system's description, and run_and_time.sh's display of it."""

import dataclasses
import importlib
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys

import pytest

from common.errors import UserError
from resnet.presets import PRESETS
from tests.timetotrain.run.planned import command_of, printed
from timetotrain.launch import commands, containers

ROOT = pathlib.Path(__file__).resolve().parents[3]
BENCHMARKS = sorted(path.parent.name for path in ROOT.glob("*/config.py") if path.parent.name != "common")
EVERY = [(b, name) for b in BENCHMARKS for name in importlib.import_module(f"{b}.presets").PRESETS]
# What a user's shell has set: mpirun and docker pass some of it on.
ENVIRONMENT = {"HOME": "/h", "LD_LIBRARY_PATH": "/l", "NCCL_DEBUG": "INFO", "PATH": "/p"}


def flag(line, name):
    """The value of --name=value in a command line."""
    return next((word.partition("=")[2] for word in line if word.startswith(f"--{name}=")), None)


@pytest.mark.parametrize("benchmark, name", EVERY)
def test_the_printed_command_fits_the_preset_s_system(benchmark, name):
    """Compares hosts, accelerators per host and processes, read from the text of the command."""
    config = importlib.import_module(f"{benchmark}.presets").PRESETS[name]
    system = commands.describe(config.hardware)
    hosts, accelerators = system["number_of_nodes"], int(system["accelerators_per_node"] or 0)
    line = command_of(benchmark, f"--system={name}", "--data_dir=D")
    assert line[-2:] == [f"--system={name}", "--data_dir=D"] or line[-1].endswith(
        f"--system={name} --data_dir=D --result_dir=results"
    )
    if config.replicas == "tpu":
        assert line[:5] == ["gcloud", "compute", "tpus", "tpu-vm", "ssh"] and line[5] == config.hardware
        chips = int(hosts) * accelerators
        assert config.num_replicas in (
            (chips, 2 * chips) if benchmark != "transformer" else (chips // 2, chips, 2 * chips)
        )
        assert ("TPU_LOAD_LIBRARY=0" in line[-1]) == (int(hosts) > 1)
    elif config.replicas == "horovod":
        assert flag(line, "processes") == str(config.num_replicas) and flag(line, "replicas") == "horovod"
        if accelerators:
            assert config.num_replicas == int(hosts) * accelerators
        if line[0] == "sbatch":
            assert flag(line, "nodes") == (hosts or None)
            assert flag(line, "gpus-per-node") == (str(accelerators) if accelerators else None)
            assert (
                flag(line, "ntasks-per-node") == "1"
                if hosts
                else flag(line, "ntasks") == flag(line, "processes")
            )
            assert commands.SBATCH in line and (ROOT / commands.SBATCH).exists()
        else:
            assert hosts == "1" and line[1:4] == ["-m", "timetotrain", "launch"]
    elif config.replicas == "pjrt" and int(hosts) > 1:
        assert config.num_replicas == int(hosts) * accelerators and line[2:4] == ["timetotrain", "launch"]
        assert (flag(line, "processes"), flag(line, "hosts")) == (hosts, "@hosts.txt")
    elif config.replicas == "pjrt":  # One process drives all devices of a host.
        assert config.num_replicas == accelerators and line[1:3] == ["-m", benchmark]
    else:
        assert line[1:3] == ["-m", benchmark] and config.replicas in ("single", "mirrored")


def test_every_launcher_of_an_eight_gpu_host():
    run = "python -m resnet --system=v100-8 --data_dir=D"
    lines = {by: line_of(PRESETS["v100-8"], by, run.split()) for by in commands.LAUNCHERS if by != "tpu-vm"}
    ours = f"--replicas=horovod --processes=8 --settings=v100-8 -- {run}"
    assert lines == {
        "none": run,
        "local": f"python -m timetotrain launch {ours}",
        "slurm": "sbatch --wait --nodes=1 --ntasks-per-node=1 --gpus-per-node=8 "
        f"timetotrain/launch/slurm.sbatch {ours}",
        "horovodrun": "env TF_GPU_THREAD_MODE=gpu_private TF_GPU_THREAD_COUNT=2 "
        f"horovodrun --gloo -np 8 -H localhost:8 {run}",
        "mpirun": "mpirun -np 1 --bind-to none -x LD_LIBRARY_PATH -x NCCL_DEBUG -x PATH "
        f"python -m timetotrain launch {ours}",
    }


def line_of(config, by, program=("python", "-m", "x"), environment=ENVIRONMENT, **options):
    """The line of a launcher under `environment`."""
    where = commands.shape(config, commands.describe(config.hardware))
    line = commands.command(config, where, by, list(program), commands.Options(**options), environment)
    return shlex.join(line)


def test_every_launcher_of_several_hosts():
    config = dataclasses.replace(
        PRESETS["v100-8"], hardware="summit-2", num_replicas=12, global_batch_size=1536
    )
    where = commands.shape(config, commands.describe("summit-2"))
    assert where == commands.Shape(processes=12, hosts=2, accelerators=6)
    lines = {by: line_of(config, by) for by in ("local", "mpirun")}
    ours = (
        "python -m timetotrain launch --replicas=horovod --processes=12 --settings=summit --hosts=@hosts.txt"
    )
    ours += " -- python -m x"
    passed_on = "-x LD_LIBRARY_PATH -x NCCL_DEBUG -x PATH"
    assert lines == {
        "local": ours,
        "mpirun": f"mpirun -np 2 --hostfile hosts.txt --map-by ppr:1:node --bind-to none {passed_on} {ours}",
    }
    assert commands.launcher(config, where) == "slurm"
    assert "--nodes=2 --ntasks-per-node=1 --gpus-per-node=6" in shlex.join(
        commands.command(config, where, "slurm", ["python"])
    )


def test_slurm_s_and_google_s_options_stand_in_the_line():
    slurm = line_of(PRESETS["v100-8"], "slurm", partition="gpu", account="me", time="02:00:00")
    assert slurm.startswith(
        "sbatch --wait --partition=gpu --account=me --time=02:00:00 --nodes=1 --ntasks-per-node=1 --gpus-per-node=8 "
    )
    flags = {"project": "ours", "zone": "europe-west4-a"}
    start = "gcloud compute tpus tpu-vm ssh tpu-v3-32 --project=ours --zone=europe-west4-a --worker=0 "
    variables = "TPU_NAME=tpu-v3-32 TPU_LOAD_LIBRARY=0"
    assert line_of(PRESETS["tpu-v3-32"], "tpu-vm", **flags) == (
        f"{start}'--command=cd timetotrain && {variables} python -m x'"
    )
    line = line_of(PRESETS["tpu-v3-32"], "tpu-vm", container="ttt-tpu:1", **flags)
    assert line == (
        f"{start}'--command=cd timetotrain && sudo docker run --rm --init --privileged --network=host --ipc=host "
        '--volume="$PWD:$PWD" --workdir="$PWD" --env=TPU_NAME=tpu-v3-32 --env=TPU_LOAD_LIBRARY=0 ttt-tpu:1 '
        "python -m x'"
    )


def test_every_launcher_starts_containers(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: 7)
    monkeypatch.setattr(os, "getgid", lambda: 8)
    program = [".venv/bin/python", "-m", "x", "--data_dir=/data", "--result_dir=results"]
    run, here = "python -m x --data_dir=/data --result_dir=results", tmp_path
    ours = f"--replicas=horovod --processes=8 --settings=v100-8 -- {run}"
    docker = (
        "docker run --rm --init --stop-timeout=90 --network=host --ipc=host --ulimit=memlock=-1 --gpus=all --user=7:8 "
        f"--volume={here}:{here} --volume=/data:/data --workdir={here} --env=NCCL_DEBUG image:1"
    )
    apptainer = f"apptainer exec --nv --bind={here} --bind=/data --pwd={here} image.sif"
    config = PRESETS["v100-8"]
    assert line_of(config, "none", program, container="image:1") == f"{docker} {run}"
    assert (
        line_of(config, "local", program, container="image:1")
        == f"{docker} python -m timetotrain launch {ours}"
    )
    assert line_of(config, "local", program, container="image.sif", container_runtime="apptainer") == (
        f"{apptainer} python -m timetotrain launch {ours}"
    )
    assert line_of(config, "mpirun", program, container="image.sif") == (
        "mpirun -np 1 --bind-to none -x LD_LIBRARY_PATH -x NCCL_DEBUG -x PATH "
        f"{apptainer} python -m timetotrain launch {ours}"
    )
    slurm = "sbatch --wait --nodes=1 --ntasks-per-node=1 --gpus-per-node=8 timetotrain/launch/slurm.sbatch"
    assert line_of(config, "slurm", program, container="image:1") == (
        f"{slurm} --container-image=image:1 --container-mounts={here}:{here},/data:/data "
        f"--container-workdir={here} :: {ours}"
    )
    assert line_of(config, "slurm", program, container="image.sif", container_runtime="apptainer") == (
        f"{slurm} {apptainer} :: {ours}"
    )
    assert line_of(config, "horovodrun", program, container="image:1") == (
        f"{docker} env TF_GPU_THREAD_MODE=gpu_private TF_GPU_THREAD_COUNT=2 "
        f"horovodrun --gloo -np 8 -H localhost:8 {run}"
    )


def test_a_container_sees_the_folder_of_every_file_that_a_flag_names():
    flags = [
        "--init=/a/w.pth",
        "--config.init=/b/w",
        "--config.backbone=/c/w",
        "--config.initial_weights=/d/w",
    ]
    flags += ["--evaluate=/e/w.npz", "--export=/f/w", "--config.system=/g/x"]
    assert containers.mounts(flags, "/home") == ["/home", *(f"/{name}" for name in "abcdef")]


def test_a_cpu_s_container_asks_for_no_gpus():
    line = line_of(PRESETS["cpu-tiny"], "none", container="image:1")
    assert line.startswith("docker run --rm --init --stop-timeout=90 --network=host") and "--gpus" not in line


@pytest.mark.parametrize(
    "by, options, message",
    [
        (
            "local",
            {"partition": "gpu"},
            "--partition=gpu: LAUNCHER=local has no such option; use LAUNCHER=slurm",
        ),
        ("mpirun", {"time": "1:00"}, "--time=1:00: LAUNCHER=mpirun has no such option"),
        ("slurm", {"zone": "z"}, "--zone=z: LAUNCHER=slurm has no such option; use LAUNCHER=tpu-vm"),
        ("local", {"container_runtime": "docker"}, "--container_runtime=docker: give --container=IMAGE too"),
        (
            "mpirun",
            {"container": "i", "container_runtime": "docker"},
            "--container_runtime=docker: LAUNCHER=mpirun starts apptainer; use that",
        ),
        (
            "local",
            {"container": "i", "container_runtime": "pyxis"},
            "--container_runtime=pyxis: LAUNCHER=local starts docker or apptainer; use that",
        ),
    ],
)
def test_an_option_that_a_launcher_does_not_read_is_an_error(by, options, message):
    with pytest.raises(UserError, match=re.escape(message)):
        line_of(PRESETS["v100-8"], by, **options)


def test_options_count_in_any_order():
    lines = [
        printed("resnet", "--partition=p", "--launcher=slurm", "--system=v100-8"),
        printed("resnet", "--launcher=slurm", "-system=v100-8", "-partition", "p"),
    ]
    assert lines[0] == lines[1] and lines[0].startswith("sbatch --wait --partition=p --nodes=1 ")


def test_multiworker_has_one_process_per_host_with_accelerators_and_one_per_replica_without():
    gpus = dataclasses.replace(
        PRESETS["v100-8"], replicas="multiworker", hardware="summit-4", num_replicas=24
    )
    assert commands.shape(gpus, commands.describe("summit-4")).processes == 4
    laptop = dataclasses.replace(PRESETS["cpu-tiny"], replicas="multiworker", num_replicas=2)
    assert commands.shape(laptop, commands.describe("local")).processes == 2


def test_mirrored_is_one_process_on_one_host():
    where = commands.shape(PRESETS["cpu-tiny"], commands.describe("local"))
    assert (where.processes, where.hosts) == (1, 1)


def test_pjrt_has_one_process_per_host():
    node = dataclasses.replace(PRESETS["v100-8"], replicas="pjrt")
    where = commands.shape(node, commands.describe("v100-8"))
    assert where.processes == 1 and commands.launcher(node, where) == "none"
    several = dataclasses.replace(node, hardware="summit-4", num_replicas=24)
    where = commands.shape(several, commands.describe("summit-4"))
    assert where.processes == 4 and commands.launcher(several, where) == "slurm"
    line = shlex.join(commands.command(several, where, "slurm", ["python", "-m", "x"]))
    assert (
        "--nodes=4 --ntasks-per-node=1 --gpus-per-node=6" in line and "--replicas=pjrt --processes=4" in line
    )
    laptop = dataclasses.replace(PRESETS["cpu-tiny"], replicas="pjrt", num_replicas=4)
    assert commands.shape(laptop, commands.describe("local")).processes == 1


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"num_replicas": 4}, "v100-8 has 1 hosts of 8 accelerators; use 8 replicas"),
        ({"hardware": "nowhere"}, "No system is named 'nowhere'"),
        ({"hardware": "/tmp/x"}, "No system is named '/tmp/x'"),
        ({"hardware": "summit-16"}, "do not divide; use a multiple of 16"),
        ({"hardware": "tpu-v3-32", "replicas": "tpu", "num_replicas": 64}, "4 hosts of 4 chips"),
    ],
)
def test_a_preset_that_does_not_fit_its_system_is_an_error(changes, message):
    config = dataclasses.replace(PRESETS["v100-8"], **changes)
    with pytest.raises(UserError, match=message):
        commands.shape(config, commands.describe(config.hardware))


@pytest.mark.parametrize(
    "name, by, message",
    [
        ("cpu-tiny", "slurm", "config.replicas=single is one process; use LAUNCHER=none"),
        ("tpu-v3-32", "slurm", "use tpu-vm"),
        ("v100-8", "tpu-vm", "cannot start config.replicas=horovod"),
        ("v100-8", "srun", "--launcher=srun: unknown .did you mean .*mpirun"),
    ],
)
def test_a_launcher_that_cannot_start_the_backend_is_an_error(name, by, message):
    with pytest.raises(UserError, match=message):
        command_of("resnet", f"--system={name}", f"--launcher={by}")


def script(benchmark, *flags, **environment):
    return subprocess.run(
        [str(ROOT / benchmark / "run_and_time.sh"), *flags],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("how", [{"PRINT_COMMAND": "1"}, {}])
def test_run_and_time_shows_its_command_and_runs_nothing(how, tmp_path):
    flags = () if how else ("--print_command",)
    result = script(
        "resnet", *flags, SYSTEM="v100-8", RESULT_DIR=str(tmp_path / "r"), PYTHON="python3", **how
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == (
        "python3 -m timetotrain launch --replicas=horovod --processes=8 --settings=v100-8 -- python3 -m resnet "
        f"--system=v100-8 --data_dir=DATA_DIR --result_dir={tmp_path}/r\n"
    )
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_run_and_time_starts_its_own_benchmark(benchmark):
    result = script(benchmark, "--print_command", PYTHON="python3", SYSTEM="cpu-tiny")
    assert result.stdout.startswith(
        f"python3 -m {benchmark} --system=cpu-tiny --data_dir=.cache/{benchmark}-tiny "
    )


def test_run_and_time_of_one_machine_mentions_no_launcher(tmp_path):
    result = script("resnet", "--print_command", RESULT_DIR=str(tmp_path), PYTHON="python3")
    assert result.stdout.startswith("python3 -m resnet --system=cpu-tiny ") and not result.stderr


def fake(path, code):
    """A `python` that runs the program itself, and `code` in the place of a run."""
    path.write_text(
        f'#!/usr/bin/env bash\n[[ "$2 $3" != "timetotrain run" ]] || exec {sys.executable} "$@"\n'
        f"exec {sys.executable} -c {shlex.quote(code)}\n"
    )
    path.chmod(0o755)
    return {**os.environ, "PYTHON": str(path), "SYSTEM": "v100-8", "DATA_DIR": str(path.parent)}


# It writes without Python's buffers: a handler may not enter one that the interrupted program is in.
HANDLES = """import os, signal, sys, time
def stop(*_):
    time.sleep(0.3)
    os.write(1, b'saved\\n')
    sys.exit({})
for number in signal.SIGTERM, signal.SIGINT:
    signal.signal(number, stop)
os.write(1, b'runs\\n')
time.sleep(60)
"""


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_and_time_passes_a_signal_on_and_ends_after_the_run(number, runs, tmp_path):
    process = subprocess.Popen(
        [ROOT / "resnet" / "run_and_time.sh"],
        env={**fake(tmp_path / "python", HANDLES.format(143)), "NEXP": str(runs)},
        stdout=subprocess.PIPE,
        text=True,
        # A process keeps ignoring a signal that was ignored at its start, as in tests that run in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout.readline() == "runs\n"
    process.send_signal(number)
    # No further run follows the one that was stopped.
    assert process.communicate(timeout=30)[0] == "saved\n"
    assert process.returncode == 143


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("code", [0, 7])
def test_a_run_that_ends_at_once_on_a_signal_to_all_keeps_its_status(code, runs, tmp_path):
    environment = {**fake(tmp_path / "python", HANDLES.format(code)), "NEXP": str(runs)}
    process = subprocess.Popen(
        [ROOT / "resnet" / "run_and_time.sh"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "runs\n"
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == code


@pytest.mark.parametrize(("codes", "status", "ran"), [("000", 0, 3), ("010", 1, 3), ("050", 5, 2)])
def test_a_missed_target_is_a_result_and_a_failure_ends_the_series(codes, status, ran, tmp_path):
    code = (
        "import pathlib, sys\n"
        f"seen = pathlib.Path({str(tmp_path / 'seen')!r})\n"
        "number = len(seen.read_text()) if seen.exists() else 0\n"
        f"seen.write_text('x' * (number + 1)); sys.exit(int({codes!r}[number]))"
    )
    done = subprocess.run(
        [ROOT / "resnet" / "run_and_time.sh"],
        env={**fake(tmp_path / "python", code), "NEXP": "3"},
        timeout=60,
    )
    assert (done.returncode, len((tmp_path / "seen").read_text())) == (status, ran)


def test_caches_of_other_machines_are_not_cleared(tmp_path):
    done = script("resnet", SYSTEM="cpu-cluster-1024", DATA_DIR=str(tmp_path), CLEAR_CACHES="1")
    assert done.returncode == 2 and done.stderr.startswith(
        "error: --clear_caches: it clears the caches of this"
    )


def test_each_run_has_its_seed():
    lines = printed("mnist", "--runs=2", "--seed=4", "--config.train_epochs=3").splitlines()
    assert [flag(shlex.split(line), "seed") for line in lines] == ["4", "5"]
    assert all(line.endswith(" --config.train_epochs=3") for line in lines)
    assert "--seed" not in printed("mnist") and "--seed=1" in printed("mnist", "--runs=2")


def test_an_override_decides_the_launcher_too():
    line = command_of("resnet", "--system=cpu-tiny", "--replicas", "horovod", "--config.num_replicas=2")
    assert line[:6] == ["python", "-m", "timetotrain", "launch", "--replicas=horovod", "--processes=2"]


@pytest.mark.parametrize(
    "name, field, message",
    [
        ("tpu-v3-2048", "num_replicas=0", "num_replicas"),
        ("v100-8", "num_replicas=0", "num_replicas"),
        ("v100-8", "global_batch_size=1001", "global_batch_size"),
    ],
)
def test_a_configuration_that_cannot_run_is_one_line(name, field, message):
    """The error comes before the command is made, not from the run on every host."""
    with pytest.raises(UserError, match=f"^config.*{message}"):
        printed("resnet", f"--system={name}", f"--config.{field}")
