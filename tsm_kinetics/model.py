"""Builds TSM, TSN and both I3Ds on one ResNet-50; a few numbers per model define how each treats time.

The backbone is torchvision's ResNet-50 (stride on the 3x3 convolution, even padding), with torchvision's layer names.
Temporal sizes follow Table 2 of "Training Kinetics in 15 Minutes". I3D 3x3x3 is Hara et al.'s ResNet-50 ("Can
Spatiotemporal 3D CNNs Retrace the History of 2D CNNs and ImageNet?"). I3D 3x1x1 is Wang et al.'s ("Non-local Neural
Networks"), wired as in facebookresearch/video-nonlocal-net (docs/sources.md, mlperf 2).
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas
from common.layers.image_layers import ImageLayers, seeds
from common.layers.precision import Precision
from tsm_kinetics.config import Config
from tsm_kinetics.layers import FrameConv2D, MaxPool, PaddedConv3D, TemporalShift

EXPANSION = 4  # a bottleneck's last 1x1 has four times the channels of its 3x3


@dataclasses.dataclass(frozen=True)
class Geometry:
    """A network's kernels, strides and pooling over time.

    Attributes:
      stem: (frames in conv1's kernel, its stride over time).
      pool1, pool2: frames in the max pooling after conv1 and after the first stage, stride 2; 1: no pooling over time.
      middle: frames in the kernel of each block's 3x3 convolution.
      strides: strides of the four stages over time.
      first: a repeating pattern of 0 and 1 for each stage; a block with a 1 has three frames in its first 1x1 kernel.
    """

    stem: tuple[int, int] = (1, 1)
    pool1: int = 1
    pool2: int = 1
    middle: int = 1
    strides: tuple[int, ...] = (1, 1, 1, 1)
    first: tuple[str, ...] = ("0", "0", "0", "0")

    def first_frames(self, stage: int, block: int) -> int:
        """Returns the number of frames in a block's first 1x1 kernel."""
        pattern = self.first[stage]
        return 3 if pattern[block % len(pattern)] == "1" else 1


GEOMETRIES = {
    "tsm": Geometry(),
    "tsn": Geometry(),
    "i3d_3x3x3": Geometry(stem=(7, 1), pool1=3, middle=3, strides=(1, 2, 2, 2)),
    # Repeated, the patterns in `first` are 1,1,1 / 1,0,1,0 / 1,0,1,0,1,0 / 0,1,0.
    "i3d_3x1x1": Geometry(stem=(5, 2), pool1=3, pool2=3, first=("1", "10", "10", "01")),
}


def build(config: Config, replicas: Replicas, precision: Precision) -> tf_keras.Model:
    """Builds the network named by `config.model`.

    Returns a functional model: normalized clips [b, T, H, W, 3] -> logits [b, classes] in `precision.variable`. It
    accepts frames of any size.
    """
    geometry = GEOMETRIES[config.model]
    net = _Layers(config, replicas, precision, seeds(config.seed, 256))
    shape = (config.frames, config.image_size, config.image_size, 3)
    clips = replicas.model_input(shape, config.micro_batch_size, precision.compute)

    frames, stride = geometry.stem
    x = net.conv(clips, config.width, (frames, 7), (stride, 2), "conv1")
    x = net.batch_norm(x, "bn1", relu=True)
    x = MaxPool(replicas, 3, geometry.pool1, dtype=precision.layer, name="maxpool")(x)
    for stage, blocks in enumerate(config.blocks):
        for block in range(blocks):
            x = bottleneck(net, geometry, x, stage, block)
        if stage == 0 and geometry.pool2 > 1:
            x = MaxPool(replicas, 1, geometry.pool2, dtype=precision.layer, name="maxpool2")(x)
    # The mean of the frames' logits equals the logits of the frames' mean.
    x = tf_keras.layers.GlobalAveragePooling3D(dtype=precision.full, name="avgpool")(x)
    network = tf_keras.Model(clips, net.classifier(x), name=config.model)
    network.input_spec = tf_keras.layers.InputSpec(shape=(None, config.frames, None, None, 3))
    return network


def bottleneck(net: _Layers, geometry: Geometry, x: tf.Tensor, stage: int, block: int) -> tf.Tensor:
    """Applies a bottleneck block; the shift is in the residual branch, so that the shortcut keeps each frame."""
    config, name = net.config, f"layer{stage + 1}.{block}"
    filters = config.width * 2**stage
    space = 2 if stage > 0 and block == 0 else 1
    time = geometry.strides[stage] if block == 0 else 1

    y = x
    if config.model == "tsm":
        layer = net.precision.layer
        y = TemporalShift(config.shift_fraction, config.online, dtype=layer, name=f"{name}.shift")(y)
    y = net.conv(y, filters, (geometry.first_frames(stage, block), 1), (1, 1), f"{name}.conv1")
    y = net.batch_norm(y, f"{name}.bn1", relu=True)
    y = net.conv(y, filters, (geometry.middle, 3), (time, space), f"{name}.conv2")
    y = net.batch_norm(y, f"{name}.bn2", relu=True)
    y = net.conv(y, EXPANSION * filters, (1, 1), (1, 1), f"{name}.conv3")
    y = net.batch_norm(y, f"{name}.bn3")
    if block == 0:
        x = net.conv(x, EXPANSION * filters, (1, 1), (time, space), f"{name}.downsample.0")
        x = net.batch_norm(x, f"{name}.downsample.1")
    return net.residual(y, x)


class _Layers(ImageLayers):
    """The layers of the networks of clips."""

    def conv(
        self, x: tf.Tensor, filters: int, size: tuple[int, int], strides: tuple[int, int], name: str
    ) -> tf.Tensor:
        """Applies a convolution without bias; `size` and `strides` are (over time, over space)."""
        initial = tf_keras.initializers.HeNormal(seed=next(self.seeds))
        settings = {"kernel_initializer": initial, "dtype": self.precision.layer, "name": name}
        (frames, side), (time, space) = size, strides
        if frames == time == 1:
            return FrameConv2D(filters, side, pad=side // 2, strides=space, use_bias=False, **settings)(x)
        return PaddedConv3D(filters, (frames, side, side), strides=(time, space, space), **settings)(x)

    def batch_norm(self, x: tf.Tensor, name: str, relu: bool = False) -> tf.Tensor:
        """Applies batch norm over the replica's clips."""
        return self.sync_batch_norm(name, span=0, gamma_initializer="ones", relu=relu)(x)
