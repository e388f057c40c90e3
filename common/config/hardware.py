"""Says what the present machine has to compute with: cores, memory, GPUs that TensorFlow sees. TensorFlow-free."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import sys

from common import machine_tools

_GIB = 1 << 30
# CPU flags of instructions that multiply bfloat16 numbers, as /proc/cpuinfo names them.
_BF16_FLAGS = {"amx_bf16", "avx512_bf16"}
_BF16_CAPABILITY = (
    8.0  # Ampere's compute capability, the first with bfloat16 (NVIDIA CUDA C++ Programming Guide).
)
_COUNT_GPUS = "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')))"


@dataclasses.dataclass(frozen=True)
class Machine:
    """The devices and memory of a machine.

    Attributes:
      cores: logical CPUs that this process may use.
      memory: bytes of host memory, or of the control group's limit where that is less.
      gpus: bytes of memory of each GPU that TensorFlow sees.
      bf16: whether what computes multiplies bfloat16 numbers in hardware.
    """

    cores: int
    memory: int
    gpus: tuple[int, ...] = ()
    bf16: bool = False

    def __str__(self) -> str:
        cores = f"{self.cores} CPU cores, {self.memory / _GIB:.0f} GiB"
        if not self.gpus:
            return cores
        return f"{len(self.gpus)} GPUs with {min(self.gpus) / _GIB:.0f} GiB, {cores}"


def detect(root: pathlib.Path = pathlib.Path("/")) -> Machine:
    """Describes the present machine, from /proc and /sys below `root` and from nvidia-smi where it is installed."""
    gpus = _gpus()
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory=_memory(root),
        gpus=tuple(memory for memory, _ in gpus),
        bf16=min(c for _, c in gpus) >= _BF16_CAPABILITY if gpus else bool(cpu_flags(root) & _BF16_FLAGS),
    )


def cpu_flags(root: pathlib.Path = pathlib.Path("/")) -> set[str]:
    """The names of the processor's instructions, as /proc/cpuinfo below `root` has them; none where it is absent."""
    return set(re.findall(r"\w+", _text(root / "proc/cpuinfo").partition("flags")[2].partition("\n")[0]))


def _memory(root: pathlib.Path) -> int:
    total = re.search(r"^MemTotal:\s+(\d+) kB", _text(root / "proc/meminfo"), re.M)
    limits = [int(total[1]) * 1024] if total else []
    for name in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _text(root / name).strip()
        limits += [int(text)] if text.isdigit() else []
    return min(limits, default=4 * _GIB)


def _gpus() -> list[tuple[int, float]]:
    """Returns (bytes of memory, compute capability) of each GPU that TensorFlow can use."""
    listed = parse_gpus(machine_tools.nvidia_smi("memory.total", "compute_cap"))
    if not listed:
        return []
    # A TensorFlow without CUDA's libraries sees none of them, and CUDA_VISIBLE_DEVICES may hide some.
    seen = machine_tools.output(sys.executable, "-c", _COUNT_GPUS, seconds=120).strip()
    return listed[: int(seen)] if seen.isdigit() else []


def parse_gpus(rows: list[list[str]]) -> list[tuple[int, float]]:
    """Returns (bytes of memory, compute capability) of each row of nvidia-smi: ["81559", "9.0"]."""
    found = [re.fullmatch(r"(\d+),([\d.]+)", ",".join(row)) for row in rows]
    return [(int(match[1]) << 20, float(match[2])) for match in found if match]


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
