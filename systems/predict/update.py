"""Models the optimizer's update, whole on every replica or 1/N of it on each (figure 4 of the pods paper).

An update only moves bytes: fp32 values read and written per weight, at the fitted share of the memory bandwidth.
"""

from __future__ import annotations

from systems.predict.compute import Constants
from systems.predict.hardware import Machine

# Values of four bytes per weight. SGD with momentum reads w, g, v and writes w, v; LARS reads w and g once more for its
# norms; Adam reads w, g, m, v and writes w, m, v.
VALUES = {"sgd": 5, "lars": 7, "adam": 7, "lazy_adam": 7}
# Kernels per tensor: the update, and for LARS one more for both norms.
_KERNELS = {"lars": 2}


def seconds(
    machine: Machine, constants: Constants, optimizer: str, parameters: int, tensors: int, shards: int
) -> float:
    """Seconds of one update; `shards` is 1 for the whole update, or the number of replicas that share it."""
    moved = 4 * VALUES.get(optimizer, 7) * parameters / shards
    # A GPU launches per tensor, or per piece of a flat buffer; XLA for TPU fuses an update into one kernel per tensor.
    launches = _KERNELS.get(optimizer, 1) * (tensors if shards == 1 else 1) * constants.launch
    return moved / (constants.memory * machine.memory_bandwidth) + launches
