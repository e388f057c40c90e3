"""Pretrained ResNet-34 weights for the backbone, from numpy or TensorFlow checkpoints with the published names.

The names are torchvision's (`conv1.weight`, `layer2.0.downsample.1.running_mean`, ...), of which an .npz file holds the
arrays as they are; a TensorFlow checkpoint holds tensors of the same names. Convolutions are [out, in, h, w] there and
[h, w, in, out] here. What follows conv4_x (`layer4`, `fc`) is not read.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tf_keras

from common.errors import UserError
from common.norm import SpanBatchNorm
from common.replicas.base import Replicas

_NORM = {"weight": "gamma", "bias": "beta", "running_mean": "mean", "running_var": "variance"}


def load(network: tf_keras.Model, path: str | os.PathLike, replicas: Replicas) -> int:
    """Sets the backbone's weights and batch-norm moments; called where the network is built.

    Returns:
      The number of arrays that were read.

    Raises:
      UserError: no such file, or an array of it is missing or of another shape.
    """
    read, count = _reader(os.fspath(path)), 0

    def put(variable: tf.Variable, value: np.ndarray, name: str) -> None:
        nonlocal count
        count += 1
        if tuple(value.shape) != tuple(variable.shape[-value.ndim :]):
            raise UserError(
                f"{path}: {name} has shape {list(value.shape)}, the network's {list(variable.shape)}; is "
                "config.width 64 and the file a ResNet-34?"
            )
        for copy in replicas.local_results(variable):
            copy.assign(np.broadcast_to(value, variable.shape))

    for layer in network.layers:
        if isinstance(layer, SpanBatchNorm):
            for theirs, ours in _NORM.items():
                value = read(f"{layer.name}.{theirs}")
                if ours in ("mean", "variance"):
                    put(getattr(layer, f"moving_{ours}"), value, f"{layer.name}.{theirs}")
                    put(getattr(layer, f"merged_{ours}"), value, f"{layer.name}.{theirs}")
                else:
                    put(getattr(layer, ours), value, f"{layer.name}.{theirs}")
        elif layer.name == "conv1" or layer.name.startswith("layer"):
            name = f"{layer.name}.weight"
            if layer.trainable_weights:
                put(layer.kernel, read(name).transpose(2, 3, 1, 0), name)
    return count


def _reader(path: str) -> Callable[[str], np.ndarray]:
    try:
        if path.endswith(".npz"):
            arrays = np.load(path, allow_pickle=False)
            names, get = set(arrays.files), arrays.__getitem__
        else:
            checkpoint = tf.train.load_checkpoint(path)
            names, get = set(checkpoint.get_variable_to_shape_map()), checkpoint.get_tensor
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise UserError(
            f"config.backbone={path} is no .npz file or TensorFlow checkpoint ({type(error).__name__})"
        ) from error

    def read(name: str) -> np.ndarray:
        if name not in names:
            raise UserError(f"{path} holds no {name}; it must have torchvision's names of a ResNet-34")
        return np.asarray(get(name))

    return read
