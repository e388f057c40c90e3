"""Models the halo exchange of spatial partitions (figure 3 of the pods paper); compute.py models their imbalance."""

from __future__ import annotations

import numpy as np

from systems.predict.collectives import LINK_SHARE
from systems.predict.hardware import Machine
from systems.predict.kernel_costs import Kernels


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
