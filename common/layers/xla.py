"""What layers with another form under XLA need: whether XLA compiles the function being traced, and its iota."""

import tensorflow as tf

from common.distributed.replicas.base import Replicas
from common.distributed.replicas.xla import embedded
from common.layers.products import under_xla


def for_gpu(replicas: Replicas) -> bool:
    """Whether XLA compiles the graph under construction for NVIDIA GPUs, as far as the backend knows its devices."""
    return under_xla() and "NVIDIA" in replicas.platform


def iota(size: int) -> tf.Tensor:
    """Returns 0 .. size - 1, int32 [size]. Under XLA it is an operation, where tf.range would write all numbers out."""
    if not under_xla():
        return tf.range(size)
    text = f"  %y = stablehlo.iota dim = 0 : tensor<{size}xi32>\n"
    return embedded([], text, ["%y"], [([size], tf.int32)])[0]
