"""The contenders of steps.py's Mask R-CNN, both in TensorFlow.

Arguments: contender, precision, batch, height, width. Both train Mask R-CNN on ResNet-50-FPN with all settings of the
MLPerf benchmark, batch norm in evaluation mode, SGD with momentum .9, no weight decay, on one batch of noise in memory
with ten objects per image. Differences: tf-models-official matches anchors in its input pipeline, ours in the step; it
samples regions once per bin, ours four times; its suppression keeps 512 candidates per tile, one level after the other.
"""

import dataclasses
from typing import ClassVar

import numpy as np
import tensorflow as tf
import tf_keras

from common.config.optimizer import Sgd
from common.config.schedule import Constant
from lab.bench.contenders.tensorflow_networks import Run, fused_loop, repeated, set_policy
from maskrcnn.config import Config
from maskrcnn.task import Task

CLASSES, RATE, MOMENTUM, OBJECTS = 91, 1e-4, 0.9, 10


@dataclasses.dataclass(frozen=True)
class _AllTrained(Config):
    """Trains the stem and the first stage, too, as the other contender does."""

    freeze: ClassVar[bool] = False


def ours(precision: str, batch: int, height: int, width: int) -> Run:
    """The fused loop of `python -m maskrcnn`; the frame has one orientation."""
    config = _AllTrained(
        global_batch_size=batch,
        eval_batch_size=batch,
        precision=precision,
        replicas="single",
        short_side=height,
        long_side=width,
        optimizer=Sgd(base_learning_rate=RATE, momentum=MOMENTUM),
        schedule=Constant(warmup_epochs=0),
    )

    class Resident(Task):
        """Trains on the other contender's noise."""

        def __init__(self, config: Config, data: None):
            super().__init__(config, data)
            self.batch_shapes = self.eval_batch_shapes = ()

        def synthetic_input(self, batch_size: int) -> tf.data.Dataset:
            arrays = _objects(batch_size, height, width)
            info = np.array([[height, width, 1]] * batch_size, np.float32)
            masks = np.ones(
                [batch_size, config.max_instances, config.sizes.gt_mask_size, config.sizes.gt_mask_size],
                np.uint8,
            )
            rest = {"image_id": np.arange(batch_size), "weight": np.ones(batch_size, np.float32)}
            return tf.data.Dataset.from_tensors(
                {**arrays, **rest, "image_info": info, "masks": masks}
            ).repeat()

    return fused_loop(Resident, config)[0]


def official(precision: str, batch: int, height: int, width: int) -> Run:
    """tf-models-official's task, with its training step in a fused loop."""
    from official.vision.configs import maskrcnn as configs
    from official.vision.ops import anchor
    from official.vision.tasks.maskrcnn import MaskRCNNTask

    set_policy(precision)
    network = configs.MaskRCNN(
        num_classes=CLASSES,
        input_size=[height, width, 3],
        anchor=configs.Anchor(num_scales=1, aspect_ratios=[1.0, 2.0, 0.5], anchor_size=8.0),
        detection_head=configs.DetectionHead(num_convs=0, num_fcs=2),
    )
    network.norm_activation.use_sync_bn = False
    task = MaskRCNNTask(configs.MaskRCNNTask(model=network, losses=configs.Losses(l2_weight_decay=0.0)))
    model = task.build_model()
    for layer in model.submodules:
        if isinstance(layer, tf_keras.layers.BatchNormalization):
            layer.trainable = False
    arrays = _objects(batch, height, width)
    boxes = anchor.Anchor(2, 6, 1, [1.0, 2.0, 0.5], 8.0, (height, width))
    labeler = anchor.RpnAnchorLabeler()
    scores, codes = [], []
    for image in range(batch):
        is_object = arrays["classes"][image] > 0
        objects = tf.constant(arrays["boxes"][image][is_object])
        targets = labeler.label_anchors(boxes.multilevel_boxes, objects, tf.ones([is_object.sum(), 1]))
        scores.append(targets[0])
        codes.append(targets[1])
    stacked = lambda parts: {k: tf.stack([p[k] for p in parts]) for k in parts[0]}  # noqa: E731
    labels = {
        "anchor_boxes": {k: tf.stack([v] * batch) for k, v in boxes.multilevel_boxes.items()},
        "image_info": tf.constant([[[height, width], [height, width], [1, 1], [0, 0]]] * batch, tf.float32),
        "rpn_score_targets": stacked(scores),
        "rpn_box_targets": stacked(codes),
        "gt_boxes": tf.constant(arrays["boxes"]),
        "gt_classes": tf.where(tf.constant(arrays["classes"]) > 0, arrays["classes"], -1),
        "gt_masks": tf.ones([batch, arrays["boxes"].shape[1], 112, 112]),
    }
    images = tf.cast(arrays["image"], tf.float32) / 127.5 - 1
    optimizer = tf_keras.optimizers.SGD(RATE, momentum=MOMENTUM)
    optimizer.build(model.trainable_variables)

    return repeated(lambda: task.train_step((images, labels), model, optimizer)[task.loss])


def _objects(batch: int, height: int, width: int) -> dict[str, np.ndarray]:
    """Noise with OBJECTS objects per image, padded to 100 rows."""
    rng = np.random.default_rng(0)
    low = rng.uniform(0, 0.6, [batch, 100, 2])
    high = low + rng.uniform(0.05, 0.4, low.shape)
    is_object = np.arange(100) < OBJECTS
    boxes = np.concatenate([low, high], -1) * [height, width, height, width] * is_object[:, None]
    classes = np.where(is_object, rng.integers(1, CLASSES, [batch, 100]), 0)
    images = rng.integers(0, 256, [batch, height, width, 3])
    return {
        "image": images.astype(np.uint8),
        "boxes": boxes.astype(np.float32),
        "classes": classes.astype(np.int32),
    }


CONTENDERS = {f.__name__: f for f in (ours, official)}


def make(name: str, precision: str, *sizes: str) -> tuple[Run, dict[str, object]]:
    """Returns (function that trains N steps, facts about the contender)."""
    return CONTENDERS[name](precision, *map(int, sizes)), {"version": tf.__version__}
