"""The allocator's setting, seen from the kernel: how many pages a process was given."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

# Takes 24 MiB and touches them all, twenty times; prints the pages it was given for the last ten.
STEPS = """
import ctypes, resource, sys, threading
from common import memory
if sys.argv[1] == "kept":
    assert memory.keep_freed()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def step():
    blocks = [libc.malloc(12 << 20) for _ in range(2)]
    for block in blocks:
        libc.memset(block, 1, 12 << 20)
    for block in blocks:
        libc.free(block)
def train():
    for _ in range(10):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        step()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
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
    found = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


@glibc
@pytest.mark.parametrize("thread", ["main", "other"])
def test_a_step_gets_the_last_ones_memory(thread):
    pages = 10 * (24 << 20) // os.sysconf("SC_PAGE_SIZE")
    if thread == "main":  # glibc's threads keep this much by themselves, and more only when told.
        assert int(run(STEPS, "freed", thread)) > pages // 3
    assert int(run(STEPS, "kept", thread)) < pages // 100


@glibc
@pytest.mark.parametrize(
    "name, value", [("MALLOC_ARENA_MAX", "2"), ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=3")]
)
def test_settings_of_the_environment_stay(name, value):
    assert run("from common import memory; print(memory.keep_freed())", **{name: value}) == "False"


def test_another_c_library_is_left_alone(monkeypatch):
    from common import memory

    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: object())
    for name in [name for name in os.environ if name.startswith(SETTINGS)]:
        monkeypatch.delenv(name)
    assert not memory.keep_freed()
