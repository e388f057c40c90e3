"""Tests what binds a process to the cores next to its GPU, with files in place of the kernel's."""

import os
import subprocess
import sys

import pytest

from timetotrain.launch import binding

# A host of two memory nodes with two cores each; GPUs 0 and 1 at the second, GPU 2 at the first.
NODES = {0: "0-1", 1: "2-3"}
GPUS = {"0000:86:00.0": 1, "0000:87:00.0": 1, "0000:06:00.0": 0}


@pytest.fixture
def host(tmp_path, monkeypatch):
    """The kernel's files of the host above, and an nvidia-smi that lists its GPUs."""
    root = tmp_path / "sys"
    for node in NODES:
        (root / f"devices/system/node/node{node}").mkdir(parents=True)
    for address, node in GPUS.items():
        folder = root / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "local_cpulist").write_text(f"{NODES[node]}\n")
    listed = "".join(f"0000{address.upper()}\\n" for address in GPUS)
    tool(tmp_path, "nvidia-smi", f"printf '{listed}'")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    return root


def tool(folder, name, body):
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def test_each_process_goes_next_to_its_gpu(host):
    assert binding.cores(3, host) == [{2, 3}, {2, 3}, {0, 1}]
    # More processes than GPUs: nobody knows where the fourth belongs.
    assert binding.cores(4, host)[3] == set()


@pytest.mark.parametrize("visible, processes, first", [("2,0", 2, {0, 1}), ("1", 1, {2, 3})])
def test_gpus_that_are_shown_count_from_the_first_of_them(host, monkeypatch, visible, processes, first):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert binding.cores(processes, host)[0] == first


def test_a_process_that_may_use_gpus_at_several_nodes_is_not_bound(host, monkeypatch):
    """multiworker has one process per host, which takes all of its GPUs."""
    assert binding.cores(1, host) == [set()]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert binding.cores(1, host) == [{2, 3}]


def test_only_cores_that_a_scheduler_leaves_are_taken(host, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 3})
    assert binding.cores(2, host)[0] == {3}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert binding.cores(2, host) == [set(), set()]


def test_nothing_is_bound_where_nothing_is_known(host, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1b2c")
    assert binding.cores(1, host) == [set()]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    tool(tmp_path, "nvidia-smi", "echo 'No devices were found'; exit 6")
    assert binding.cores(2, host) == [set(), set()]
    (tmp_path / "nvidia-smi").unlink()
    assert binding.cores(2, host) == [set(), set()]


def test_one_memory_node_needs_no_binding(host):
    (host / "devices/system/node/node1").rmdir()
    assert binding.cores(2, host) == [set(), set()]


def test_lists_of_the_kernel_are_read():
    assert binding.parse_list("0-2,8,10-11\n") == {0, 1, 2, 8, 10, 11} and binding.parse_list("") == set()


def test_the_launcher_s_processes_are_bound(tmp_path):
    """A launcher that takes the first core for the place of every GPU."""
    core = min(os.sched_getaffinity(0))
    code = (
        "import sys; from timetotrain.launch import __main__, binding\n"
        f"binding.cores = lambda count: [{{{core}}}] * count\n"
        "sys.exit(__main__.main(sys.argv[1:]))"
    )
    child = (
        f"import os, sys; open(r'{tmp_path}/' + str(os.getpid()), 'w').write(str(os.sched_getaffinity(0)))"
    )
    command = [sys.executable, "-c", code, "--replicas=multiworker", "--processes=2", "--"]
    subprocess.run([*command, sys.executable, "-c", child], check=True, timeout=60)
    assert [path.read_text() for path in tmp_path.iterdir()] == [f"{{{core}}}"] * 2
