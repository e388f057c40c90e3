"""Loads the backbone's weights from a published ResNet-34 checkpoint (common/layers/pretrained.py).

The checkpoint's layers after conv4_x (`layer4`, `fc`) are not read.
"""

import os

import tf_keras

from common.distributed.replicas.base import Replicas
from common.layers import pretrained


def load(network: tf_keras.Model, path: str | os.PathLike, replicas: Replicas) -> int:
    """Sets the backbone's weights and batch-norm moments; see `common.layers.pretrained.load`."""
    return pretrained.load(network, path, replicas, "config.width", "ResNet-34")
