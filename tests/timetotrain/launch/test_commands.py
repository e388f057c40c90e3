"""Tests the command of every preset against its system's description."""

import dataclasses
import importlib
import os
import pathlib
import re
import shlex

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
    run, folder = "python -m x --data_dir=/data --result_dir=results", tmp_path
    ours = f"--replicas=horovod --processes=8 --settings=v100-8 -- {run}"
    docker = (
        "docker run --rm --init --stop-timeout=90 --network=host --ipc=host --ulimit=memlock=-1 --gpus=all --user=7:8 "
        f"--volume={folder}:{folder} --volume=/data:/data --workdir={folder} --env=NCCL_DEBUG image:1"
    )
    apptainer = f"apptainer exec --nv --bind={folder} --bind=/data --pwd={folder} image.sif"
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
        f"{slurm} --container-image=image:1 --container-mounts={folder}:{folder},/data:/data "
        f"--container-workdir={folder} :: {ours}"
    )
    assert line_of(config, "slurm", program, container="image.sif", container_runtime="apptainer") == (
        f"{slurm} {apptainer} :: {ours}"
    )


def test_a_container_sees_the_folder_of_every_file_that_a_flag_names():
    flags = [
        "--init=/a/w.pth", "--config.init=/b/w", "--config.backbone=/c/w", "--config.initial_weights=/d/w",
    ]  # fmt: skip
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


def test_each_run_has_its_seed():
    lines = printed("mnist", "--runs=2", "--seed=4", "--config.train_epochs=3").splitlines()
    assert [flag(shlex.split(line), "seed") for line in lines] == ["4", "5"]
    assert all(line.endswith(" --config.train_epochs=3") for line in lines)
    assert "--seed" not in printed("mnist") and "--seed=1" in printed("mnist", "--runs=2")


def test_an_override_decides_the_launcher_too():
    line = command_of("resnet", "--system=cpu-tiny", "--replicas", "horovod", "--config.num_replicas=2")
    assert line[:6] == ["python", "-m", "timetotrain", "launch", "--replicas=horovod", "--processes=2"]


def test_a_configuration_that_cannot_run_is_one_line():
    """The error comes before the command is made, not from the run on every host."""
    with pytest.raises(UserError, match="^config.*global_batch_size"):
        printed("resnet", "--system=v100-8", "--config.global_batch_size=1001")
