"""Tests that a preset for GPUs asks for them before anything is written."""

import subprocess
import sys

import pytest
import tensorflow as tf

from common.errors import UserError
from tests.common.train import toy
from timetotrain.run import devices

LOADED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82.01  Wed Oct 27 21:21:55 UTC 2021\n"


@pytest.fixture
def gpus(monkeypatch):
    """Sets how many GPUs TensorFlow sees."""

    def see(count):
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] * count)

    for name in ("CUDA_VISIBLE_DEVICES", "HOROVOD_LOCAL_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(
        tf.sysconfig, "get_build_info", lambda: {"is_cuda_build": True, "cuda_version": "12.5.1"}
    )
    return see


def on_gpus(**changes):
    return toy.config(hardware="v100-8", **changes)


def test_without_a_driver_the_fix_is_another_preset(gpus, tmp_path):
    gpus(0)
    with pytest.raises(
        UserError, match=r"need 1 GPUs .*sees 0: no NVIDIA driver is loaded; choose.*--allow_cpu"
    ):
        devices.check(on_gpus(), tmp_path / "missing")


def test_a_driver_that_does_not_fit_is_named(gpus, tmp_path):
    gpus(0)
    (tmp_path / "version").write_text(LOADED)
    with pytest.raises(UserError, match=r"the driver is 470\.82\.01, TensorFlow is built for CUDA 12\.5\.1"):
        devices.check(on_gpus(), tmp_path / "version")


def test_gpus_that_the_environment_hides_are_named(gpus, monkeypatch, tmp_path):
    gpus(0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES='-1' hides them"):
        devices.check(on_gpus(), tmp_path / "missing")


def test_a_tensorflow_without_cuda_is_named(gpus, monkeypatch, tmp_path):
    gpus(0)
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: {"is_cuda_build": False})
    with pytest.raises(UserError, match="built without CUDA; run `make gpu-tf`"):
        devices.check(on_gpus(), tmp_path / "missing")


@pytest.mark.parametrize(
    "changes, environment, needed",
    [
        ({"replicas": "single"}, {}, 1),
        ({"replicas": "mirrored", "num_replicas": 4}, {}, 4),
        ({"replicas": "multiworker", "num_replicas": 8}, {}, 1),
        ({"replicas": "horovod", "num_replicas": 16}, {"HOROVOD_LOCAL_SIZE": "8"}, 8),
        (
            {"replicas": "horovod", "num_replicas": 16},
            {"HOROVOD_LOCAL_SIZE": "8", "CUDA_VISIBLE_DEVICES": "3"},
            1,
        ),
    ],
)
def test_a_process_needs_the_gpus_of_its_host(gpus, monkeypatch, changes, environment, needed):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = on_gpus(**changes)
    assert devices.needed_here(config) == needed
    gpus(needed - 1)
    with pytest.raises(UserError, match=f"need {needed} GPUs"):
        devices.check(config)


def test_horovod_without_nccl_is_one_line(gpus, monkeypatch):
    hvd = pytest.importorskip("horovod.tensorflow")
    gpus(8)
    monkeypatch.setattr(hvd, "nccl_built", lambda: 0)
    config = on_gpus(replicas="horovod", num_replicas=8)
    with pytest.raises(UserError, match="built without NCCL"):
        devices.check(config)
    monkeypatch.setattr(hvd, "nccl_built", lambda: 21805)
    devices.check(config)


@pytest.mark.parametrize("hardware", ["local", "tpu-v3-32"])
def test_other_machines_need_no_gpu(gpus, hardware):
    gpus(0)
    devices.check(toy.config(hardware=hardware))


FAULTS = {
    "driver": (
        "tf.config.list_physical_devices = lambda kind: []\n"
        "tf.sysconfig.get_build_info = lambda: {'is_cuda_build': True, 'cuda_version': '12.5.1'}\n"
        "devices.check.__defaults__ = (pathlib.Path(sys.argv.pop(1)),)\n",
        [],
        "the driver is 470.82.01, TensorFlow is built for CUDA 12.5.1",
    ),
    "nccl": (
        "import horovod.tensorflow as hvd\n"
        "tf.config.list_physical_devices = lambda kind: [kind] * 8\n"
        "hvd.nccl_built = lambda: 0; sys.argv.pop(1)\n",
        ["--replicas=horovod", "--config.num_replicas=8"],
        "--replicas=horovod: Horovod is built without NCCL",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_that_cannot_use_its_gpus_is_one_line_and_writes_nothing(tmp_path, fault):
    """The whole command, with a driver or a Horovod that does not fit."""
    if fault == "nccl":
        pytest.importorskip("horovod.tensorflow")
    lie, flags, message = FAULTS[fault]
    driver, folder = tmp_path / "version", tmp_path / "run"
    driver.write_text(LOADED)
    folder.mkdir()
    code = "import pathlib, sys\nimport tensorflow as tf\nfrom timetotrain.run import cli, devices\n"
    code += f"{lie}cli.main('resnet')"
    command = [sys.executable, "-c", code, str(driver), "--system=v100-8"]
    command += flags or ["--replicas=single", "--config.num_replicas=1"]
    done = subprocess.run(
        [*command, f"--data_dir={folder}", f"--result_dir={folder / 'results'}"],
        capture_output=True,
        text=True,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONWARNINGS": "ignore",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "HOROVOD_RANK": "0",
            "HOROVOD_SIZE": "8",
        },
    )
    assert done.returncode == 2 and done.stdout == "", done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert message in done.stderr and list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "hardware, packages, fix",
    [
        ("v100-8", ["jax-cuda13-plugin", "jax-cuda12-plugin"], "run `make gpu`"),
        ("tpu-v3-32", ["libtpu"], r"pip install 'jax\[tpu\]'"),
    ],
)
def test_jax_without_a_runtime_for_the_machine_is_named(monkeypatch, gpus, hardware, packages, fix):
    gpus(0)
    queries = []
    monkeypatch.setattr(devices.machine_tools, "versions", lambda *names: queries.extend(names))
    config = toy.config(hardware=hardware, replicas="pjrt")
    with pytest.raises(UserError, match=rf"no runtime for its devices .*; {fix}.*--allow_cpu"):
        devices.check(config)
    assert queries == packages
    monkeypatch.setattr(devices.hardware, "jax_gpus", lambda: 8)
    for package in packages:
        monkeypatch.setattr(
            devices.machine_tools, "versions", lambda *names, package=package: package in names
        )
        devices.check(config)  # TensorFlow needs no GPU then.
    devices.check(toy.config(hardware="local", replicas="pjrt"))


def test_gpus_that_jax_does_not_see_are_one_line(monkeypatch):
    monkeypatch.setattr(devices.machine_tools, "versions", lambda *names: names)
    monkeypatch.setattr(devices.hardware, "jax_gpus", lambda: 0)
    with pytest.raises(
        UserError, match=r"^config.hardware=h100-8: jax sees no GPU .*; --allow_cpu trains without$"
    ):
        devices.check(toy.config(hardware="h100-8", replicas="pjrt"))
