"""Tells whether XLA compiles the function being traced, for layers that have another form there."""

from __future__ import annotations

import tensorflow as tf
from tf_keras.src.utils.control_flow_util import GraphOrParentsInXlaContext

from common.distributed.replicas.base import Replicas


def under_xla() -> bool:
    """Whether XLA compiles the graph under construction or one around it."""
    return bool(GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def for_gpu(replicas: Replicas) -> bool:
    """Whether XLA compiles the graph under construction for NVIDIA GPUs, as far as the backend knows its devices."""
    return under_xla() and "NVIDIA" in replicas.platform
