"""Seconds of sums over replicas: rings, the 2-D torus of a TPU pod, NVLink within nodes and InfiniBand between them.

A ring of k members moves 2 n (k - 1) / k bytes past each, in 2 (k - 1) hops (Patarasuk and Yuan, 2009); the bytes of
each route are those of common/summation.bytes_moved, which tests hold to what bench/scaling.py counted.
"""

from __future__ import annotations

import dataclasses
import math

from systems.predict.machine import Machine

# The part of a link's rate that collectives reach, for all families: an assumption, not fitted.
LINK_SHARE = 0.8
# Pipelining gathers with the sum of packets made gradient summation 1.5 times as fast (section 2 of the paper).
PIPELINING = 1.5


@dataclasses.dataclass(frozen=True)
class Moved:
    """Bytes a replica sends: within its row or node, and across rows or nodes."""

    inside: float
    across: float


def bytes_moved(elements: int, replicas: int, row: int, wire: int, back: int) -> Moved:
    """Of a sum of `elements` with `wire` bytes on the way there and `back` on the way back, in rows of `row`.

    One row, or rows of one, is a flat ring, which counts as `across`, as in common/summation.bytes_moved.
    """
    both = elements * (wire + back)
    if row in (1, replicas):
        return Moved(0.0, both * (replicas - 1) / replicas)
    rows = replicas // row
    return Moved(both * (row - 1) / row, both / row * (rows - 1) / rows)


def gradient_sum(
    machine: Machine, elements: int, cores: int, wire: int, back: int, buckets: int, pipelined: bool = True
) -> float:
    """Seconds to sum gradients over `cores` of a machine: scattered, and gathered (as weights, where sharded).

    Args:
      elements: of the gradient of a replica.
      wire, back: bytes of an element on the way there and back.
      buckets: collectives, each of which pays the latency (on a GPU; a TPU's are one program).
      pipelined: with the paper's overlap of gathers from non-contiguous tensors; TPU alone.
    """
    if cores == 1:
        return 0.0
    if machine.is_tpu:
        return _torus(machine, elements, cores, wire, back, pipelined)
    return _nodes(machine, elements, cores, wire, back, buckets)


def _torus(machine: Machine, elements: int, cores: int, wire: int, back: int, pipelined: bool) -> float:
    """Both cores of a chip add up in memory; then along the rows of the torus, then along its columns, and back.

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
    """Rings over NVLink in each node and over all adapters between them; NCCL pipelines the two: the slower counts."""
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
