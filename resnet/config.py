"""Defines the configuration of ResNet-50 and AlexNet-BN, and checks its fields. TensorFlow-free."""

import dataclasses
from typing import ClassVar

from common.config.batch_norm_span import BatchNormSpan
from common.config.closed_fields import added_field, system_field
from common.config.quality import Measure
from common.config.ranges import RESIZES, at_least, fraction, interval, one_of, within
from common.config.rules import LATER_OPTIMIZERS
from common.config.schema import FrozenStages, RunConfig
from common.errors import UserError

MODELS = ("resnet50", "alexnet_bn")
SMALLEST_ALEXNET = 67  # In pixels; AlexNet's third pooling would reduce a smaller image to nothing.
CACHES = ("none", "encoded", "decoded")


@dataclasses.dataclass(frozen=True)
class Details:
    """What published implementations of ResNet-50 do differently; the defaults are Google's of round v0.6.

    Attributes:
      min_object_covered, aspect_range, max_attempts: arguments of tf.image.stateless_sample_distorted_bounding_box for
        the random training crop.
      kernel_initializer: "truncated_fan_in" (variance 1/fan_in) or "he_normal" (2/fan_in), both truncated.
      zero_init_last_gamma: the last batch norm of each block starts with gamma 0.
      smoothing_over: classes that share `label_smoothing`: "all", or the "others", as in MXNet's SoftmaxOutput.
      steps_per_epoch_rounding: how the steps of an epoch are rounded, "floor" or "ceil".
    """

    min_object_covered: float = 0.1
    aspect_range: tuple[float, float] = (3 / 4, 4 / 3)
    max_attempts: int = 10
    kernel_initializer: str = "truncated_fan_in"
    zero_init_last_gamma: bool = True
    smoothing_over: str = "all"
    steps_per_epoch_rounding: str = "ceil"


# Sources: docs/presets.md. G6 and G7 are Google's rows of v0.6 and v0.7, NV7 is NVIDIA's of v0.7.
IMPLEMENTATIONS = {
    # G6, TensorFlow 1.
    "google_v06": Details(),
    # G7, TensorFlow 1 and JAX.
    "google_v07": Details(aspect_range=(0.75, 1.33)),
    # G7, TensorFlow 2: steps per epoch are rounded down in the schedule and in the run.
    "tensorflow2": Details(
        aspect_range=(0.75, 1.33),
        max_attempts=100,
        kernel_initializer="he_normal",
        zero_init_last_gamma=False,
        steps_per_epoch_rounding="floor",
    ),
    # NV7. Convolutions are initialized as in the TensorFlow 2 code.
    "mxnet": Details(
        min_object_covered=0.0,
        kernel_initializer="he_normal",
        zero_init_last_gamma=False,
        smoothing_over="others",
    ),
}


@dataclasses.dataclass(frozen=True)
class Data:
    """Settings of image reading and augmentation; the defaults match G6 resnet/imagenet_input.py.

    Attributes:
      cache: what stays in memory after the first epoch: "none", "encoded" images (JPEG) or "decoded" ones (uint8).
      shuffle_buffer: examples in the shuffle buffer, per input shard.
      area_range: least and greatest fraction of the image that a random training crop keeps.
      resize: interpolation, of common.config.ranges.RESIZES.
      flip: mirror half of the training images.
    """

    cache: str = system_field("encoded")
    shuffle_buffer: int = 16384
    area_range: tuple[float, ...] = (0.08, 1.0)
    resize: str = "bicubic"
    flip: bool = True

    # Constants of every preset.
    # TFRecord shards inside the data folder.
    train_pattern: ClassVar[str] = "train-*"
    eval_pattern: ClassVar[str] = "validation-*"
    # First label in the files, subtracted from every label.
    label_offset: ClassVar[int] = 1


@dataclasses.dataclass(frozen=True)
class Config(BatchNormSpan, FrozenStages, RunConfig):
    """All settings of a run of ResNet-50 or AlexNet-BN.

    Attributes:
      model: "resnet50" (v1.5) or "alexnet_bn".
      implementation: the published code whose crops, initial values, smoothing and rounding the run has, of
        IMPLEMENTATIONS.
      image_size: side of the square input, in pixels.
      num_classes: outputs of the network; labels are 0 .. num_classes - 1.
      width: channels of the first convolution; every other width is a multiple of it.
      batch_norm_span: number of images that share batch-norm statistics; 0: one replica's micro-batch.
      norm: MODULE:FUNCTION that makes your own layers to replace batch norm (docs/extend.md); "": batch norm.
      space_to_depth: compute the stem on 2x2 blocks; the result is the same.
      label_smoothing: fraction of the target probability that is spread over classes.
    """

    benchmark: str = "resnet"
    model: str = "resnet50"
    implementation: str = added_field("google_v06")
    num_train_examples: int = 1281167
    num_eval_examples: int = 50000
    quality_target: float | None = 0.759
    image_size: int = 224
    num_classes: int = 1000
    width: int = 64
    batch_norm_span: int = 0
    norm: str = added_field("")
    space_to_depth: bool = system_field(False)
    label_smoothing: float = 0.1
    data: Data = Data()

    # Constants of every preset.
    # Momentum of the moving averages.
    batch_norm_momentum: ClassVar[float] = 0.9

    # The stem and the four stages of the residual network.
    stages: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("conv1", "bn1"),
        *((f"layer{stage}.",) for stage in range(1, 5)),
    )
    schedules: ClassVar[tuple[str, ...]] = ("poly", "step", "cosine")
    quality: ClassVar[Measure] = Measure("top-1 accuracy", unit="%")

    @property
    def details(self) -> Details:
        """What `implementation` does differently from others."""
        return IMPLEMENTATIONS[self.implementation]

    @property
    def steps_per_epoch_rounding(self) -> str:
        """Extends RunConfig's constant: the implementations differ."""
        return self.details.steps_per_epoch_rounding

    @property
    def crop_fraction(self) -> float:
        """Fraction of the short side that the central evaluation crop keeps: the papers crop images of 256 pixels."""
        return (227 if self.model == "alexnet_bn" else 224) / 256

    @property
    def batch_norm_epsilon(self) -> float:
        """Added to the variance (docs/sources.md, mlperf 1.1 and 2)."""
        return 1e-4 if self.model == "alexnet_bn" else 1e-5

    def plugin_functions(self) -> dict[str, str]:
        """Extends RunConfig.plugin_functions with the norm."""
        return super().plugin_functions() | ({"norm": self.norm} if self.norm else {})

    def validate_own_fields(self) -> None:
        """Raises UserError if a field is out of range or fields contradict each other."""
        if self.norm and self.model != "resnet50":
            raise UserError(f"config.norm={self.norm!r}: {self.model} has batch norm alone; use resnet50")
        if self.norm and self.partitions > 1:
            raise UserError(f"config.norm={self.norm!r}: a layer of your own cannot partition its images")
        one_of(self, "model", MODELS)
        one_of(self, "implementation", tuple(IMPLEMENTATIONS))
        one_of(self, "data.cache", CACHES)
        one_of(self, "data.resize", RESIZES)
        functions = self.plugin_functions().values()
        one_of(self, "optimizer.name", ("sgd", "lars", *LATER_OPTIMIZERS, *functions))
        at_least(self, 1, "image_size", "num_classes", "width")
        at_least(self, 1, "data.shuffle_buffer")
        fraction(self, "label_smoothing")
        within(self, 0, 1, "data.area_range")
        interval(self, "data.area_range")
        if self.space_to_depth and self.image_size % 2:
            raise UserError(
                f"config.space_to_depth=True needs an even config.image_size, not {self.image_size}"
            )
        if self.partitions > 1 and self.model != "resnet50":
            raise UserError(f"config.partitions={self.partitions}: {self.model} cannot partition its images")
        self.validate_span()
        if self.model == "alexnet_bn":
            self._validate_alexnet()

    def _validate_alexnet(self) -> None:
        if self.image_size < SMALLEST_ALEXNET:
            raise UserError(
                f"config.image_size={self.image_size}: alexnet_bn needs at least {SMALLEST_ALEXNET}"
            )
        if self.width % 8:
            fix = "64 is the published size"
            raise UserError(f"config.width={self.width}: alexnet_bn needs a multiple of 8; {fix}")
