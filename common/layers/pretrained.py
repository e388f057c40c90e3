"""Loads a backbone's published weights from a .pth or .npz file or a TensorFlow checkpoint with torchvision's names.

The names are `conv1.weight`, `layer2.0.downsample.1.running_mean`, ... An .npz file holds torchvision's arrays
unchanged; a TensorFlow checkpoint holds tensors of the same names. Convolutions are [out, in, h, w] in the file and
[h, w, in, out] in the network. Arrays without a layer in the network (such as `fc`) are not read.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
import tf_keras

from common.data import npz
from common.distributed.replicas.base import Replicas
from common.errors import UserError
from common.layers import weight_files
from common.layers.batch_norm import SpanBatchNorm

_NORM = {"weight": "gamma", "bias": "beta", "running_mean": "mean", "running_var": "variance"}

_DAMAGE = weight_files.DAMAGE  # Also of a TensorFlow checkpoint.


def load(
    network: tf_keras.Model, path: str | os.PathLike, replicas: Replicas, width_field: str, name: str
) -> int:
    """Sets the weights and batch-norm moments of all layers with published names, including frozen ones.

    Call it where the network is built.

    Args:
      network: all its SpanBatchNorm layers belong to the backbone, and so do its convolutions "conv1" and "layer...".
      path: path of the .npz file or the checkpoint.
      replicas: the backend.
      width_field, name: names for errors: the field with the backbone's width (published: 64), and the backbone.

    Returns:
      The number of arrays read.

    Raises:
      UserError: the file does not exist, or one of its arrays is missing, damaged or of another shape.
    """
    count = 0

    def put(variable: tf.Variable, key: str, value: np.ndarray) -> None:
        nonlocal count
        count += 1
        if tuple(value.shape) != tuple(variable.shape[-value.ndim :]):
            raise UserError(
                f"{path}: {key} has shape {list(value.shape)}, the network's {list(variable.shape)}; is "
                f"{width_field} 64 and the file a {name}?"
            )
        for copy in replicas.local_results(variable):
            copy.assign(np.broadcast_to(value, variable.shape))

    with _reader(os.fspath(path), name) as read:
        for layer in network.submodules:
            if isinstance(layer, SpanBatchNorm):
                for theirs, ours in _NORM.items():
                    key = f"{layer.name}.{theirs}"
                    value = read(key)
                    moment = ours in ("mean", "variance")
                    for attribute in (f"moving_{ours}", f"merged_{ours}") if moment else (ours,):
                        put(getattr(layer, attribute), key, value)
            elif isinstance(layer, tf_keras.layers.Conv2D) and layer.name.startswith(("conv1", "layer")):
                key = f"{layer.name}.weight"
                put(layer.kernel, key, read(key).transpose(2, 3, 1, 0))
    return count


@contextlib.contextmanager
def _reader(path: str, name: str) -> Iterator[Callable[[str], np.ndarray]]:
    """Opens the file and yields a function that reads one array by name."""
    with contextlib.ExitStack() as opened:
        try:
            if path.endswith(".npz"):
                arrays = opened.enter_context(npz.opened(path))
                keys, get = set(arrays.files), arrays.__getitem__
            elif path.endswith((".pth", ".pt")):
                tensors = weight_files.torch_arrays(pathlib.Path(path))
                keys, get = set(tensors), tensors.__getitem__
            else:
                checkpoint = tf.train.load_checkpoint(path)
                keys, get = set(checkpoint.get_variable_to_shape_map()), checkpoint.get_tensor
        except _DAMAGE as error:
            raise UserError(
                f"config.backbone={path} is no .npz or .pth file or TensorFlow checkpoint ({type(error).__name__}); "
                f"give the weights of a {name}"
            ) from error

        def read(key: str) -> np.ndarray:
            if key not in keys:
                raise UserError(f"{path} holds no {key}; it must have torchvision's names of a {name}")
            try:
                return np.asarray(get(key))
            except _DAMAGE as error:  # Reading an array compares its checksum.
                raise UserError(
                    f"config.backbone={path}: {key} is damaged ({error}); get a sound copy"
                ) from error

        yield read
