"""Defines the configuration of SSD and checks its fields. TensorFlow-free."""

import dataclasses
from typing import ClassVar, NamedTuple

from common.config.batch_norm_span import BatchNormSpan
from common.config.closed_fields import added_field, system_field
from common.config.quality import Measure
from common.config.ranges import at_least, interval, one_of, within
from common.config.schema import FrozenStages, RunConfig
from common.errors import UserError

CACHES = ("none", "encoded")


class Sizes(NamedTuple):
    """Sizes of the feature maps, of their anchors and of the detections.

    Attributes:
      strided: number of extra feature maps, after the backbone's, that halve the side (3x3, stride 2).
      unpadded: number of further extra feature maps, each a pixel smaller on every side (3x3, unpadded).
      scales: anchor size of each level, plus one more size, in pixels of a 300 pixel image.
      steps: anchor spacing of each level, in pixels of a 300 pixel image.
      per_cell: number of anchors per cell of each level, 4 or 6.
      candidates: number of best detections per class that enter suppression.
      detections: maximum number of detections per image.
    """

    strided: int
    unpadded: int
    scales: tuple[float, ...]
    steps: tuple[float, ...]
    per_cell: tuple[int, ...]
    candidates: int
    detections: int


SIZES = {
    # Sides of 38, 19, 10, 5, 3, 1 from 300 pixels (docs/sources.md, mlperf 2, SSD).
    "published": Sizes(
        strided=3,
        unpadded=2,
        scales=(21.0, 45.0, 99.0, 153.0, 207.0, 261.0, 315.0),
        steps=(8.0, 16.0, 32.0, 64.0, 100.0, 300.0),
        per_cell=(4, 6, 6, 6, 4, 4),
        candidates=200,
        detections=200,
    ),
    # For pictures of a hundred pixels with few objects.
    "tiny": Sizes(
        strided=2,
        unpadded=1,
        scales=(50.0, 90.0, 150.0, 210.0, 270.0),
        steps=(25.0, 50.0, 100.0, 300.0),
        per_cell=(4, 6, 6, 4),
        candidates=50,
        detections=50,
    ),
    # For pictures full of small objects.
    "small_objects": Sizes(
        strided=2,
        unpadded=1,
        scales=(12.0, 24.0, 48.0, 96.0, 150.0),
        steps=(6.25, 12.5, 25.0, 50.0),
        per_cell=(4, 6, 6, 4),
        candidates=200,
        detections=100,  # COCOeval counts at most 100.
    ),
}


class Details(NamedTuple):
    """Details in which the codes of the submissions differ; defaults: none of their peculiarities.

    Attributes:
      resize: interpolation, of common.config.ranges.RESIZES; "legacy_bilinear" cuts crops as TensorFlow's
        crop_and_resize.
      colors: how colors change: "torch", about gray values, or "tensorflow", its own operations (G6, G7).
      crop_overlaps: all boxes overlap the crop by more (IoU) than a minimum; each pass draws one of these minima or "no
        crop at all". -1 requires no overlap.
      bias_initializer: bias initializer of the extra feature maps' and prediction convolutions: "zeros" as in Google's
        code, or "fan_in", uniform in +-1 / sqrt(fan-in), as in the reference (PyTorch's default) and NVIDIA's code.
      drops_round_down: whether the step of a drop of the rate is rounded down, as int() does in Google's code.
      logged_rate_batch: the log gives the base rate for a batch of this size, as published; 0: for the global batch.
    """

    resize: str = "bilinear"
    colors: str = "torch"
    crop_overlaps: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
    bias_initializer: str = "zeros"
    drops_round_down: bool = False
    logged_rate_batch: int = 0


IMPLEMENTATIONS = {
    "plain": Details(),
    "google": Details(
        resize="legacy_bilinear", colors="tensorflow", drops_round_down=True, logged_rate_batch=32
    ),
    "nvidia": Details(
        resize="antialiased",
        # Minus infinity there for "no requirement" (utils.py 146); the MXNet row's DALI compares with >=, so 0 is the
        # same.
        crop_overlaps=(-1.0, 0.1, 0.3, 0.5, 0.7, 0.9),
        bias_initializer="fan_in",
    ),
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
      flip: mirror half of the training images.
      contrast: factors of contrast and saturation are drawn from 1 +- this.
    """

    cache: str = system_field("encoded")
    shuffle_buffer: int = 4096
    max_boxes: int = 100
    crop_attempts: int = 50
    crop_sides: tuple[float, ...] = (0.3, 1.0)
    flip: bool = True
    contrast: float = 0.5

    # Constants of every preset.
    # TFRecord shards inside the data folder, in tf-models' layout.
    train_pattern: ClassVar[str] = "train-*"
    eval_pattern: ClassVar[str] = "val-*"
    # COCO file of the evaluated images, inside the data folder; its categories are the classes.
    annotations: ClassVar[str] = "instances_val2017.json"
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
      network: sizes of the feature maps, the anchors and the detections, of SIZES.
      implementation: whose code the run follows where the submissions' codes differ, of IMPLEMENTATIONS.
      batch_norm_span: number of images that share batch-norm statistics; 0: one replica's micro-batch.
      space_to_depth: compute the stem on 2x2 blocks; the result is the same.
      backbone: checkpoint of a ResNet-34 to start from (ssd/backbone.py); "" starts from scratch.
      epoch_images: images per epoch in the schedule's arithmetic; 0: `num_train_examples`. Published schedules count
        118,287 or 120,000, though only 117,266 images contain objects (docs/sources.md, mlperf 0.9).
    """

    benchmark: str = "ssd"
    num_train_examples: int = 117266
    num_eval_examples: int = 5000
    quality_target: float | None = 0.23
    image_size: int = 300
    num_classes: int = 81
    width: int = 64
    batch_norm_span: int = 0
    space_to_depth: bool = system_field(False)
    backbone: str = ""
    epoch_images: int = 0
    implementation: str = added_field("plain", closed="fixed")
    network: str = added_field("published")
    data: Data = Data()

    # Constants of every preset.
    # Minimum IoU with an object for a positive anchor.
    match_overlap: ClassVar[float] = 0.5
    # Number of hardest negatives in an image's loss per positive.
    negatives_per_positive: ClassVar[int] = 3
    # A detection must score more than this.
    score_threshold: ClassVar[float] = 0.05
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
        if self.optimizer.name != "sgd" and not self.optimizer.is_plugin:
            raise UserError(f"config.optimizer.name={self.optimizer.name!r}: SSD is published with sgd only")
        one_of(self, "data.cache", CACHES)
        one_of(self, "implementation", tuple(IMPLEMENTATIONS))
        one_of(self, "network", tuple(SIZES))
        at_least(self, 1, "image_size", "width")
        at_least(self, 1, "data.max_boxes", "data.crop_attempts", "data.shuffle_buffer")
        at_least(self, 0, "epoch_images")
        within(self, 0, 1, "data.contrast", "data.crop_sides")
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
                "config.network=tiny"
            )
        self.validate_span()

    @property
    def examples_per_epoch(self) -> int:
        return self.epoch_images or self.num_train_examples

    @property
    def sizes(self) -> Sizes:
        """Returns the sizes that `network` names."""
        return SIZES[self.network]

    @property
    def details(self) -> Details:
        """Returns the details that `implementation` names."""
        return IMPLEMENTATIONS[self.implementation]

    @property
    def drops_round_down(self) -> bool:
        return self.details.drops_round_down

    @property
    def feature_sizes(self) -> tuple[int, ...]:
        """Returns the number of cells along a side of each feature map: 38, 19, 10, 5, 3, 1 for 300 pixels."""
        size = self.image_size
        for _ in range(3):  # Stem, pooling and second stage each halve the side, rounding up.
            size = -(-size // 2)
        sizes = [size]
        for _ in range(self.sizes.strided):
            sizes.append(-(-sizes[-1] // 2))
        for _ in range(self.sizes.unpadded):
            sizes.append(sizes[-1] - 2)
        return tuple(sizes)
