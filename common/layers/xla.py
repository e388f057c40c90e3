"""Tells whether XLA compiles the function being traced, for layers that have another form there."""

from common.distributed.replicas.base import Replicas
from common.optim.products import under_xla


def for_gpu(replicas: Replicas) -> bool:
    """Whether XLA compiles the graph under construction for NVIDIA GPUs, as far as the backend knows its devices."""
    return under_xla() and "NVIDIA" in replicas.platform
