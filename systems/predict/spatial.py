"""Spatial partitioning: what neighbours exchange (figure 3 of the pods paper). Imbalance: compute.partition_shares."""

from __future__ import annotations

import numpy as np

from systems.predict.collectives import LINK_SHARE
from systems.predict.machine import Machine
from systems.predict.network import Kernels


def halo_seconds(machine: Machine, kernels: Kernels, batch: float, partitions: int) -> float:
    """Seconds of all halo exchanges of a step.

    A convolution larger than 1x1 gets a row from each neighbour before it, forward and for its input's gradient:
    width * channels * 2 bytes an example and side, and two messages' latency. The width is the root of its pixels, its
    input channels a ninth of its summed length.
    """
    if partitions == 1:
        return 0.0
    spatial = (kernels.kind == "convolution") & (kernels.m[:, 1] > 1)
    width = np.sqrt(kernels.m[spatial, 1])
    channels = np.maximum(kernels.k[spatial, 0] / 9, 1)
    moved = 2 * 2 * batch * width * channels
    times = moved / (machine.chip["link_bandwidth"] * LINK_SHARE) + 2 * machine.chip["hop_seconds"]
    return float(np.sum(kernels.count[spatial] * times))
