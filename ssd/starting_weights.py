"""Converts torchvision's ResNet-34 to SSD's starting weights: `python -m ssd.starting_weights FILE OUT.npz`."""

import dataclasses
import pathlib
import sys

import numpy as np
import tf_keras

from common.distributed.replicas.base import Replicas
from common.layers import starting_weights as common
from common.layers.precision import precision
from ssd import backbone, model
from ssd.presets import PRESETS


def stages(path: pathlib.Path, images: np.ndarray, replicas: Replicas) -> list[np.ndarray]:
    """Returns the outputs of conv2_x, conv3_x and conv4_x, [1, h, w, c] in float64, for an image [1, 96, 96, 3]."""
    config = dataclasses.replace(PRESETS["cpu-tiny"], width=common.WIDTH, global_batch_size=1)
    network = model.build(config, replicas, precision("fp64"))
    backbone.load(network, path, replicas)
    names = [f"layer{stage}.{blocks - 1}.bn2" for stage, blocks in enumerate(model.BLOCKS, 1)]
    outputs = common.block_outputs(network, names)
    return [x.numpy() for x in tf_keras.Model(network.input, outputs)(images)]


if __name__ == "__main__":
    sys.exit(common.main(common.RESNET34, stages, model.STRIDES, "ssd.starting_weights"))
