"""Builds the feature pyramid: figure 3 of "Feature Pyramid Networks for Object Detection"."""

from collections.abc import Mapping

import tensorflow as tf

from common.distributed.spatial.layers import MaxPool, Upsample
from maskrcnn.layers import Layers

LAST_STAGE = 5  # the backbone's last level; each coarser level has every other cell of the one before


def pyramid(layers: Layers, stages: Mapping[int, tf.Tensor]) -> dict[int, tf.Tensor]:
    """Computes the levels of the pyramid, {l: [b, H / 2^l, W / 2^l, fpn_channels]}, from the backbone's stages.

    A level is a 1x1 convolution of its stage plus the coarser level at twice its size (nearest neighbors), then a 3x3
    convolution, without batch norm or activation. A level above the last stage has every second pixel of the one below.
    """
    config, dtype = layers.config, layers.precision.layer
    top = min(config.sizes.max_level, LAST_STAGE)
    channels, levels = config.sizes.fpn_channels, {}
    x = None
    for level in range(top, config.min_level - 1, -1):
        lateral = layers.biased_conv(channels, 1, f"fpn_lateral{level}")(stages[level])
        if x is not None:
            lateral = layers.add(lateral, Upsample(layers.spatial, dtype=dtype)([x, lateral]))
        x = lateral
        levels[level] = layers.biased_conv(channels, 3, f"fpn_output{level}")(x)
    for level in range(top + 1, config.sizes.max_level + 1):
        levels[level] = MaxPool(layers.spatial, 1, 2, "valid", dtype=dtype)(levels[level - 1])
    return dict(sorted(levels.items()))
