"""Defines the compilers' targets: TPU topologies, GPU descriptions, and a core's memory and clock.

TPU figures come from Google's public page on each generation; a core's memory is the chip's memory divided by its
cores. GPU descriptions follow the fields of openxla/xla `xla/stream_executor/device_description.proto`, with figures
from NVIDIA's data sheets.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

from common.errors import UserError, near

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Target:
    """What to compile a program for.

    Attributes:
      name: the device kind: "tpu-v3", "v100", ...
      platform: "tpu" or "cuda".
      topology: libtpu's name ("v3:32x32"), or XLA:GPU's "processes x hosts x devices" ("1x1x8").
      devices: number of devices in the topology, as the compiler counts them.
      memory: bytes per device.
      megahertz: clock rate for converting estimated cycles; 0 if unknown.
      target_config: text of the GPU's description; '' for a TPU.
      chip_config: libtpu's name for how a chip's cores are used; '' if each core is a device.
    """

    name: str
    platform: str
    topology: str
    devices: int
    memory: int
    megahertz: float = 0.0
    target_config: str = ""
    chip_config: str = ""


@dataclasses.dataclass(frozen=True)
class _Tpu:
    prefix: str  # libtpu's name for the generation.
    cores: int  # Devices per chip.
    dimensions: int  # Dimensions of the torus.
    chip_memory: int  # Bytes.
    megahertz: float = 0.0
    chip_config: str = ""  # libtpu's, if not the default.


MEGACORE = "tpu-v4-megacore"  # Both cores of a chip run one program ("TPU v4", section 2).

# Memory and cores per chip: cloud.google.com/tpu/docs, the page of each generation. Clocks: "A Domain-Specific
# Supercomputer for Training Deep Neural Networks" (v2, v3) and "TPU v4: An Optically Reconfigurable Supercomputer"
# (v4). Later ones follow from the page's peak and multipliers: v5e, 197 TFLOP/s of four of 128 x 128; v5p, 459 of two
# cores with four each; v6e, 918 of four of 256 x 256. The side of v6e's is in jax-ml/jax
# `jax/_src/pallas/mosaic/tpu_info.py`. One copy of its page says four multipliers, another two, which would run at
# 3.5 GHz. 7x's page does not say how many it has.
_TPUS = {
    "tpu-v2": _Tpu("v2", 2, 2, 16 * GIB, 700.0), "tpu-v3": _Tpu("v3", 2, 2, 32 * GIB, 940.0),
    "tpu-v4": _Tpu("v4", 2, 3, 32 * GIB, 1050.0), MEGACORE: _Tpu("v4", 1, 3, 32 * GIB, 1050.0, "megacore"),
    "tpu-v5e": _Tpu("v5e", 1, 2, 16 * GIB, 1503.0), "tpu-v5p": _Tpu("v5p", 1, 3, 95 * GIB, 1751.0),
    "tpu-v6e": _Tpu("v6e", 1, 2, 32 * GIB, 1751.0), "tpu-7x": _Tpu("tpu7x", 2, 3, 192 * GIB),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Gpu:
    capability: str
    cores: int  # Streaming multiprocessors.
    units: int  # fp32 units per multiprocessor.
    shared: int  # Bytes of shared memory per multiprocessor.
    shared_block: int  # Maximum bytes of shared memory per block.
    bandwidth: float  # Bytes per second.
    cache: int  # Bytes of the L2 cache.
    gigahertz: float
    memory: int
    title: str


_POD_SIDE = 32  # Chips per side of a v3 pod; v0.7's largest machine is four pods of 32 x 32 in a row.

# NVIDIA's data sheets of the SXM modules.
_GPUS = {
    "v100": _Gpu("major: 7", 80, 64, 98304, 98304, 898.048e9, 6 * 2**20, 1.53, 16 * GIB, "Tesla V100-SXM2-16GB"),
    "a100": _Gpu(
        "major: 8", 108, 64, 167936, 166912, 1555.2e9, 40 * 2**20, 1.41, 40 * GIB, "NVIDIA A100-SXM4-40GB"
    ),
    "h100": _Gpu(
        "major: 9 feature_extension: ACCELERATED_FEATURES",
        132, 128, 233472, 232448, 3352.32e9, 50 * 2**20, 1.98, 80 * GIB, "NVIDIA H100 80GB HBM3",
    ),
    # The same chip as an H100. Memory is what nvidia-smi reports, 143,771 MiB.
    "h200": _Gpu(
        "major: 9 feature_extension: ACCELERATED_FEATURES",
        132, 128, 233472, 232448, 4800e9, 50 * 2**20, 1.98, 140 * GIB, "NVIDIA H200",
    ),
    "b200": _Gpu(
        "major: 10 feature_extension: ACCELERATED_FEATURES",
        148, 128, 233472, 232448, 7672.32e9, 126 * 2**20, 1.965, 180 * GIB, "NVIDIA B200",
    ),
}  # fmt: skip

# The 32 GB module has the same chip.
_MEMORY = {"v100-32": ("v100", 32 * GIB), "a100-80": ("a100", 80 * GIB)}
NAMES = (*_TPUS, *_GPUS, *_MEMORY)

# Systems whose names do not reveal the device.
_SYSTEMS = {"summit": "v100", "dgx-1": "v100", "dgx-2h": "v100-32"}


def target(kind: str, devices: int) -> Target:
    """The target of `devices` devices of a kind.

    Raises UserError if the kind is unknown, or no torus has that number of devices.
    """
    if kind in _TPUS:
        return _tpu_target(kind, _TPUS[kind], devices)
    base, memory = _MEMORY.get(kind, (kind, 0))
    if base not in _GPUS:
        raise UserError(f"--target={kind}: unknown{near(kind, NAMES)}; known: {', '.join(NAMES)}")
    gpu = _GPUS[base]
    return Target(
        kind, "cuda", f"1x1x{devices}", devices, memory or gpu.memory, gpu.gigahertz * 1000, _description(gpu)
    )


def bandwidth(kind: str) -> float:
    """Bytes per second of a GPU's memory, by its data sheet."""
    return _GPUS[kind].bandwidth


def kind_of_preset(config: Any) -> str:
    """A preset's device kind: `kind_of` its machine, and whether its replicas are whole TPU v4 chips.

    A TPU's name counts cores. Some TPU v4 logs have half as many replicas, each on both cores of a chip: v0.7's
    ResNet-50 on tpu-v4-128 trains batch 8192 with batch norm over 128 images "in a replica" (docs/sources.md).

    Raises UserError: see `kind_of`.
    """
    kind = kind_of(config.hardware)
    cores = config.hardware.removeprefix("tpu-v4-")
    chips = kind == "tpu-v4" and cores.isdigit() and 2 * config.num_replicas == int(cores)
    return MEGACORE if chips else kind


def kind_of(hardware: str) -> str:
    """A machine's device kind, from its name: "tpu-v3-2048" is "tpu-v3".

    Raises UserError if no compiler here knows the machine's accelerator.
    """
    for kind in sorted(NAMES, key=len, reverse=True):
        if re.match(rf"{kind}(-\d+)?$", hardware):
            return kind
    for start, kind in _SYSTEMS.items():
        if hardware.startswith(start):
            return kind
    raise UserError(
        f"--system: its machine, {hardware!r}, has no TPU or GPU to compile for; give --target={NAMES[0]} "
        f"or another of {', '.join(NAMES)}"
    )


def _tpu_target(kind: str, tpu: _Tpu, devices: int) -> Target:
    chips = -(-devices // tpu.cores)
    shape = torus(chips, tpu.dimensions)
    if tpu.dimensions == 2 and shape[-1] > _POD_SIDE:  # Pods form a row.
        shape = (_POD_SIDE, math.prod(shape) // _POD_SIDE)
    if math.prod(shape) * tpu.cores < devices:
        raise UserError(f"--target={kind}: {devices} devices make no torus")
    return Target(
        kind, "tpu", f"{tpu.prefix}:{'x'.join(map(str, shape))}", math.prod(shape) * tpu.cores,
        tpu.chip_memory // tpu.cores, tpu.megahertz, chip_config=tpu.chip_config,
    )  # fmt: skip


def torus(chips: int, dimensions: int) -> tuple[int, ...]:
    """The most even torus shape for `chips` (rounded up) with power-of-two sides, smallest side first."""
    power = max(0, math.ceil(math.log2(chips)))
    sides = [power // dimensions + (i < power % dimensions) for i in range(dimensions)]
    return tuple(sorted(2**side for side in sides))


def _description(gpu: _Gpu) -> str:
    """The text form of XLA's GpuTargetConfigProto."""
    return f"""gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: {gpu.shared}
  threads_per_core_limit: 2048 core_count: {gpu.cores} fpus_per_core: {gpu.units}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {gpu.bandwidth:.0f} l2_cache_size: {gpu.cache} clock_rate_ghz: {gpu.gigahertz}
  device_memory_size: {gpu.memory} shared_memory_per_block_optin: {gpu.shared_block}
  cuda_compute_capability {{ {gpu.capability} }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA"
runtime_version {{ major: 12 minor: 8 patch: 0 }}
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{gpu.title}"
"""
