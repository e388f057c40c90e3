"""Builds small configurations and batches of noise for the tests of Mask R-CNN."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from common.config.optimizer import Sgd
from maskrcnn.config import IMPLEMENTATIONS, Config, Details, Sizes


@dataclasses.dataclass(frozen=True)
class Free(Config):
    """A configuration with sizes and details of its own, beside those that have names."""

    sizes: Sizes = Sizes()
    details: Details = Details()


@dataclasses.dataclass(frozen=True)
class Small(Free):
    mask_size: ClassVar[int] = 8
    mask_convs: ClassVar[int] = 2


SIZES = Sizes(
    fpn_channels=4, head_units=6, mask_channels=3, gt_mask_size=14, rpn_batch=32, rpn_pre_nms=40, rpn_post_nms=20,
    rpn_eval_pre_nms=30, roi_batch=8, detections=12,
)  # fmt: skip
SMALL = Small(
    replicas="single", precision="fp64", global_batch_size=2, eval_batch_size=2, num_train_examples=8,
    num_eval_examples=2, short_side=64, long_side=128, max_instances=5, num_classes=4,
    backbone_width=2, sizes=SIZES, batch_norm="span",
    optimizer=Sgd(momentum=0.9, scaled_momentum=True),
)  # fmt: skip


def config(base: Config = SMALL, **changes: Any) -> Free:
    """`base` with other fields, sizes or details; `implementation` brings its details."""
    if not isinstance(base, Free):
        base = Free(**vars(base), sizes=base.sizes, details=base.details)
    if "implementation" in changes:
        base = dataclasses.replace(base, details=IMPLEMENTATIONS[changes["implementation"]])
    for group, kind in (("sizes", Sizes), ("details", Details)):
        fields = {name: changes.pop(name) for name in kind._fields if name in changes}
        changes[group] = getattr(base, group)._replace(**fields)
    return dataclasses.replace(base, **changes)


def batch(config: Config, shape: tuple[int, int], images: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    """A batch of noise with objects of several sizes, two of them padding, on images that do not fill their frames."""
    rng, (height, width) = np.random.default_rng(seed), shape
    count = config.max_instances
    low = rng.uniform(0, 0.5, [images, count, 2])
    high = low + rng.uniform(0.1, 0.5, [images, count, 2])
    boxes = np.concatenate([low, high], -1) * [height, width, height, width]
    classes = rng.integers(1, config.num_classes, [images, count]).astype(np.int32)
    classes[:, -2:] = 0
    boxes *= (classes > 0)[..., None]
    size = config.sizes.gt_mask_size
    info = [[height * 0.95, width, 1.5], [height, width * 0.9, 1.2]]
    return {
        "image": rng.normal(size=[images, height, width, 3]).astype(np.float32),
        "image_info": np.resize(info, [images, 3]).astype(np.float32),
        "boxes": boxes.astype(np.float32),
        "classes": classes,
        "masks": rng.integers(0, 2, [images, count, size, size]).astype(np.uint8),
        "image_id": 100 + np.arange(images),
        "weight": np.ones([images], np.float32),
    }


def tensors(arrays: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
    return {name: tf.constant(x) for name, x in arrays.items()}


def randomize(variables, seed: int = 0) -> None:
    """Draws weights whose outputs are neither tiny nor equal: kernels of He's variance, others near 1 or 0."""
    rng = np.random.default_rng(seed)
    for v in variables:
        spread = 0.2 if len(v.shape) == 1 else np.sqrt(2 / np.prod(v.shape[:-1]))
        one = "gamma" in v.name or "variance" in v.name
        v.assign((1 if one else 0) + np.clip(rng.normal(0, spread, v.shape), -0.9, 3))
