"""Converts torchvision's ResNet-50 to start TSM from: `python -m tsm_kinetics.starting_weights FILE OUT.npz`."""

import dataclasses
import pathlib
import sys

import numpy as np
import tf_keras

from common.distributed.replicas.base import Replicas
from common.layers import starting_weights as common
from common.layers.precision import precision
from tsm_kinetics import model, pretrained
from tsm_kinetics.presets import PRESETS


def stages(path: pathlib.Path, images: np.ndarray, replicas: Replicas) -> list[np.ndarray]:
    """Returns the outputs of the four stages, [1, h, w, c] in float64, for an image [1, h, w, 3].

    The image is a clip of one frame. TSM's shift only moves channels between frames, so TSN has the same layers.
    """
    blocks = common.RESNET50.blocks
    changes = {
        "model": "tsn",
        "num_frames": 1,
        "width": common.WIDTH,
        "blocks": blocks,
        "global_batch_size": 1,
    }
    config = dataclasses.replace(PRESETS["cpu-tiny"], image_size=images.shape[1], **changes)
    network = model.build(config, replicas, precision("fp64"))
    pretrained.load(network, path, config.inflation, replicas)
    names = [f"layer{stage}.{count - 1}.bn3" for stage, count in enumerate(blocks, 1)]
    outputs = common.block_outputs(network, names)
    return [x.numpy()[:, 0] for x in tf_keras.Model(network.input, outputs)(images[:, None])]


if __name__ == "__main__":
    sys.exit(common.main(common.RESNET50, stages, (1, 2, 2, 2), "tsm_kinetics.starting_weights"))
