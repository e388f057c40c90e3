"""Pretrained ResNet-34 weights for the backbone, from published checkpoints (common/layers/pretrained.py).

What follows conv4_x (`layer4`, `fc`) is not read.
"""

from __future__ import annotations

import os

import tf_keras

from common.distributed.replicas.base import Replicas
from common.layers import pretrained


def load(network: tf_keras.Model, path: str | os.PathLike, replicas: Replicas) -> int:
    """Sets the backbone's weights and batch-norm moments; see `pretrained.load`."""
    return pretrained.load(network, path, replicas, "config.width", "ResNet-34")
