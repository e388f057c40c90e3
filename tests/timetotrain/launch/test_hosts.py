"""Tests runs on one host, and on two that network namespaces stand for: where they listen, and what a cut says."""

import contextlib
import os
import pathlib
import subprocess
import time

import pytest

from common.distributed import listening
from lab.bench.harness import launched
from tests.common.distributed.replicas import processes

BACKENDS = ("multiworker", "pjrt", "horovod")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
SECONDS = 400  # For a first epoch on a busy machine.

pytestmark = pytest.mark.e2e
two_hosts_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces")


@pytest.fixture(scope="module")
def data():
    with launched.digits() as folder:
        yield folder


def ip(*words):
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def started(data, folder, backend, *flags):
    """Two runs of one process each, in namespaces joined by virtual interfaces, and the words for the first one."""
    names = [f"timetotrain-{os.getpid()}-{i}" for i in range(2)]
    ends = [f"tt{os.getpid() % 100000}{i}" for i in "ab"]
    hosts = ",".join(f"{address}:1" for address in ADDRESSES)
    runs = []
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for i, (name, end, address) in enumerate(zip(names, ends, ADDRESSES, strict=True)):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            for link in (end, "lo"):
                ip("-n", name, "link", "set", link, "up")
            (folder / str(i)).mkdir()
            words = [f"--hosts={hosts}", f"--launcher={i}"]
            prefix = ("ip", "netns", "exec", name)
            runs.append(launched.Launched(folder / str(i), data, backend, 2, words, *flags, prefix=prefix))
        yield runs, ("-n", names[0], "link", "set", ends[0])
    finally:
        for run in runs:
            run.close()
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def listens(runs):
    """The addresses at which processes of the runs listen, until one has trained an epoch."""
    until, addresses = time.monotonic() + SECONDS, set()
    while not any(run.steps() for run in runs):
        assert time.monotonic() < until and all(run.launcher.poll() is None for run in runs), runs[0].text
        for pid in (pid for run in runs for pid in launched.marked(run.mark)):
            with contextlib.suppress(OSError):
                files = {os.readlink(path) for path in pathlib.Path(f"/proc/{pid}/fd").iterdir()}
                sockets = listening.listeners(pid)
                addresses |= {each.address for each in sockets if f"socket:[{each.inode}]" in files}
        time.sleep(0.3)
    return addresses


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_processes_of_one_host_listen_on_the_loopback_alone(data, tmp_path, backend):
    processes.require(backend)
    run = launched.Launched(tmp_path, data, backend, 2, [])
    try:
        addresses = listens([run])
    finally:
        run.close()
    assert addresses and addresses <= {"127.0.0.1", "::1"}


@two_hosts_only
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_processes_of_two_hosts_listen_on_the_network_between_them(data, tmp_path, backend):
    processes.require(backend)
    with started(data, tmp_path, backend) as (runs, _):
        addresses = listens(runs)
    assert {*ADDRESSES} & addresses and addresses <= {*ADDRESSES, "127.0.0.1"}


@two_hosts_only
@pytest.mark.parametrize("backend", BACKENDS)
def test_both_sides_of_a_cut_network_name_the_other_host_and_its_rank(data, tmp_path, backend):
    processes.require(backend)
    with started(data, tmp_path, backend, "--config.train_steps=1000000") as (runs, link):
        listens(runs)
        ip(*link, "down")
        codes = [run.launcher.wait(SECONDS) for run in runs]
        texts = [run.text for run in runs]
    assert codes == [75, 75], texts
    for i, text in enumerate(texts):
        assert f": no answer from {ADDRESSES[1 - i]} (rank {1 - i})" in text, texts
