"""Binds each process of a host to the cores of the memory (NUMA) node nearest its GPU. TensorFlow-free.

nvidia-smi gives a GPU's PCI address, and /sys gives the cores of that address's NUMA node. Linux allocates memory on
the node of the core that first writes to it. NVIDIA's submissions bind the same cores
(mlcommons/training_results_v0.7 NVIDIA/benchmarks/*/implementations/*/bind.sh).
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator

from common.machine_tools import nvidia_smi

_SYS = pathlib.Path("/sys")


@contextlib.contextmanager
def bound(cores: set[int]) -> Iterator[None]:
    """While it holds, this thread, and what it starts, may use only these cores; an empty set changes nothing."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cores(processes: int, root: pathlib.Path = _SYS) -> list[set[int]]:
    """Returns the cores of each process of this host; an empty set for a process that stays unbound.

    Process i uses GPU i among those in CUDA_VISIBLE_DEVICES. A host's only process may use all GPUs; it is bound if
    they share one node. Nothing is bound if the host has one memory node, or if this process may use none of the node's
    cores. `root` is the folder of the kernel's files.
    """
    if len(list((root / "devices/system/node").glob("node[0-9]*"))) < 2:
        return [set()] * processes
    near = gpu_cores(root)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if re.fullmatch(r"\d+(,\d+)*", visible):
        near = [near[int(number)] for number in visible.split(",") if int(number) < len(near)]
    elif visible:  # CUDA_VISIBLE_DEVICES holds names of GPUs, or parts of them.
        near = []
    if processes == 1 and any(each != near[0] for each in near):
        return [set()]
    return [near[i] if i < len(near) else set() for i in range(processes)]


def gpu_cores(root: pathlib.Path = _SYS) -> list[set[int]]:
    """Returns those of the cores nearest each GPU that this process may use, in PCI bus order."""
    # nvidia-smi writes the PCI domain with eight digits, /sys with four: 00000000:06:00.0 is 0000:06:00.0.
    form, core_sets = re.compile(r"0{0,4}([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)"), []
    for (address,) in nvidia_smi("pci.bus_id", seconds=60):
        if match := form.fullmatch(address.lower()):
            path = root / "bus/pci/devices" / match[1] / "local_cpulist"
            text = path.read_text() if path.exists() else ""
            core_sets.append(parse_list(text) & os.sched_getaffinity(0))
    return core_sets


def parse_list(text: str) -> set[int]:
    """Parses the kernel's list of numbers: "0-2,8" is {0, 1, 2, 8}."""
    numbers: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers
