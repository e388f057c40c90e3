"""Builds Mask R-CNN on a ResNet-50 feature pyramid: figure 1 of "Mask R-CNN", with the heads of figure 4 (right).

Details follow Google's v0.7 submission (`mask_rcnn_*`, `fpn.py`) and the reference `maskrcnn/pytorch` (docs/sources.md,
mlperf 2). Images come in two orientations. Both share the layers, but each has its own program with static shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras

from common.detection import anchors as anchor_boxes
from common.distributed.graph_partition import branches
from common.distributed.replicas.base import Replicas
from common.distributed.spatial.layers import Enter, Leave
from common.layers.precision import Precision
from maskrcnn import backbone, fpn, heads, rpn
from maskrcnn.config import Config
from maskrcnn.layers import Layers

# Maximum replicas per group that compute the second stage: "up to four different cores", section 3 of the pods paper.
SECOND_STAGE_CORES = 4


class Features(NamedTuple):
    """Features of a batch of images; replicas that share images all have the features of whole images.

    Attributes:
      maps: [b, H / 2^l, W / 2^l, C] for each level l that regions use, from `min_level` up.
      logits, codes: outputs of the region proposal network, [b, A_l] and [b, A_l, 4] of each level.
    """

    maps: list[tf.Tensor]
    logits: list[tf.Tensor]
    codes: list[tf.Tensor]


class Heads(NamedTuple):
    """Outputs for regions: logits [b, n, classes], codes [b, n, classes, 4], mask logits [b, m, 28, 28] or None."""

    logits: tf.Tensor
    codes: tf.Tensor
    masks: tf.Tensor | None


def build(config: Config, replicas: Replicas, precision: Precision) -> MaskRCNN:
    """Builds the network."""
    return MaskRCNN(config, replicas, precision)


def anchors(config: Config, height: int, width: int) -> list[np.ndarray]:
    """Computes each level's anchors (cy, cx, h, w), float64 [A_l, 4], in frame pixels, in the order aspect, y, x.

    NVIDIA's centers are in the coordinates of pixel centers, where the first pixel is at 0, not at 0.5.
    """
    levels = range(config.min_level, config.sizes.max_level + 1)
    if config.details.geometry != "nvidia":
        return [anchor_boxes.pyramid(height, width, [level], config.sizes.anchor_scale) for level in levels]
    aspects = {level: anchor_boxes.rounded_aspects(2**level) for level in levels}
    edges = [
        anchor_boxes.pyramid(height, width, [level], config.sizes.anchor_scale, aspects[level])
        for level in levels
    ]
    return [x - [rpn.PIXEL_CENTER, rpn.PIXEL_CENTER, 0, 0] for x in edges]


class MaskRCNN(tf_keras.Model):
    """Mask R-CNN. Training and detection call `features` and `heads`, on images of either orientation.

    A call on [images, regions, regions with a mask] returns the outputs of all parts. `common.train.describe` uses this
    form to count and summarize the network.

    Attributes:
      draws: number of training batches sampled so far; a scalar of dtype `replicas.counter`, one per replica, and part
        of the model's state.
    """

    def __init__(self, config: Config, replicas: Replicas, precision: Precision):
        layers = Layers.from_config(config, replicas, precision)
        batch = config.micro_batch_size
        images = replicas.model_input((*config.shapes[0], 3), batch, precision.compute)
        first = _first_stage(layers, images)
        # The layers accept any image size, but tf_keras would insist on the input's size.
        first.input_spec = None
        crops = [
            heads.Crop(size, config.min_level, config.roi_samples, dtype=precision.layer)
            for size in (heads.BOX_SIZE, config.mask_size // 2)
        ]
        box_head, mask_head = heads.BoxHead(layers), heads.MaskHead(layers)

        regions = replicas.model_input((config.sizes.rpn_post_nms, 4), batch, precision.variable)
        masked = replicas.model_input((config.sizes.detections, 4), batch, precision.variable)
        maps, logits, codes = first(images)
        outputs = [logits, codes, box_head(crops[0](maps, regions)), mask_head(crops[1](maps, masked))]
        super().__init__([images, regions, masked], outputs, name=config.model)

        self.config, self.precision, self.replicas, self.spatial = config, precision, replicas, layers.spatial
        self.first, self.crops, self.box_head, self.mask_head = first, crops, box_head, mask_head
        self.draws = replicas.per_replica_variable(tf.zeros([], replicas.counter), f"{self.name}/draws")

    def next_draw(self) -> tf.Tensor:
        """Counts a training batch; returns the number of batches before it, a scalar: `step` in `loss.losses`."""
        draw = self.draws.read_value()
        self.draws.assign(draw + 1)
        return draw

    def features(self, images: tf.Tensor, training: bool) -> Features:
        """Computes features of normalized images [b, H, W, 3]; (H, W) is one of `config.shapes`.

        Replicas that share images all pass whole images.
        """
        return Features(*self.first(tf.cast(images, self.precision.compute), training=training))

    def heads(
        self,
        maps: list[tf.Tensor],
        regions: tf.Tensor,
        masked: tf.Tensor | None = None,
        classes: tf.Tensor | None = None,
    ) -> Heads:
        """Applies the box head to `regions`, and the mask head to `masked` if given.

        Up to four replicas that share images also share this work: two compute boxes and two compute masks, each for
        half of the regions. If only two replicas share, one does boxes and one does masks (section 3 of the TPU-v3
        paper).

        `regions` are corners [b, n, 4], `masked` corners [b, m, 4], and `classes`, int32 [b, m], those of its objects.
        """
        cores = min(self.spatial.partitions, SECOND_STAGE_CORES)
        slices = max(1, cores // 2) if masked is not None else cores
        boxes = [lambda x=x: self.box_head(self.crops[0](maps, x)) for x in _split(regions, slices)]
        masks = [] if masked is None else self._mask_slices(maps, masked, classes, slices)
        outputs = branches(self.replicas, [*boxes, *masks], self.spatial.groups)
        logits, codes = (_joined(x) for x in zip(*outputs[: len(boxes)]))
        return Heads(logits, codes, _joined(outputs[len(boxes) :]) if masks else None)

    def masks(self, maps: list[tf.Tensor], regions: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
        """Predicts mask logits [b, m, 28, 28] for corners [b, m, 4] that hold objects of `classes`, int32 [b, m]."""
        slices = min(self.spatial.partitions, SECOND_STAGE_CORES)
        functions = self._mask_slices(maps, regions, classes, slices)
        return _joined(branches(self.replicas, functions, self.spatial.groups))

    def _mask_slices(
        self, maps: list[tf.Tensor], regions: tf.Tensor, classes: tf.Tensor, slices: int
    ) -> list[Callable[[], tf.Tensor]]:
        cut = zip(_split(regions, slices), _split(classes, slices), strict=True)
        return [lambda x=x, c=c: self.mask_head.of_class(self.crops[1](maps, x), c) for x, c in cut]


def _split(x: tf.Tensor, slices: int) -> list[tf.Tensor]:
    """Splits [b, n, ...] into slices with nearly equal numbers of regions; none is empty."""
    count = x.shape[1]
    slices = min(slices, count)
    return [x] if slices == 1 else tf.split(x, [(count + i) // slices for i in range(slices)], 1)


def _joined(slices: Sequence[tf.Tensor]) -> tf.Tensor:
    """Reverses `_split`."""
    return tf.concat(slices, 1) if len(slices) > 1 else slices[0]


def _first_stage(layers: Layers, images: tf.Tensor) -> tf_keras.Model:
    """Builds the first stage: images -> (maps, logits, codes) as in `Features`."""
    x = Enter(layers.spatial, dtype=layers.precision.layer)(images)
    maps = fpn.pyramid(layers, backbone.stages(layers, x))
    logits, codes = heads.region_proposals(layers, maps)
    leave = Leave(layers.spatial, dtype=layers.precision.layer)
    last = layers.config.sizes.max_level if layers.config.details.geometry == "google" else fpn.LAST_STAGE
    whole = [leave(x) for level, x in maps.items() if level <= last]
    return tf_keras.Model(images, (whole, logits, codes), name="first_stage")
