"""Models the seconds of sums over replicas: rings, a TPU pod's 2-D torus, NVLink in nodes and InfiniBand between them.

Besides them the halo exchange of spatial partitions (figure 3 of the pods paper); compute.py models their imbalance.

A ring of k members moves 2 n (k - 1) / k bytes past each, in 2 (k - 1) hops (Patarasuk and Yuan, 2009); the bytes of
each route equal those of common.distributed.gradient_sum.bytes_moved, as tests check against lab/bench/scaling.py.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from systems.predict.hardware import Machine
from systems.predict.kernel_costs import Kernels

# The part of a link's rate that collectives reach, for all families: an assumption, not fitted.
LINK_SHARE = 0.8
# Pipelining gathers with the sum of packets made gradient summation 1.5 times as fast (section 2 of the pods paper,
# "Scale MLPerf-0.6 models on Google TPU-v3 Pods").
PIPELINING = 1.5


@dataclasses.dataclass(frozen=True)
class Moved:
    """Bytes that a replica sends: within its row or node, and across rows or nodes."""

    inside: float
    across: float


def bytes_moved(elements: int, replicas: int, row: int, wire: int, back: int) -> Moved:
    """Bytes that a replica sends in a sum of `elements`, in rows of `row` replicas.

    An element has `wire` bytes while it is scattered and `back` bytes while it is gathered. One row, or rows of one, is
    a flat ring, which counts as `across`, as in common.distributed.gradient_sum.bytes_moved.
    """
    both = elements * (wire + back)
    if row in (1, replicas):
        return Moved(0.0, both * (replicas - 1) / replicas)
    rows = replicas // row
    return Moved(both * (row - 1) / row, both / row * (rows - 1) / rows)


def gradient_sum(
    machine: Machine, elements: int, cores: int, wire: int, back: int, buckets: int, pipelined: bool = True
) -> float:
    """Seconds to sum gradients over `cores` of a machine: a scatter, and a gather (of weights, where sharded).

    Args:
      elements: number of elements of a replica's gradient.
      wire, back: bytes of an element in the scatter and in the gather.
      buckets: number of collectives, each of which pays the latency (on a GPU; a TPU's are one program).
      pipelined: with the pods paper's overlap of gathers from non-contiguous tensors; TPU only.
    """
    if cores == 1:
        return 0.0
    if machine.is_tpu:
        return _torus(machine, elements, cores, wire, back, pipelined)
    return _nodes(machine, elements, cores, wire, back, buckets)


def _torus(machine: Machine, elements: int, cores: int, wire: int, back: int, pipelined: bool) -> float:
    """Seconds on a TPU: both cores of a chip add up in memory, then along the torus's rows, then its columns, and back.

    Links are full duplex, so half of the data goes each way: round a ring, or past the middle of a line (slices smaller
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
    """Seconds on GPUs: rings over NVLink in each node and over all adapters between nodes.

    NCCL pipelines the two, so the slower one counts.
    """
    chip = machine.chip
    inside = min(cores, machine.per_node)
    nodes = math.ceil(cores / machine.per_node)
    moved = elements * (wire + back)
    local = moved * (inside - 1) / inside / (chip["link_bandwidth"] * LINK_SHARE)
    across = moved * (nodes - 1) / nodes / (machine.node_bandwidth * LINK_SHARE) if nodes > 1 else 0.0
    # Trees between nodes (NCCL 2.4): up and down, log2 of the nodes; a ring within one.
    hops = 2 * math.log2(nodes) + (inside - 1 if nodes == 1 else 2)
    return max(local, across) + buckets * hops * chip["hop_seconds"]


def small_sum(machine: Machine, group: int) -> float:
    """Seconds to add up a few kilobytes over a group of neighbours: latency alone."""
    if group <= 1:
        return 0.0
    if machine.is_tpu:
        chips = max(1, group // machine.chip["replicas"])
        return 2 * max(1.0, 2 * (math.sqrt(chips) - 1)) * machine.chip["hop_seconds"]
    return 2 * math.log2(group) * machine.chip["hop_seconds"]


def halo_seconds(machine: Machine, kernels: Kernels, batch: float, partitions: int) -> float:
    """Seconds of all halo exchanges of a step.

    Before a convolution larger than 1x1 each worker gets a row from each neighbour, forward and for the input's
    gradient: width * channels * 2 bytes per example and side, and the latency of two messages. The width is the root of
    the pixels; the input channels are a ninth of the summed length.
    """
    if partitions == 1:
        return 0.0
    spatial = (kernels.kind == "convolution") & (kernels.m[:, 1] > 1)
    width = np.sqrt(kernels.m[spatial, 1])
    channels = np.maximum(kernels.k[spatial, 0] / 9, 1)
    moved = 2 * 2 * batch * width * channels
    times = moved / (machine.chip["link_bandwidth"] * LINK_SHARE) + 2 * machine.chip["hop_seconds"]
    return float(np.sum(kernels.count[spatial] * times))
