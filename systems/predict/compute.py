"""Models a replica's forward and backward pass: a kernel takes the longer of its arithmetic and memory traffic.

    t(kernel) = max(padded FLOPs / (matrix * peak), bytes / (memory * bandwidth)) + launch

`matrix`, `memory` and `launch` are fitted per family (fitting.py): the fractions of peak and bandwidth that good
kernels reach, and the seconds between two kernels. The rest is geometry: a systolic array of 128 x 128 works on whole
tiles, a GPU on waves of tiles over its multiprocessors, so small batches leave both partly idle.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from systems.predict.hardware import Machine
from systems.predict.kernel_costs import SHARED, Kernels

PATH = Path(__file__).parent / "data/constants.json"
# A systolic array: Jouppi et al., In-Datacenter Performance Analysis of a TPU, and XLA's tiles of 8 x 128.
_LANES, _SUBLANES = 128, 8
# A GPU: cuBLAS and cuDNN compute tiles of up to 128 x 128, at least 32 per side, and split long sums to fill the
# device.
_TILE, _SMALLEST_TILE, _SPLIT = 128, 32, 1024
FP32_BYTES = 4
# "Given the same amount of FLOPs, 3D kernels run 1.2 to 3 times slower than 2D on cuDNN" (Training Kinetics in 15
# Minutes, section 2): the geometric mean.
SLOWER_IN_3D = (1.2 * 3) ** 0.5
# Kinds that are fused into the kernel that writes or reads their input, and so move no bytes themselves: XLA's
# multi-output fusion, cuDNN's persistent batch norm, fused layer norm and softmax.
RIDING = ("norm", "reduction")
# Four-byte values moved per weight. SGD with momentum reads w, g, v and writes w, v; LARS reads w and g once more for
# its norms; Adam reads w, g, m, v and writes w, m, v.
VALUES = {"sgd": 5, "lars": 7, "adam": 7, "lazy_adam": 7}
# Kernels per tensor: the update; LARS needs one more for both norms.
_KERNELS = {"lars": 2}


@dataclasses.dataclass(frozen=True)
class Constants:
    """The fitted constants of an accelerator family; at most four.

    Attributes:
      matrix: fraction of peak FLOP/s that matrix products and convolutions of whole tiles reach.
      memory: fraction of the memory bandwidth that kernels reach.
      launch: seconds between two kernels.
      turnaround: seconds that an evaluation costs besides its arithmetic, to leave and re-enter the training loop.
    """

    matrix: float
    memory: float
    launch: float
    turnaround: float


@functools.cache
def committed() -> dict[str, Any]:
    """The fitted constants of all families, from data/constants.json."""
    return json.loads(PATH.read_text(encoding="utf-8"))


def itemsize(precision: str) -> int:
    """Bytes per value between layers."""
    return {"fp32": FP32_BYTES, "fp64": 8}.get(precision, 2)


def seconds(
    kernels: Kernels,
    batch: float,
    machine: Machine,
    constants: Constants,
    precision: str,
    shares: np.ndarray | None = None,
) -> np.ndarray:
    """Seconds of each kernel row, [kernels], for `batch` examples on a core.

    Args:
      shares: fraction of each kernel that one worker of a spatial partition computes; None means all of it.
    """
    g, m, n, k = (x[:, 0] + x[:, 1] * batch for x in (kernels.groups, kernels.m, kernels.n, kernels.k))
    wide, moved = (x[:, 0] + x[:, 1] * batch for x in (kernels.wide, kernels.moved))
    flops = 2 * g * m * n * k
    if shares is not None:
        flops, moved, wide = flops * shares, moved * shares, wide * shares
    rides = np.isin(kernels.kind, RIDING + (("elementwise",) if machine.is_tpu else ()))
    moved, wide = np.where(rides, 0.0, moved), np.where(rides, 0.0, wide)
    arithmetic = flops / occupancy(g, m, n, k, machine) / (constants.matrix * machine.peak(precision))
    launch = np.full(len(kernels.kind), constants.launch)
    if not machine.is_tpu:
        # One persistent kernel per layer: time steps neither launch kernels nor reread weights.
        held = kernels.kind == "recurrent"
        moved, launch = np.where(held, kernels.moved[:, 1] * batch, moved), np.where(held, 0.0, launch)
    traffic = (wide + (moved - wide) * itemsize(precision) / 2) / (
        constants.memory * machine.memory_bandwidth
    )
    return kernels.count * (np.maximum(arithmetic, traffic) + launch)


def occupancy(g: Any, m: Any, n: Any, k: Any, machine: Machine) -> np.ndarray:
    """Fraction of the matrix units that `g` products [m, k] x [k, n] keep busy; 1 if there is no product."""
    g, m, n, k = (np.maximum(np.asarray(x, dtype=np.float64), 1) for x in (g, m, n, k))
    if machine.is_tpu:
        one = _up(n, _LANES) * _up(m, _SUBLANES)
        other = _up(m, _LANES) * _up(n, _SUBLANES)
        return m * n * k / (np.minimum(one, other) * _up(k, _LANES))
    high, wide = (np.minimum(_TILE, _up(x, _SMALLEST_TILE)) for x in (m, n))
    tiles = g * np.ceil(m / high) * np.ceil(n / wide)
    filled = g * m * n / (tiles * high * wide)
    units = machine.chip["multiprocessors"]
    pieces = tiles * np.minimum(np.ceil(k / _SPLIT), np.maximum(np.ceil(units / tiles), 1))
    return filled * pieces / (units * np.ceil(pieces / units))


def _up(x: np.ndarray, multiple: int) -> np.ndarray:
    return np.ceil(x / multiple) * multiple


def by_kind(kernels: Kernels, times: np.ndarray) -> dict[str, float]:
    """Seconds summed by kind of kernel."""
    return {
        str(kind): float(times[kernels.kind == kind].sum()) for kind in dict.fromkeys(kernels.kind.tolist())
    }


def partition_shares(kernels: Kernels, partitions: int, spmd: bool = False) -> np.ndarray:
    """The fraction of each kernel that the busiest of `partitions` workers computes.

    Workers get whole rows, so with 38 rows on 4 workers the first computes 10 / 38 (section 3 of the pods paper: small
    maps leave workers idle). The number of rows is the square root of the pixels, derived from a product's size per
    example. Unpartitioned kernels run on the first worker; with `spmd`, as in round v0.7, a second stage is
    partitioned too. Kernels without a product take the mean share of those with one.
    """
    if partitions == 1:
        return np.ones(len(kernels.kind))
    shared = np.isin(kernels.kind, SHARED)
    second = (kernels.kind == "second stage") & spmd
    # A forward product has pixels * batch rows; a weight's gradient sums over them.
    pixels = np.maximum(kernels.m[:, 1], kernels.k[:, 1])
    rows = np.maximum(np.round(np.sqrt(pixels)), 1)
    share = np.ceil(rows / partitions) / rows
    products = shared & (pixels > 0)
    work = kernels.count * kernels.m.max(axis=1) * kernels.n.max(axis=1) * kernels.k.max(axis=1)
    mean = float(np.average(share[products], weights=work[products])) if products.any() else 1 / partitions
    return np.where(products, share, np.where(shared, mean, np.where(second, 1 / partitions, 1.0)))


def update_seconds(
    machine: Machine, constants: Constants, optimizer: str, parameters: int, tensors: int, shards: int
) -> float:
    """Seconds of one optimizer update, which only moves bytes: fp32 values read and written per weight.

    Args:
      shards: 1 if every replica does the whole update, else the number of replicas that share it (figure 4 of the pods
        paper).
    """
    moved = 4 * VALUES.get(optimizer, 7) * parameters / shards
    # A GPU launches per tensor, or per piece of a flat buffer; XLA for TPU fuses an update into one kernel per tensor.
    launches = _KERNELS.get(optimizer, 1) * (tensors if shards == 1 else 1) * constants.launch
    return moved / (constants.memory * machine.memory_bandwidth) + launches
