"""Models seconds of sums over replicas: rings, a TPU pod's 2-D torus, NVLink within and InfiniBand between nodes.

Also models the halo exchange of spatial partitions (figure 3 of the pods paper); compute.py models their imbalance.

A ring of k members moves 2 n (k - 1) / k bytes past each member, in 2 (k - 1) hops (Patarasuk and Yuan, 2009). The
bytes of each route equal common.distributed.gradient_sum.bytes_moved; tests check this against lab/bench/scaling.py.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from systems.predict.hardware import Machine
from systems.predict.kernel_costs import Kernels

# Fraction of a link's rate that collectives reach, for all families: an assumption, not fitted.
LINK_SHARE = 0.8
# Pipelining the gathers with the packets' sum made gradient summation 1.5 times as fast (section 2 of the pods paper,
# "Scale MLPerf-0.6 models on Google TPU-v3 Pods").
PIPELINING = 1.5


@dataclasses.dataclass(frozen=True)
class Moved:
    """Bytes that a replica sends: within its row or node, and across rows or nodes."""

    inside: float
    across: float


def bytes_moved(elements: int, replicas: int, row: int, wire: int, back: int) -> Moved:
    """Bytes that a replica sends to sum `elements` elements, in rows of `row` replicas.

    An element has `wire` bytes during the scatter and `back` bytes during the gather. A single row, or rows of one,
    form a flat ring, which counts as `across`, as in common.distributed.gradient_sum.bytes_moved.
    """
    both = elements * (wire + back)
    if row in (1, replicas):
        return Moved(0.0, both * (replicas - 1) / replicas)
    rows = replicas // row
    return Moved(both * (row - 1) / row, both / row * (rows - 1) / rows)


def gradient_sum(
    machine: Machine, elements: int, cores: int, wire: int, back: int, buckets: int, pipelined: bool = True
) -> float:
    """Seconds to sum gradients over `cores` of a machine: a scatter, then a gather (of weights, if sharded).

    Args:
      elements: number of elements in a replica's gradient.
      wire, back: bytes per element in the scatter and in the gather.
      buckets: number of collectives; on a GPU each pays the latency (a TPU's are one program).
      pipelined: use the pods paper's overlap of gathers from non-contiguous tensors; TPU only.
    """
    if cores == 1:
        return 0.0
    if machine.is_tpu:
        return _torus(machine, elements, cores, wire, back, pipelined)
    return _nodes(machine, elements, cores, wire, back, buckets)


def _torus(machine: Machine, elements: int, cores: int, wire: int, back: int, pipelined: bool) -> float:
    """Seconds on a TPU: a chip's cores add up in memory, then along the torus's rows, then its columns, and back.

    Links are full duplex, so half of the data goes each way. In a ring, or past the middle of a line (slices smaller
    than a pod do not wrap around), n / 2 bytes cross each link.
    """
    chip = machine.chip
    chips = max(1, math.ceil(cores / chip["replicas"]))
    rows = 1 << (int(math.log2(chips)) // 2)
    columns = chips // rows
    total, remaining = 0.0, float(elements)
    for length in (columns, rows):
        rate = 2 * chip["link_bandwidth"] * LINK_SHARE / (1.0 if pipelined else PIPELINING)
        total += remaining * (wire + back) * (length - 1) / length / rate
        total += (length - 1) * chip["hop_seconds"]
        remaining /= length
    local = elements * (2 * wire + back) * (chip["replicas"] - 1) / (chip["memory_bandwidth"] * LINK_SHARE)
    return total + local


def _nodes(machine: Machine, elements: int, cores: int, wire: int, back: int, buckets: int) -> float:
    """Seconds on GPUs: rings over NVLink within each node and over all adapters between nodes.

    NCCL pipelines the two, so the slower one counts.
    """
    chip = machine.chip
    inside = min(cores, machine.linked)
    nodes = math.ceil(cores / machine.linked)
    moved = elements * (wire + back)
    local = moved * (inside - 1) / inside / (chip["link_bandwidth"] * LINK_SHARE)
    across = moved * (nodes - 1) / nodes / (machine.node_bandwidth * LINK_SHARE) if nodes > 1 else 0.0
    # Trees between nodes (NCCL 2.4): log2(nodes) hops up and as many down; a ring within each node.
    hops = 2 * math.log2(nodes) + (inside - 1 if nodes == 1 else 2)
    return max(local, across) + buckets * hops * chip["hop_seconds"]


def small_sum(machine: Machine, group: int) -> float:
    """Seconds to sum a few kilobytes over a group of neighbours: pure latency."""
    if group <= 1:
        return 0.0
    if machine.is_tpu:
        chips = max(1, group // machine.chip["replicas"])
        return 2 * max(1.0, 2 * (math.sqrt(chips) - 1)) * machine.chip["hop_seconds"]
    return 2 * math.log2(group) * machine.chip["hop_seconds"]


def halo_seconds(machine: Machine, kernels: Kernels, batch: float, partitions: int) -> float:
    """Seconds of all halo exchanges in a step.

    Before a convolution larger than 1x1, each worker gets a row from each neighbour, both in the forward pass and for
    the input's gradient. This costs width * channels * 2 bytes per example and side, plus the latency of two messages.
    The width is the square root of the pixels; the input channels are a ninth of the summed length.
    """
    if partitions == 1:
        return 0.0
    spatial = (kernels.kind == "convolution") & (kernels.m[:, 1] > 1)
    width = np.sqrt(kernels.m[spatial, 1])
    channels = np.maximum(kernels.k[spatial, 0] / 9, 1)
    moved = 2 * 2 * batch * width * channels
    times = moved / (machine.chip["link_bandwidth"] * LINK_SHARE) + 2 * machine.chip["hop_seconds"]
    return float(np.sum(kernels.count[spatial] * times))
