"""Converts torchvision's ResNet-50 for Mask R-CNN: `python -m maskrcnn.starting_weights FILE OUT.npz`."""

import dataclasses
import pathlib
import sys

import numpy as np
import tf_keras

from common.distributed.replicas.base import Replicas
from common.layers import starting_weights as common
from common.layers.precision import precision
from maskrcnn import backbone
from maskrcnn.layers import Layers
from maskrcnn.presets import PRESETS


def stages(path: pathlib.Path, images: np.ndarray, replicas: Replicas) -> list[np.ndarray]:
    """Returns the outputs of the four stages, [1, h, w, c] in float64, for an image [1, h, w, 3].

    Batch norm has PyTorch's epsilon in cpu-tiny; published presets have Google's (docs/sources.md, mlperf 2).
    """
    config = dataclasses.replace(PRESETS["cpu-tiny"], backbone_width=common.WIDTH, global_batch_size=1)
    image = tf_keras.Input(images.shape[1:], batch_size=1, dtype="float64")
    maps = backbone.stages(Layers.from_config(config, replicas, precision("fp64")), image)
    network = tf_keras.Model(image, list(maps.values()))
    backbone.load(network, path, replicas)
    return [x.numpy() for x in network(images)]


if __name__ == "__main__":
    sys.exit(common.main(common.RESNET50, stages, (1, 2, 2, 2), "maskrcnn.starting_weights"))
