"""Defines the configuration of Mask R-CNN and checks its fields. TensorFlow-free."""

import dataclasses
from typing import ClassVar, NamedTuple

from common.config.batch_norm_span import BatchNormSpan
from common.config.closed_fields import added_field, rule_field, system_field
from common.config.quality import Measure
from common.config.ranges import at_least, one_of
from common.config.schema import FrozenStages, RunConfig
from common.errors import UserError

CACHES = ("none", "encoded")
BATCH_NORMS = ("frozen", "span")


@dataclasses.dataclass(frozen=True)
class Data:
    """Settings of image reading; mirroring is the only augmentation (docs/sources.md, mlperf 2, Mask R-CNN).

    Attributes:
      cache: what stays in memory after the first epoch: "none" or "encoded" records. Every epoch deals images to
        processes anew, so with "encoded" each process ends up holding nearly the entire set.
      skip_empty: train only on images with an annotation (crowds count), as the reference and NVIDIA do; Google's code
        trains on all images.
      flip: mirror half of the training images.
    """

    cache: str = system_field("none")
    skip_empty: bool = False
    flip: bool = True

    # Constants of every preset.
    # TFRecord shards inside the data folder, in tf-models' layout, with masks.
    train_pattern: ClassVar[str] = "train-*"
    eval_pattern: ClassVar[str] = "val-*"
    # COCO file of the evaluated images, inside the data folder; its categories are the classes.
    annotations: ClassVar[str] = "instances_val2017.json"


class Sizes(NamedTuple):
    """Sizes of the pyramid, the heads and the samples; defaults: G7 mask_rcnn_params.py (docs/sources.md, mlperf 2).

    Attributes:
      fpn_channels: channels of the pyramid and of the region proposal network.
      head_units: units of the box head's two layers.
      mask_channels: channels of the mask head's convolutions.
      max_level: levels of the pyramid; a cell of level l covers 2^l pixels. Regions use levels up to 5, or all in
        Google's geometry.
      anchor_scale: an anchor of level l has the area of a square with a side of anchor_scale * 2^l pixels.
      gt_mask_size: side of the ground-truth masks that the device gets, cut to their boxes.
      rpn_batch: number of anchors per image in the loss.
      rpn_pre_nms, rpn_eval_pre_nms: proposals per level before suppression, in training and in an evaluation.
      rpn_post_nms: proposals per image after it.
      roi_batch, roi_foreground: number of regions per image that train the heads, and the maximum fraction of them that
        contains objects.
      detections: maximum number of detections per image.
    """

    fpn_channels: int = 256
    head_units: int = 1024
    mask_channels: int = 256
    max_level: int = 6
    anchor_scale: float = 8.0
    gt_mask_size: int = 112
    rpn_batch: int = 256
    rpn_pre_nms: int = 2000
    rpn_post_nms: int = 1000
    rpn_eval_pre_nms: int = 1000
    roi_batch: int = 512
    roi_foreground: float = 0.25
    detections: int = 100


SIZES = {
    "published": Sizes(),
    # For pictures of a hundred pixels with few objects.
    "tiny": Sizes(
        fpn_channels=32,
        head_units=128,
        mask_channels=16,
        max_level=5,
        anchor_scale=4.0,
        gt_mask_size=28,
        rpn_batch=64,
        rpn_pre_nms=100,
        rpn_post_nms=50,
        rpn_eval_pre_nms=100,
        roi_batch=32,
        roi_foreground=0.5,
        detections=20,
    ),
    # For pictures full of small objects.
    "small_objects": Sizes(
        fpn_channels=64,
        head_units=128,
        mask_channels=32,
        max_level=5,
        anchor_scale=2.5,  # Anchors of the lowest level are 10 pixels wide.
        gt_mask_size=28,
        rpn_pre_nms=500,
        rpn_post_nms=300,
        rpn_eval_pre_nms=500,
        roi_batch=128,
        roi_foreground=0.5,
    ),
}


class Details(NamedTuple):
    """Details in which the codes of the submissions differ; defaults: none of their peculiarities.

    Attributes:
      geometry: arithmetic of boxes. "plain": a box is right - left wide. "google", as in the TPU submissions (G7
        mask_rcnn box_utils.py): decoding, and encoding from regions, count right - left + 1; boxes end at the content's
        size - 1; proposals with a side below 1 / scale are dropped; regions use all levels; the best
        `rpn_post_nms` of all classes enter the detections' suppression. "nvidia": anchors have sides in whole
        cells' parts and pixel centers (NV maskrcnn anchor_generator.py 225-264), and all that tie for an object's best
        overlap are positive (NV modeling/matcher.py 88-112).
      resize: interpolation, of common.config.ranges.RESIZES.
      loss_divisors: "positives" averages each box loss over positive anchors or regions, as Google's code does;
        "sampled" divides its sum by the number of all sampled ones, as the reference and NVIDIA do (maskrcnn/loss.py).
      rpn_inside: whether the losses ignore anchors that cross the image's border. They do in the reference and in
        NVIDIA's code (RPN.STRADDLE_THRESH = 0); Google's code uses all anchors.
      uniform_initializer: how the pyramid and the box head's hidden layers start: "fan_avg", as in TensorFlow and
        Google's code, or "fan_in", as in the reference and NVIDIA's (REF modeling/make_layers.py: kaiming_uniform).
    """

    geometry: str = "plain"
    resize: str = "bilinear"
    loss_divisors: str = "positives"
    rpn_inside: bool = False
    uniform_initializer: str = "fan_avg"


IMPLEMENTATIONS = {
    "plain": Details(),
    "google": Details(geometry="google", resize="legacy_bilinear"),
    "nvidia": Details(
        geometry="nvidia",
        resize="antialiased",
        loss_divisors="sampled",
        rpn_inside=True,
        uniform_initializer="fan_in",
    ),
}


@dataclasses.dataclass(frozen=True)
class Config(BatchNormSpan, FrozenStages, RunConfig):
    """All settings of a run of Mask R-CNN. Defaults: G7 mask_rcnn_params.py (docs/sources.md, mlperf 2).

    Attributes:
      quality_target, mask_quality_target: box mAP and mask mAP; the run ends when one evaluation meets both.
      short_side, long_side: an image is scaled until its short side has short_side pixels or its long side has
        long_side, whichever comes first.
      max_instances: training uses at most the first max_instances objects of an image.
      num_classes: outputs of the box head: 0 for the background, and one class for each category id below num_classes,
        used or not.
      network: sizes of the pyramid, the heads and the samples, of SIZES.
      backbone_width: channels of ResNet-50's first convolution; its other widths are multiples of it.
      implementation: whose code the run follows where the submissions' codes differ, of IMPLEMENTATIONS.
      roi_samples: bilinear samples per side of a region's bin: 1 in round v0.6 of Google's code, 2 elsewhere.
      batch_norm: "frozen" uses the checkpoint's statistics and scales and trains neither, nor the stem and the first
        stage; "span" trains every layer, with statistics over `batch_norm_span` images.
      batch_norm_span: number of images that share batch-norm statistics; 0: one replica's micro-batch.
      backbone: checkpoint of a ResNet-50 to start from (maskrcnn/backbone.py); "" starts from scratch.
      eval_workers: processes that paste and encode masks while the next block trains; 0: one per core, at most 20.
    """

    benchmark: str = "maskrcnn"
    num_train_examples: int = 118287
    num_eval_examples: int = 5000
    quality_target: float | None = 0.377
    mask_quality_target: float | None = 0.339
    short_side: int = rule_field(800)
    long_side: int = rule_field(1333)
    max_instances: int = 100
    num_classes: int = 91
    network: str = added_field("published")
    backbone_width: int = 64
    batch_norm: str = "frozen"
    batch_norm_span: int = 0
    backbone: str = ""
    eval_workers: int = system_field(0)
    implementation: str = added_field("plain", closed="fixed")
    roi_samples: int = added_field(2)
    data: Data = Data()

    # Constants of every preset.
    # Side of the predicted masks, whose features have half this side, and number of the mask head's convolutions.
    mask_size: ClassVar[int] = 28
    mask_convs: ClassVar[int] = 4
    # Maximum fraction of rpn_batch that is positive.
    rpn_foreground: ClassVar[float] = 0.5
    # An anchor is positive if its IoU with an object is at least rpn_positive, and negative if it is below
    # rpn_negative.
    rpn_positive: ClassVar[float] = 0.7
    rpn_negative: ClassVar[float] = 0.3
    # IoU at or above which suppression drops the worse of two proposals.
    rpn_nms_iou: ClassVar[float] = 0.7
    # Minimum IoU with an object for a region to count as containing it.
    roi_positive: ClassVar[float] = 0.5
    # A detection must score more than this.
    score_threshold: ClassVar[float] = 0.05
    # IoU at or above which suppression drops the worse of two detections of a class.
    nms_iou: ClassVar[float] = 0.5
    # Momentum of the moving averages.
    batch_norm_momentum: ClassVar[float] = 0.9
    min_level: ClassVar[int] = 2

    # The stem and the four stages of the residual network.
    stages: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("conv1", "bn1"),
        *((f"layer{stage}.",) for stage in range(1, 5)),
    )
    model: ClassVar[str] = "mask_rcnn_resnet50_fpn"
    schedules: ClassVar[tuple[str, ...]] = ("step", "cosine")
    quality: ClassVar[Measure] = Measure("mAP", names={"BBOX": "box mAP", "SEGM": "mask mAP"})
    target_fields: ClassVar[tuple[str, ...]] = ("quality_target", "mask_quality_target")

    weights_field: ClassVar[str] = "backbone"
    starts_from: ClassVar[str] = "an ImageNet ResNet-50"

    def validate_own_fields(self) -> None:
        """Raises UserError if a field is out of range or fields contradict each other."""
        if self.optimizer.name != "sgd" and not self.optimizer.is_plugin:
            raise UserError(
                f"config.optimizer.name={self.optimizer.name!r}: Mask R-CNN is published with sgd only"
            )
        one_of(self, "data.cache", CACHES)
        one_of(self, "batch_norm", BATCH_NORMS)
        one_of(self, "implementation", tuple(IMPLEMENTATIONS))
        one_of(self, "network", tuple(SIZES))
        at_least(self, 1, "short_side", "long_side", "max_instances", "backbone_width", "roi_samples")
        at_least(self, 0, "eval_workers")
        if self.num_classes < 2:
            raise UserError(f"config.num_classes={self.num_classes}: the background and one class at least")
        if self.short_side > self.long_side:
            raise UserError(
                f"config.short_side={self.short_side}: must be at most config.long_side={self.long_side}"
            )
        if self.batch_norm == "span":
            self.validate_span()

    @property
    def sizes(self) -> Sizes:
        """Returns the sizes that `network` names."""
        return SIZES[self.network]

    @property
    def details(self) -> Details:
        """Returns the details that `implementation` names."""
        return IMPLEMENTATIONS[self.implementation]

    @property
    def freeze(self) -> bool:
        """Whether the stem and the first stage keep the checkpoint's weights."""
        return self.batch_norm == "frozen"

    @property
    def batch_norm_epsilon(self) -> float:
        """What batch norm adds to the variance: Google's with a checkpoint's statistics, PyTorch's if it trains."""
        return 1e-4 if self.batch_norm == "frozen" else 1e-5

    @property
    def padded_size(self) -> tuple[int, int]:
        """Returns (short, long) sides of a frame in whole cells of the last level; the image lies at its top left."""
        cell = 2**self.sizes.max_level
        return -(-self.short_side // cell) * cell, -(-self.long_side // cell) * cell

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Returns (height, width) of the wide and the tall frame, or of one frame if both are the same."""
        short, long = self.padded_size
        return ((short, long), (long, short)) if short != long else ((short, long),)

    @property
    def examples_per_evaluation(self) -> int:
        """Returns an evaluation's images plus padding; separate wide and tall batches add at most one batch in all."""
        return self.num_eval_examples + (len(self.shapes) - 1) * self.eval_batch_size

    @property
    def logged_target(self) -> dict[str, float] | None:
        both = {"BBOX": self.quality_target, "SEGM": self.mask_quality_target}
        return None if self.quality_target is None else {k: v for k, v in both.items() if v is not None}
