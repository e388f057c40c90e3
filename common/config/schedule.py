"""Defines the configuration of a learning rate: one frozen dataclass for each kind of schedule. TensorFlow-free.

A kind's class has the fields that the kind reads; common/optim/schedules.py has its curve.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from common.config.closed_fields import added_field
from common.config.variants import Variant, variant_name
from common.errors import UserError, near

WARMUPS = ("linear", "exponential")


@dataclasses.dataclass(frozen=True)
class Schedule(Variant):
    """Learning rate over steps: a warmup to the peak, then a curve.

    Attributes:
      kind: "constant", "poly", "step", "cosine", "noam" or "gnmt", as far as the benchmark takes it; or
        MODULE:FUNCTION, a schedule of your own (docs/extend.md). Each kind has fields of its own:
        `--help --config.schedule.kind=KIND` lists them.
      warmup_epochs: length of the warmup, in epochs.
      warmup_steps: length of the warmup in steps, to match published code that rounds its epochs differently; 0 derives
        it from `warmup_epochs`.
      first_step: the schedule's step at the first update; published code that counts before it updates has 1 or 2.
    """

    kind: str = variant_name("")
    warmup_epochs: float = 5.0
    warmup_steps: float = 0.0
    first_step: int = added_field(0)

    path: ClassVar[str] = "schedule.kind"
    # The fields besides the warmup's that count epochs, those that count steps, and those that are rates.
    in_epochs: ClassVar[tuple[str, ...]] = ()
    in_steps: ClassVar[tuple[str, ...]] = ()
    rates: ClassVar[tuple[str, ...]] = ()

    def warmup_length(self, steps_per_epoch: float) -> float:
        """Length of the warmup in steps, not rounded."""
        return self.warmup_steps or self.warmup_epochs * steps_per_epoch

    def logged_warmup_epochs(self, steps_per_epoch: float) -> float:
        """Length of the warmup in epochs; `warmup_steps` takes precedence over `warmup_epochs`."""
        return self.warmup_steps / steps_per_epoch if self.warmup_steps else self.warmup_epochs

    @property
    def warmup_start(self) -> float:
        """The rate at the start of a linear warmup."""
        return 0.0

    @property
    def warmup_is_exponential(self) -> bool:
        """Whether the warmup rises from a hundredth of the peak (docs/sources.md, mlperf 1.5), and is not linear."""
        return False

    def check(self, steps_per_epoch: float) -> None:
        """Raises UserError for a value that the kind cannot use; `steps_per_epoch` is examples / batch, not rounded."""


@dataclasses.dataclass(frozen=True)
class Constant(Schedule):
    """The peak."""

    kind: str = variant_name("constant")


@dataclasses.dataclass(frozen=True)
class _FromARate(Schedule):
    """A schedule whose warmup may start above 0.

    Attributes:
      initial_learning_rate: learning rate at the start of the warmup.
    """

    initial_learning_rate: float = 0.0

    rates: ClassVar[tuple[str, ...]] = ("initial_learning_rate",)

    @property
    def warmup_start(self) -> float:
        return self.initial_learning_rate


@dataclasses.dataclass(frozen=True)
class _Decay(Schedule):
    """A smooth decay to a final rate.

    Attributes:
      train_epochs: end of the decay, in epochs; 0 means the end of training.
      end_learning_rate: final learning rate.
    """

    train_epochs: float = 0.0
    end_learning_rate: float = 1e-4

    in_epochs: ClassVar[tuple[str, ...]] = ("train_epochs",)

    def decay_start(self, steps_per_epoch: float) -> float:
        """Where the decay starts: `warmup_steps`, else the warmup epochs rounded down.

        The rounding is `warm * N // B` in G7 resnet-research-TF-tpu-v3-8192/lars_util.py.
        """
        # Rounded to six decimals first, so that 28.999999999999996 counts as 29 steps.
        return self.warmup_steps or math.floor(round(self.warmup_epochs * steps_per_epoch, 6))

    def decay_end(self, steps_per_epoch: float, train_steps: int) -> int:
        """The step at which the decay ends: at `train_epochs`, or at the end of training."""
        return round(self.train_epochs * steps_per_epoch) or train_steps

    def decay_steps(self, steps_per_epoch: float, train_steps: int) -> float:
        """Steps of the decay: T - Sw + 1 (lars_util.py as above); T is its end and Sw its start, in steps."""
        return max(self.decay_end(steps_per_epoch, train_steps) - self.decay_start(steps_per_epoch) + 1, 1)


@dataclasses.dataclass(frozen=True)
class Polynomial(_FromARate, _Decay):
    """A decay by a power of the part of the steps that is left.

    Attributes:
      power: exponent of the decay.
      decay_over_whole_run: whether it decays as (1 - i/I)^p over the whole run, as in LEGW, not over the steps after
        the warmup.
    """

    kind: str = variant_name("poly")
    power: float = 2.0
    decay_over_whole_run: bool = False

    def decay_start(self, steps_per_epoch: float) -> float:
        """As in `_Decay`; 0 over the whole run."""
        return 0 if self.decay_over_whole_run else super().decay_start(steps_per_epoch)

    def decay_steps(self, steps_per_epoch: float, train_steps: int) -> float:
        """As in `_Decay`; T over the whole run."""
        if self.decay_over_whole_run:
            return max(self.decay_end(steps_per_epoch, train_steps), 1)
        return super().decay_steps(steps_per_epoch, train_steps)


@dataclasses.dataclass(frozen=True)
class Step(_FromARate):
    """Drops at epochs.

    Attributes:
      boundaries: epochs at which the rate is multiplied by `factor`.
      factor: factor of a drop, or of a decay of "gnmt".
    """

    kind: str = variant_name("step")
    boundaries: tuple[float, ...] = ()
    factor: float = 0.1

    in_epochs: ClassVar[tuple[str, ...]] = ("boundaries",)

    def check(self, steps_per_epoch: float) -> None:
        if not self.boundaries:
            raise UserError("config.schedule.boundaries is empty: kind 'step' needs the epochs of its drops")
        if not all(0 <= epoch < math.inf for epoch in self.boundaries):
            raise self.refused("boundaries", "epochs must be at least 0")


@dataclasses.dataclass(frozen=True)
class Cosine(_Decay):
    """Half a cosine, from the end of the warmup."""

    kind: str = variant_name("cosine")


@dataclasses.dataclass(frozen=True)
class Noam(Schedule):
    """The inverse root of the step, as in "Attention Is All You Need".

    Attributes:
      width: model width; the rate after the warmup is base_learning_rate * (width * max(step, warmup))^-1/2
        (docs/sources.md, mlperf 1.4).
    """

    kind: str = variant_name("noam")
    width: int = 1024

    def check(self, steps_per_epoch: float) -> None:
        if self.width < 1:
            raise self.refused("width", "must be at least 1")
        if self.warmup_length(steps_per_epoch) <= 0:
            raise self.refused("warmup_steps", "kind 'noam' starts at infinity without a warmup")


@dataclasses.dataclass(frozen=True)
class Gnmt(Schedule):
    """A constant rate, then a few decays at even intervals.

    Attributes:
      warmup_curve: "linear", or "exponential" from a hundredth of the peak (docs/sources.md, mlperf 1.5).
      factor: factor of a decay.
      decay_start_step, decay_interval: the rate is multiplied by `factor` every `decay_interval` steps, starting at
        step `decay_start_step`, at most `max_decays` times.
      decay_at_start: whether the first decay is at `decay_start_step`, as in the reference, or one interval later, as
        in Google's code (docs/sources.md, mlperf 0.6).
    """

    kind: str = variant_name("gnmt")
    warmup_curve: str = "linear"
    factor: float = 0.1
    decay_start_step: int = 0
    decay_interval: int = 0
    decay_at_start: bool = False

    # Every source decays four times.
    max_decays: ClassVar[int] = 4
    in_steps: ClassVar[tuple[str, ...]] = ("decay_start_step", "decay_interval")

    @property
    def warmup_is_exponential(self) -> bool:
        return self.warmup_curve == "exponential"

    def check_warmup(self) -> None:
        """Raises UserError if no warmup has this curve."""
        if self.warmup_curve not in WARMUPS:
            listed = f"unknown{near(self.warmup_curve, WARMUPS)}; known: {', '.join(WARMUPS)}"
            raise self.refused("warmup_curve", listed)

    def check(self, steps_per_epoch: float) -> None:
        self.check_warmup()
        if self.decay_interval < 1:
            raise self.refused("decay_interval", "kind 'gnmt' needs a positive number of steps")


@dataclasses.dataclass(frozen=True)
class OwnSchedule(Polynomial, Step, Cosine, Noam, Gnmt):
    """A schedule of your own, MODULE:FUNCTION, which may read every field."""

    kind: str = ""
    in_epochs: ClassVar[tuple[str, ...]] = ("train_epochs", "boundaries")
    in_steps: ClassVar[tuple[str, ...]] = Gnmt.in_steps
    rates: ClassVar[tuple[str, ...]] = _FromARate.rates
    is_plugin: ClassVar[bool] = True

    def check(self, steps_per_epoch: float) -> None:
        """Raises UserError for an unknown warmup; the function alone knows what else it reads."""
        self.check_warmup()
