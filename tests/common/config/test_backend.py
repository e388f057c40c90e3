"""Tests when a run takes the backend pjrt by itself: jax sees a GPU, and nobody names a backend."""

import dataclasses

import pytest

from common import machine_tools
from common.config import backend, hardware
from common.config.hardware import Gpu
from mnist.presets import PRESETS

TINY = PRESETS["cpu-tiny"]
H200 = Gpu(143771 << 20, 9.0, 580)
V100 = Gpu(16160 << 20, 7.0, 535)


def no_look():
    raise AssertionError("the machine is asked for its GPUs")


def test_a_preset_of_this_machine_takes_the_gpu_that_jax_sees():
    assert backend.choose(TINY, None, [], lambda: 1).replicas == "pjrt"
    assert backend.choose(TINY, None, [], lambda: 0) is TINY


@pytest.mark.parametrize(
    "changes, replicas, overrides",
    [
        ({}, "single", []),
        ({}, None, [("replicas", "single")]),
        ({"compile": "off"}, None, []),
        ({"hardware": "v100-8", "replicas": "horovod"}, None, []),
        ({"hardware": "summit-1"}, None, []),
    ],
)
def test_what_is_given_stays_and_the_machine_is_not_asked(changes, replicas, overrides):
    config = dataclasses.replace(TINY, **changes)
    assert backend.choose(config, replicas, overrides, no_look) is config


@pytest.fixture
def runtime(monkeypatch):
    """Sets which of jax's runtimes are installed."""

    def install(*packages):
        monkeypatch.setattr(hardware.machine_tools, "versions", lambda package: package in packages)

    return install


def test_jax_takes_gpus_that_its_runtime_and_the_driver_fit(runtime):
    runtime()
    assert hardware.of_jax([H200], {}) == []
    runtime("jax-cuda13-plugin")
    assert hardware.of_jax([H200, H200], {}) == [H200, H200]
    assert hardware.of_jax([V100], {}) == [], "no code for it in CUDA 13"
    assert hardware.of_jax([dataclasses.replace(H200, driver=570)], {}) == []
    assert hardware.of_jax([], {}) == []
    runtime("jax-cuda12-plugin")
    assert hardware.of_jax([V100], {}) == [V100]


@pytest.mark.parametrize(
    "environment, count",
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "1"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "1,0,-1"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "GPU-5f3c"}, 1),
        ({"JAX_PLATFORMS": "cpu"}, 0),
        ({"JAX_PLATFORMS": "cuda,cpu"}, 2),
    ],
)
def test_variables_hide_gpus(runtime, environment, count):
    runtime("jax-cuda13-plugin")
    assert len(hardware.of_jax([H200, H200], environment)) == count


def test_a_machine_without_nvidia_smi_is_asked_nothing(monkeypatch):
    monkeypatch.setattr(machine_tools.shutil, "which", lambda name: None)
    monkeypatch.setattr(machine_tools.subprocess, "run", no_look)
    assert hardware.jax_gpus() == 0
