"""Tests the allocator's settings by the number of pages that the kernel gives a process."""

import os
import platform
import subprocess
import sys
import types

import pytest
import tensorflow as tf

from common.config.schema import RunConfig
from timetotrain.run import allocator

# Allocates and touches blocks of 12 and 96 MiB six times; prints the page faults of the last three times.
STEPS = """
import ctypes, resource, sys, threading
from timetotrain.run import allocator
if sys.argv[1] == "kept":
    assert allocator.keep_freed()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def steps():
    for _ in range(3):
        sizes = [12 << 20, 96 << 20]
        blocks = [libc.malloc(size) for size in sizes]
        for block, size in zip(blocks, sizes):
            libc.memset(block, 1, size)
        for block in blocks:
            libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def train():
    print(-steps() + steps())
if sys.argv[2] == "main":
    train()
else:
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
"""
SETTINGS = ("GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_")
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not on glibc")


def run(code: str, *arguments: str, **environment: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(SETTINGS)}
    actual = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=clean | environment, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert actual.returncode == 0, actual.stderr
    return actual.stdout.strip()


@glibc
@pytest.mark.parametrize("thread", ["main", "other"])
def test_a_step_gets_the_last_ones_memory(thread):
    pages = 3 * (108 << 20) // os.sysconf("SC_PAGE_SIZE")
    assert int(run(STEPS, "freed", thread)) > pages // 2
    assert int(run(STEPS, "kept", thread)) < pages // 100


@glibc
@pytest.mark.parametrize(
    "name, value", [("MALLOC_ARENA_MAX", "2"), ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=3")]
)
def test_settings_of_the_environment_stay(name, value):
    assert (
        run("from timetotrain.run import allocator; print(allocator.keep_freed())", **{name: value})
        == "False"
    )


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: object())
    for name in [name for name in os.environ if name.startswith(SETTINGS)]:
        monkeypatch.delenv(name)
    assert not allocator.keep_freed()


@pytest.mark.parametrize(
    "most, obeyed, calls",
    [(1 << 30, True, 4), (1 << 25, True, 5), (1 << 20, False, 2)],
    ids=["any", "half a heap", "none"],
)
def test_a_glibc_that_bounds_the_threshold(monkeypatch, most, obeyed, calls):
    """Where glibc refuses the threshold, the other settings are left out: they would stop it from growing by itself."""
    numbers = []

    def mallopt(number, value):
        numbers.append(number)
        return int(number != -3 or value <= most)

    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: types.SimpleNamespace(mallopt=mallopt))
    for name in [name for name in os.environ if name.startswith(SETTINGS)]:
        monkeypatch.delenv(name)
    assert allocator.keep_freed() == obeyed
    assert numbers == [-3] * (calls - 3 * obeyed) + [-8, -1, -2] * obeyed


@pytest.mark.parametrize(
    "replicas, gpus, count", [("single", [], 1), ("tpu", [], 0), ("single", ["GPU:0"], 0)]
)
def test_a_host_of_accelerators_keeps_glibc_s_settings(monkeypatch, replicas, gpus, count):
    calls = []
    monkeypatch.setattr(allocator, "keep_freed", lambda: calls.append(1))
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    allocator.keep_freed_by_steps(RunConfig(replicas=replicas))
    assert len(calls) == count
