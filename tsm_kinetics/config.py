"""Defines the configuration of the video networks and checks its fields. TensorFlow-free."""

import dataclasses
from typing import ClassVar

from common.config.closed_fields import added_field
from common.config.quality import Measure
from common.config.ranges import RESIZES, at_least, fraction, one_of
from common.config.schema import FrozenStages, RunConfig
from common.errors import UserError

# Frames per clip for each model: Table 1 of "Training Kinetics in 15 Minutes".
FRAMES = {"tsm": 8, "i3d_3x3x3": 16, "i3d_3x1x1": 32, "tsn": 8}
MODELS = tuple(FRAMES)
SAMPLINGS = ("dense", "uniform")
MODALITIES = ("rgb", "rgb_difference")


@dataclasses.dataclass(frozen=True)
class Data:
    """Settings of frame sampling and augmentation.

    The defaults follow mit-han-lab/temporal-shift-module (docs/sources.md, mlperf 2).

    Attributes:
      sampling: "dense", equally spaced frames from a window, or "uniform", one frame from each of equal segments.
      window: frames that a dense clip spans; a video with fewer frames repeats from its start.
      modality: the network's input: "rgb", the frames, or "rgb_difference", each frame minus the previous one.
      scales: fractions of the short side to draw a training crop's sides from.
      flip: mirror half of the training clips; set to false if left and right are classes.
      jitter: each training clip's brightness, saturation and contrast are multiplied by factors from 1 - jitter to
        1 + jitter; the published recipe has 0.
      resize: interpolation, of common.config.ranges.RESIZES.
      eval_clips: clips per video, at equal distances.
      eval_crops: crops per clip: 1 (center) or 3 (along the long side).
      eval_short_side: short side of scaled evaluation frames, in pixels.
      eval_size: side of evaluation crops, in pixels.
      stored_short_side: largest short side of the records' frames, in pixels; a prediction scales larger videos down
        to it, as the conversion did.
    """

    sampling: str = "dense"
    window: int = 64
    modality: str = "rgb"
    scales: tuple[float, ...] = (1.0, 0.875, 0.75, 0.66)
    flip: bool = True
    jitter: float = 0.0
    resize: str = added_field("bilinear")
    eval_clips: int = 10
    eval_crops: int = 1
    eval_short_side: int = 256
    eval_size: int = 256
    stored_short_side: int = added_field(256)


@dataclasses.dataclass(frozen=True)
class Config(FrozenStages, RunConfig):
    """All settings of a run of a video network.

    Attributes:
      model: "tsm", "i3d_3x3x3", "i3d_3x1x1" or "tsn".
      num_frames: frames per clip; 0 uses the model's number from FRAMES.
      online: "tsm" shifts only from the past, so that it can run on a stream.
      image_size: side of the square training frames, in pixels.
      num_classes: outputs of the network; labels are 0 .. num_classes - 1.
      width: channels of the first convolution; every other width is a multiple of it.
      blocks: residual blocks of the four stages; (3, 4, 6, 3) is ResNet-50.
      initial_weights: a file with an ImageNet ResNet-50 that common/layers/weight_files.py reads; "": random.
    """

    benchmark: str = "tsm_kinetics"
    model: str = "tsm"
    num_train_examples: int = 240436
    num_eval_examples: int = 19796
    quality_target: float | None = 0.74
    train_epochs: float = 100.0
    num_frames: int = 0
    online: bool = False
    image_size: int = 224
    num_classes: int = 400
    width: int = 64
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    initial_weights: str = ""
    data: Data = Data()

    # Constants of every preset.
    # Fraction of the channels that "tsm" shifts in each direction (docs/sources.md, mlperf 2).
    shift_fraction: ClassVar[float] = 0.125
    # How 2-D weights initialize a 3-D kernel of k frames: "mean" puts 1/k of them in each frame, "center" puts all in
    # the middle frame.
    inflation: ClassVar[str] = "mean"
    # Momentum of the moving averages.
    batch_norm_momentum: ClassVar[float] = 0.9
    # Added to the variance.
    batch_norm_epsilon: ClassVar[float] = 1e-5

    partitions: ClassVar[int] = 1  # Only networks of images have parts.
    # The stem and the four stages of the residual network.
    stages: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("conv1", "bn1"),
        *((f"layer{stage}.",) for stage in range(1, 5)),
    )
    schedules: ClassVar[tuple[str, ...]] = ("cosine",)
    quality: ClassVar[Measure] = Measure("top-1 accuracy", unit="%")

    weights_field: ClassVar[str] = "initial_weights"
    starts_from: ClassVar[str] = "an ImageNet ResNet-50"

    @property
    def frames(self) -> int:
        """Returns the number of frames per clip."""
        return self.num_frames or FRAMES[self.model]

    @property
    def views(self) -> int:
        """Returns the number of views (clips times crops) per video that an evaluation averages over."""
        return self.data.eval_clips * self.data.eval_crops

    @property
    def weight_transformations(self) -> str:
        if not self.initial_weights_file or self.model in ("tsm", "tsn"):
            return super().weight_transformations
        return f"{super().weight_transformations}, 2-D kernels inflated to 3-D ({self.inflation})"

    def validate_own_fields(self) -> None:
        """Raises UserError if a field is out of range or fields contradict each other."""
        one_of(self, "model", MODELS)
        one_of(self, "data.sampling", SAMPLINGS)
        one_of(self, "data.modality", MODALITIES)
        one_of(self, "data.resize", RESIZES)
        at_least(self, 1, "image_size", "num_classes", "width", "frames")
        if len(self.blocks) != 4 or min(self.blocks) < 1:
            raise UserError(f"config.blocks={self.blocks}: give four positive numbers such as 3,4,6,3")
        self._validate_data()

    def _validate_data(self) -> None:
        data = self.data
        at_least(
            self,
            1,
            "data.window",
            "data.eval_clips",
            "data.eval_short_side",
            "data.eval_size",
            "data.stored_short_side",
        )
        fraction(self, "data.jitter")
        if data.modality == "rgb_difference" and self.frames < 2:
            raise UserError("config.num_frames=1: data.modality=rgb_difference needs two frames; raise it")
        if data.sampling == "dense" and data.window < self.frames:
            raise UserError(
                f"config.data.window={data.window}: must hold the {self.frames} frames of a clip; raise it"
            )
        if data.eval_crops not in (1, 3):
            raise UserError(f"config.data.eval_crops={data.eval_crops}: must be 1 or 3")
        if data.eval_size > data.eval_short_side:
            raise UserError(
                f"config.data.eval_size={data.eval_size}: must not exceed eval_short_side={data.eval_short_side}"
            )
        if not data.scales or not all(0 < scale <= 1 for scale in data.scales):
            raise UserError(f"config.data.scales={data.scales}: give numbers in (0, 1] such as 1,0.875")
