"""Loads a backbone's published weights from any file of common/layers/weight_files.py that has torchvision's names."""

import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas
from common.errors import UserError
from common.layers import weight_files
from common.layers.batch_norm import SyncBatchNorm

_NORM = {
    "gamma": ("gamma",),
    "beta": ("beta",),
    "moving_mean": ("moving_mean", "merged_mean"),
    "moving_variance": ("moving_variance", "merged_variance"),
}


def load(
    network: tf_keras.Model,
    path: str | os.PathLike,
    replicas: Replicas,
    width_field: str,
    name: str,
    fitted: Callable[[np.ndarray, tf.TensorShape], np.ndarray] = lambda array, _: array,
) -> int:
    """Sets the weights and batch-norm moments of all layers with published names, including frozen ones.

    Call it where the network is built. Raises UserError if the file does not exist or is damaged, or one of its arrays
    is missing or of another shape.

    Args:
      network: all its SyncBatchNorm layers belong to the backbone, and so do its convolutions "conv1" and "layer...".
        Its layer "fc" is set only if the file has one of its shape.
      width_field, name: names for errors: the field with the backbone's width (published: 64), and the backbone.
      fitted: maps a kernel [h, w, in, out] and the network's shape to the network's kernel.

    Returns:
      The number of variables set.
    """
    arrays, count = weight_files.read(path), 0

    def assign(variable: tf.Variable, key: str) -> None:
        nonlocal count
        count += 1
        if key not in arrays:
            raise UserError(f"{path} holds no {key}; it must have torchvision's names of a {name}")
        value = fitted(arrays[key], variable.shape)
        if tuple(value.shape) != tuple(variable.shape[-value.ndim :]):
            raise UserError(
                f"{path}: {key} has shape {list(value.shape)}, the network's {list(variable.shape)}; is "
                f"{width_field} 64 and the file a {name}?"
            )
        for copy in replicas.local_results(variable):
            copy.assign(np.broadcast_to(value, variable.shape).astype(copy.dtype.as_numpy_dtype))

    for layer in network.submodules:
        if isinstance(layer, SyncBatchNorm):
            for theirs, ours in _NORM.items():
                for attribute in ours:
                    assign(getattr(layer, attribute), f"{layer.name}/{theirs}")
        elif hasattr(layer, "kernel") and layer.name.startswith(("conv1", "layer")):
            assign(layer.kernel, f"{layer.name}/kernel")
        elif layer.name == "fc" and np.shape(arrays.get("fc/kernel")) == tuple(layer.kernel.shape):
            assign(layer.kernel, "fc/kernel")
            assign(layer.bias, "fc/bias")
    return count
