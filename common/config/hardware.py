"""Detects this machine's cores, memory, and GPUs that jax or TensorFlow sees. TensorFlow-free.

It does not import jax. nvidia-smi and the installed packages tell what jax would see, at once if there is no GPU.
"""

import dataclasses
import os
import pathlib
import re
import sys
from collections.abc import Mapping, Sequence

from common import machine_tools

_GIB = 1 << 30
# /proc/cpuinfo's flags for instructions that multiply bfloat16 numbers.
_BF16_FLAGS = {"amx_bf16", "avx512_bf16"}
# Ampere's compute capability, the first with bfloat16 (NVIDIA CUDA C++ Programming Guide).
_BF16_CAPABILITY = 8.0
# jax's runtimes for NVIDIA GPUs: the oldest driver and the lowest compute capability that each supports
# (docs.jax.dev, "Installing JAX").
_RUNTIMES = {"jax-cuda13-plugin": (580, 7.5), "jax-cuda12-plugin": (525, 5.2)}
_QUERY = ("memory.total", "compute_cap", "driver_version")
_COUNT_GPUS = "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')))"


@dataclasses.dataclass(frozen=True)
class Machine:
    """The devices and memory of a machine.

    Attributes:
      cores: logical CPUs that this process may use.
      memory: bytes of host memory, or the control group's limit if that is lower.
      gpus: bytes of memory of each GPU that jax sees; if jax sees none, that TensorFlow sees.
      bf16: whether the computing device multiplies bfloat16 numbers in hardware.
      jax: whether jax sees the GPUs.
    """

    cores: int
    memory: int
    gpus: tuple[int, ...] = ()
    bf16: bool = False
    jax: bool = False

    def __str__(self) -> str:
        cores = f"{self.cores} CPU cores, {self.memory / _GIB:.0f} GiB"
        if not self.gpus:
            return cores
        return f"{len(self.gpus)} GPUs with {min(self.gpus) / _GIB:.0f} GiB, {cores}"


def detect(root: pathlib.Path = pathlib.Path("/")) -> Machine:
    """Describes this machine, from /proc and /sys below `root` and from nvidia-smi if installed."""
    listed = _listed()
    by_jax = of_jax(listed, os.environ)
    gpus = by_jax or _of_tensorflow(listed)
    capable = min((gpu.capability for gpu in gpus), default=0.0) >= _BF16_CAPABILITY
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory=host_memory(root),
        gpus=tuple(gpu.memory for gpu in gpus),
        bf16=capable if gpus else bool(cpu_flags(root) & _BF16_FLAGS),
        jax=bool(by_jax),
    )


def jax_gpus() -> int:
    """Returns the number of GPUs that jax sees here; 0 at once if nvidia-smi is missing."""
    return len(of_jax(_listed(), os.environ))


def cpu_flags(root: pathlib.Path = pathlib.Path("/")) -> set[str]:
    """Returns the CPU's instruction-set flags from /proc/cpuinfo below `root`; none if that file is absent."""
    flags = machine_tools.text(root / "proc/cpuinfo").partition("flags")[2].partition("\n")[0]
    return set(re.findall(r"\w+", flags))


def jax_gpu_memory() -> int:
    """Returns the bytes of memory of the smallest GPU that jax sees here; 0 if it sees none."""
    return min((gpu.memory for gpu in of_jax(_listed(), os.environ)), default=0)


def host_memory(root: pathlib.Path = pathlib.Path("/")) -> int:
    """Returns the bytes of host memory, or of the control group's limit if that is lower."""
    total = re.search(r"^MemTotal:\s+(\d+) kB", machine_tools.text(root / "proc/meminfo"), re.M)
    limits = [int(total[1]) * 1024] if total else []
    for name in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = machine_tools.text(root / name).strip()
        limits += [int(text)] if text.isdigit() else []
    return min(limits, default=4 * _GIB)


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU in nvidia-smi's terms: bytes of memory, compute capability, driver's major version (0: unknown)."""

    memory: int
    capability: float
    driver: int = 0


def _listed() -> list[Gpu]:
    return parse_gpus(machine_tools.nvidia_smi(*_QUERY))


def of_jax(listed: Sequence[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    """Returns the listed GPUs that jax uses: a suitable runtime is installed, and no variable hides them."""
    platforms = environment.get("JAX_PLATFORMS", "")
    if not listed or (platforms and not {"cuda", "gpu"} & set(platforms.split(","))):
        return []
    for package, (driver, capability) in _RUNTIMES.items():
        if machine_tools.versions(package):
            fits = all(gpu.driver >= driver and gpu.capability >= capability for gpu in listed)
            return _visible(listed, environment.get("CUDA_VISIBLE_DEVICES")) if fits else []
    return []


def _visible(listed: Sequence[Gpu], names: str | None) -> list[Gpu]:
    """Returns the GPUs that CUDA_VISIBLE_DEVICES selects, by number or UUID; CUDA stops at the first invalid one."""
    if names is None:
        return list(listed)
    visible = []
    for name in names.split(","):
        number = int(name) if name.strip().isdigit() else 0
        if not (name.strip().isdigit() or name.startswith(("GPU-", "MIG-"))) or number >= len(listed):
            break
        visible.append(listed[number])
    return visible


def _of_tensorflow(listed: Sequence[Gpu]) -> list[Gpu]:
    """Returns the listed GPUs that TensorFlow can use."""
    if not listed:
        return []
    # TensorFlow without the CUDA libraries sees none of them, and CUDA_VISIBLE_DEVICES may hide some.
    count = machine_tools.output(sys.executable, "-c", _COUNT_GPUS, seconds=120).strip()
    return list(listed[: int(count)]) if count.isdigit() else []


def parse_gpus(rows: list[list[str]]) -> list[Gpu]:
    """Parses nvidia-smi's rows, such as ["81559", "9.0", "580.65.06"], to GPUs; the driver may be unknown."""
    matches = [re.fullmatch(r"(\d+),([\d.]+),(?:(\d+)[\d.]*|\D*)", ",".join(row)) for row in rows]
    return [Gpu(int(m[1]) << 20, float(m[2]), int(m[3] or 0)) for m in matches if m]
