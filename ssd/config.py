"""Defines the configuration of SSD and checks its fields. TensorFlow-free."""

import dataclasses
from typing import ClassVar, NamedTuple

from common.config.batch_norm_span import BatchNormSpan
from common.config.closed_fields import later_field, rule_field, system_field
from common.config.quality import Measure
from common.config.ranges import RESIZES, at_least, interval, one_of, within
from common.config.schema import FrozenStages, RunConfig
from common.errors import UserError

CACHES = ("none", "encoded")
BIAS_INITIALIZERS = ("zeros", "fan_in", "prior")


class Levels(NamedTuple):
    """The feature maps and their anchors.

    Attributes:
      strided: number of extra feature maps, after the backbone's, that halve the side (3x3, stride 2).
      unpadded: number of further extra feature maps, each a pixel smaller on every side (3x3, unpadded).
      scales: anchor size of each level, plus one more size, in pixels of a 300 pixel image.
      steps: anchor spacing of each level, in pixels of a 300 pixel image.
      per_cell: number of anchors per cell of each level, 4 or 6.
    """

    strided: int
    unpadded: int
    scales: tuple[float, ...]
    steps: tuple[float, ...]
    per_cell: tuple[int, ...]


LEVELS = {
    # Sides of 38, 19, 10, 5, 3, 1 from 300 pixels (docs/sources.md, mlperf 2, SSD).
    "published": Levels(
        *(3, 2, (21.0, 45.0, 99.0, 153.0, 207.0, 261.0, 315.0)),
        *((8.0, 16.0, 32.0, 64.0, 100.0, 300.0), (4, 6, 6, 6, 4, 4)),
    ),
    # For cpu-tiny's large figures, and for many small objects.
    "tiny": Levels(2, 1, (50.0, 90.0, 150.0, 210.0, 270.0), (25.0, 50.0, 100.0, 300.0), (4, 6, 6, 4)),
    "small_objects": Levels(2, 1, (12.0, 24.0, 48.0, 96.0, 150.0), (6.25, 12.5, 25.0, 50.0), (4, 6, 6, 4)),
}


@dataclasses.dataclass(frozen=True)
class Data:
    """Settings of image reading and augmentation, with published defaults (docs/sources.md, mlperf 2, SSD).

    Attributes:
      cache: what stays in memory after the first epoch: "none" or "encoded" examples (JPEG and boxes).
      shuffle_buffer: examples in the shuffle buffer, per input shard.
      max_boxes: training uses at most the first max_boxes objects of an image.
      crop_attempts: proposals for each drawn minimum overlap; the log calls it max_samples.
      crop_sides: range of a crop's sides, as fractions of the image's sides.
      crop_overlaps: all boxes overlap the crop by more (IoU) than a minimum; each pass draws one of these minima or "no
        crop at all". -1 requires no overlap, as in NVIDIA's code.
      flip: mirror half of the training images.
      contrast: factors of contrast and saturation are drawn from 1 +- this.
      resize: interpolation, of common.config.ranges.RESIZES; "legacy_bilinear" cuts crops as TensorFlow's
        crop_and_resize.
      colours: how colors change: "torch", about gray values, or "tensorflow", its own operations (G6, G7).
    """

    cache: str = system_field("encoded")
    shuffle_buffer: int = 4096
    max_boxes: int = 100
    crop_attempts: int = 50
    crop_sides: tuple[float, ...] = (0.3, 1.0)
    crop_overlaps: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
    flip: bool = True
    contrast: float = 0.5
    resize: str = later_field("bilinear")
    colours: str = later_field("torch")

    # Constants of every preset.
    # TFRecord shards inside the data folder, in tf-models' layout.
    train_pattern: ClassVar[str] = "train-*"
    eval_pattern: ClassVar[str] = "val-*"
    # COCO file of the evaluated images, inside the data folder; its categories are the classes.
    annotations: ClassVar[str] = "instances_val2017.json"
    # Number of threads in the tf.data pool; 0 lets tf.data choose.
    private_threads: ClassVar[int] = 0
    # Runs with the same seed read examples in the same order.
    deterministic: ClassVar[bool] = True
    # Maximum hue rotation, as a fraction of a circle.
    hue: ClassVar[float] = 0.05
    brightness: ClassVar[float] = 0.125
    # Range of a crop's width / height.
    crop_aspect: ClassVar[tuple[float, ...]] = (0.5, 2.0)


@dataclasses.dataclass(frozen=True)
class Config(BatchNormSpan, FrozenStages, RunConfig):
    """All settings of a run of SSD.

    Attributes:
      image_size: side of the square input, in pixels.
      num_classes: outputs per anchor; 0 is the background.
      width: channels of the first convolution; every other width is a multiple of it.
      levels: feature maps and anchors, of LEVELS.
      score_threshold: a detection must score more than this.
      candidates: number of best detections per class that enter suppression.
      detections: maximum number of detections per image.
      batch_norm_span: number of images that share batch-norm statistics; 0: one replica's micro-batch.
      space_to_depth: compute the stem on 2x2 blocks; the result is the same.
      bias_initializer: bias initializer of the extra feature maps' and prediction convolutions: "zeros" as in Google's
        code, or "fan_in", uniform in +-1 / sqrt(fan-in), as in the reference (PyTorch's default) and NVIDIA's code.
        "prior" is "zeros", but the classes' prediction starts with the background almost everywhere.
      backbone: checkpoint of a ResNet-34 to start from (ssd/backbone.py); "" starts from scratch.
      epoch_images: images per epoch in the schedule's arithmetic; 0: `num_train_examples`. Published schedules count
        118,287 or 120,000, though only 117,266 images contain objects (docs/sources.md, mlperf 0.9).
      logged_rate_batch: the log gives the base rate for a batch of this size, as published; 0: for the global batch.
    """

    benchmark: str = "ssd"
    num_train_examples: int = 117266
    num_eval_examples: int = 5000
    quality_target: float | None = 0.23
    image_size: int = 300
    num_classes: int = 81
    width: int = 64
    score_threshold: float = 0.05
    candidates: int = 200
    detections: int = 200
    batch_norm_span: int = 0
    space_to_depth: bool = system_field(False)
    backbone: str = ""
    epoch_images: int = 0
    logged_rate_batch: int = rule_field(0)
    bias_initializer: str = later_field("zeros")
    levels: str = later_field("published")
    data: Data = Data()

    # Constants of every preset.
    # Minimum IoU with an object for a positive anchor.
    match_overlap: ClassVar[float] = 0.5
    # Number of hardest negatives in an image's loss per positive.
    negatives_per_positive: ClassVar[int] = 3
    # IoU at or above which suppression drops the worse of two detections of a class.
    suppression_overlap: ClassVar[float] = 0.5
    # Momentum of the moving averages.
    batch_norm_momentum: ClassVar[float] = 0.9
    # Added to the variance.
    batch_norm_epsilon: ClassVar[float] = 1e-5

    # The stem and the three stages of the residual network.
    stages: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("conv1", "bn1"),
        *((f"layer{stage}.",) for stage in range(1, 4)),
    )
    model: ClassVar[str] = "ssd300_resnet34"
    schedules: ClassVar[tuple[str, ...]] = ("step", "cosine")
    quality: ClassVar[Measure] = Measure("box mAP")

    weights_field: ClassVar[str] = "backbone"
    starts_from: ClassVar[str] = "an ImageNet ResNet-34"

    def validate_own_fields(self) -> None:
        """Raises UserError if a field is out of range or fields contradict each other."""
        if self.optimizer.name != "sgd" and not self.optimizer.is_own:
            raise UserError(f"config.optimizer.name={self.optimizer.name!r}: SSD is published with sgd only")
        one_of(self, "data.cache", CACHES)
        one_of(self, "data.resize", RESIZES)
        one_of(self, "data.colours", ("torch", "tensorflow"))
        one_of(self, "bias_initializer", BIAS_INITIALIZERS)
        at_least(self, 1, "image_size", "width", "candidates", "detections")
        at_least(self, 1, "data.max_boxes", "data.crop_attempts", "data.shuffle_buffer")
        at_least(self, 0, "epoch_images", "logged_rate_batch")
        within(self, 0, 1, "data.contrast", "data.crop_sides")
        within(self, 0, 1, "score_threshold")
        within(self, -1, 1, "data.crop_overlaps")
        one_of(self, "levels", tuple(LEVELS))
        interval(self, "data.crop_sides")
        if self.num_classes < 2:
            raise UserError(f"config.num_classes={self.num_classes}: the background and one class at least")
        if self.space_to_depth and self.image_size % 2:
            raise UserError(
                f"config.space_to_depth=True needs an even config.image_size, not {self.image_size}"
            )
        if self.feature_sizes[-1] < 1:
            raise UserError(
                f"config.image_size={self.image_size}: feature maps of {self.feature_sizes}; take larger images, or "
                "config.levels=tiny"
            )
        self.validate_span()

    @property
    def examples_per_epoch(self) -> int:
        return self.epoch_images or self.num_train_examples

    @property
    def anchors(self) -> Levels:
        """Returns the feature maps and anchors that `levels` names."""
        return LEVELS[self.levels]

    @property
    def feature_sizes(self) -> tuple[int, ...]:
        """Returns the number of cells along a side of each feature map: 38, 19, 10, 5, 3, 1 for 300 pixels."""
        size = self.image_size
        for _ in range(3):  # Stem, pooling and second stage each halve the side, rounding up.
            size = -(-size // 2)
        sizes = [size]
        for _ in range(self.anchors.strided):
            sizes.append(-(-sizes[-1] // 2))
        for _ in range(self.anchors.unpadded):
            sizes.append(sizes[-1] - 2)
        return tuple(sizes)
