"""Loads an ImageNet ResNet-50, torchvision's or Keras's, into a video network; inflates 2-D kernels to 3-D ones."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf
import tf_keras

from common.data import npz
from common.distributed.replicas.base import Replicas
from common.errors import UserError
from common.layers import weight_files
from common.layers.batch_norm import SpanBatchNorm


def load(network: tf_keras.Model, path: str | os.PathLike, inflation: str, replicas: Replicas) -> None:
    """Sets the weights of `network`; sets the classifier's only if the numbers of classes are equal.

    Args:
      network: from model.build; its layers have torchvision's names.
      path: .npz with torchvision's names and layouts ("layer1.0.conv1.weight", [O, I, h, w]), as
        `numpy.savez(path, **{k: v.numpy() for k, v in torch_model.state_dict().items()})` writes it, or the .h5 file
        of tf_keras.applications.ResNet50. Keras's network has its strides on the 1x1 convolutions, so its weights are
        only a starting point, not the same function.
      inflation: how a 2-D kernel becomes k frames: "mean" puts a k-th in each, "center" puts all in the middle frame.
      replicas: the replicas, which own the moving moments.

    Raises:
      UserError: the file is missing or has no weights, or a layer is missing or has the wrong shape.
    """
    weights = _read(path)
    for layer in network.layers:
        if not layer.weights:
            continue
        try:
            if isinstance(layer, SpanBatchNorm):
                _load_norm(layer, weights, replicas)
            elif layer.name == "fc":
                _load_classifier(layer, weights)
            else:
                kernel = np.transpose(weights[f"{layer.name}.weight"], [2, 3, 1, 0])
                layer.kernel.assign(inflated(kernel, layer.kernel.shape, inflation))
        except KeyError as error:
            raise UserError(f"{path}: no {error.args[0]}; give the weights of a ResNet-50") from error
        except ValueError as error:
            raise UserError(
                f"{path}: {layer.name} has another shape ({error}); give a ResNet-50's"
            ) from error


def inflated(kernel: np.ndarray, shape: tf.TensorShape, inflation: str) -> np.ndarray:
    """Inflates [h, w, I, O] to `shape`; a 3-D kernel's shape has a leading frames axis."""
    if len(shape) == 4:
        return kernel
    frames = shape[0]
    if inflation == "mean":
        return np.repeat(kernel[None] / frames, frames, axis=0)
    whole = np.zeros([frames, *kernel.shape], kernel.dtype)
    whole[frames // 2] = kernel
    return whole


def _load_norm(layer: SpanBatchNorm, weights: Mapping[str, np.ndarray], replicas: Replicas) -> None:
    layer.gamma.assign(weights[f"{layer.name}.weight"])
    layer.beta.assign(weights[f"{layer.name}.bias"])
    for moment, name in (("mean", "running_mean"), ("variance", "running_var")):
        value = weights[f"{layer.name}.{name}"]
        getattr(layer, f"merged_{moment}").assign(value)
        for moving in replicas.local_results(getattr(layer, f"moving_{moment}")):
            moving.assign(np.broadcast_to(value, moving.shape).astype(moving.dtype.as_numpy_dtype))


def _load_classifier(layer: tf_keras.layers.Dense, weights: Mapping[str, np.ndarray]) -> None:
    kernel = np.transpose(weights["fc.weight"]) if "fc.weight" in weights else None
    if kernel is not None and kernel.shape == tuple(layer.kernel.shape):
        layer.kernel.assign(kernel)
        layer.bias.assign(weights["fc.bias"])


def _read(path: str | os.PathLike) -> dict[str, np.ndarray]:
    try:
        if os.fspath(path).endswith(".npz"):
            return npz.read(path)
        if os.fspath(path).endswith((".pth", ".pt")):
            return weight_files.torch_arrays(pathlib.Path(path))
        return dict(_from_keras(weight_files.hdf_arrays(path)))
    except weight_files.DAMAGE as error:  # These include h5py's errors.
        raise UserError(
            f"{path}: no .npz, .pth or .h5 file of weights ({error}); see tsm_kinetics/README.md"
        ) from error


def _from_keras(arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (name, array), in torchvision's names and layout, for each weight of tf_keras.applications.ResNet50.

    Keras's convolutions have a bias, which the next batch norm subtracts again, so it goes into the moving mean.

    Args:
      arrays: arrays by their paths in the file, LAYER/.../NAME.
    """
    layers: dict[str, dict[str, np.ndarray]] = {}
    for path, array in arrays.items():
        layer = layers.setdefault(weight_files.torchvision_name(path.partition("/")[0]), {})
        layer[path.rpartition("/")[2]] = array
    biases = {}
    for name, layer in layers.items():
        if name == "fc":
            yield "fc.weight", layer["kernel"].T
            yield "fc.bias", layer["bias"]
        elif "kernel" in layer:
            yield f"{name}.weight", np.transpose(layer["kernel"], [3, 2, 0, 1])
            biases[name.replace("conv", "bn").replace("downsample.0", "downsample.1")] = layer["bias"]
    for name, layer in layers.items():
        if "gamma" in layer:
            yield f"{name}.weight", layer["gamma"]
            yield f"{name}.bias", layer["beta"]
            yield f"{name}.running_mean", layer["moving_mean"] - biases[name]
            yield f"{name}.running_var", layer["moving_variance"]
