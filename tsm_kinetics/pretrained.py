"""Loads an ImageNet ResNet-50, torchvision's or Keras's, into a video network; inflates 2-D kernels to 3-D ones."""

import functools
import os

import numpy as np
import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas
from common.layers import pretrained


def load(network: tf_keras.Model, path: str | os.PathLike, inflation: str, replicas: Replicas) -> None:
    """Sets the weights of `network`; see `common.layers.pretrained.load`.

    Keras's network has its strides on the 1x1 convolutions, so its weights are only a starting point, not the same
    function. Raises UserError if the file is missing or has no weights, or a layer is missing or has the wrong shape.

    Args:
      network: from model.build; its layers have torchvision's names.
      path: a file that common/layers/weight_files.py reads.
      inflation: how a 2-D kernel becomes k frames: "mean" puts a k-th in each, "center" puts all in the middle frame.
      replicas: the replicas, which own the moving moments.
    """
    fitted = functools.partial(inflated, inflation=inflation)
    pretrained.load(network, path, replicas, "config.width", "ResNet-50", fitted)


def inflated(kernel: np.ndarray, shape: tf.TensorShape, inflation: str) -> np.ndarray:
    """Inflates a kernel [h, w, I, O] to `shape`, which may have a leading frames axis; other arrays stay."""
    if kernel.ndim != 4 or len(shape) == 4:
        return kernel
    frames = shape[0]
    if inflation == "mean":
        return np.repeat(kernel[None] / frames, frames, axis=0)
    whole = np.zeros([frames, *kernel.shape], kernel.dtype)
    whole[frames // 2] = kernel
    return whole
