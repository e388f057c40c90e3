"""Defines the fields of a learning-rate schedule, and its lengths in steps. TensorFlow-free."""

import dataclasses
import math

from common.config.closed_fields import later_field


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Learning rate over steps: a warmup to the peak, then `kind` until `end_learning_rate`.

    Attributes:
      kind: "constant", "poly", "step", "cosine", "noam", "gnmt"; or MODULE:FUNCTION, a schedule of your own
        (docs/extend.md).
      warmup_epochs: length of the linear warmup, in epochs.
      warmup_steps: length of the warmup in steps, to match published code that rounds its epochs differently; 0 derives
        it from `warmup_epochs`.
      initial_learning_rate: learning rate at the start of the warmup.
      train_epochs: end of "poly" and "cosine", in epochs; 0 means the end of training.
      power: exponent of "poly".
      end_learning_rate: final learning rate of "poly" and "cosine".
      boundaries: epochs at which "step" multiplies by `factor`.
      drops_round_down: whether the step of a drop is rounded down, as int() does in Google's SSD; otherwise the first
        step at or after it has the lower rate.
      factor: decay factor of "step" and "gnmt".
      decay_over_whole_run: whether "poly" decays as (1 - i/I)^p over the whole run, as in LEGW, not over the steps
        after the warmup.
      width: model width for "noam"; its rate after the warmup is base_learning_rate * (width * max(step, warmup))^-1/2
        (docs/sources.md, mlperf 1.4).
      warmup_curve: "linear", or "exponential" from a hundredth of the peak (GNMT; docs/sources.md, mlperf 1.5).
      decay_start_step, decay_interval, max_decays: "gnmt" multiplies by `factor` every `decay_interval` steps, starting
        at step `decay_start_step`, at most `max_decays` times.
      first_step: the schedule's step at the first update; published code that counts before it updates has 1 or 2.
      decay_at_start: whether the first decay of "gnmt" is at `decay_start_step`, as in the reference, or one interval
        later, as in Google's code (docs/sources.md, mlperf 0.6).
    """

    kind: str = "poly"
    warmup_epochs: float = 5.0
    warmup_steps: float = 0.0
    initial_learning_rate: float = 0.0
    train_epochs: float = 0.0
    power: float = 2.0
    end_learning_rate: float = 1e-4
    boundaries: tuple[float, ...] = ()
    factor: float = 0.1
    decay_over_whole_run: bool = False
    width: int = 1024
    warmup_curve: str = "linear"
    decay_start_step: int = 0
    decay_interval: int = 0
    max_decays: int = 4
    decay_at_start: bool = False
    first_step: int = later_field(0)
    drops_round_down: bool = later_field(False)

    def warmup_length(self, steps_per_epoch: float) -> float:
        """Length of the warmup in steps, not rounded."""
        return self.warmup_steps or self.warmup_epochs * steps_per_epoch

    def logged_warmup_epochs(self, steps_per_epoch: float) -> float:
        """Length of the warmup in epochs; `warmup_steps` takes precedence over `warmup_epochs`."""
        return self.warmup_steps / steps_per_epoch if self.warmup_steps else self.warmup_epochs

    def decay_start(self, steps_per_epoch: float) -> float:
        """The step at which "poly" and "cosine" start: the warmup rounded down; 0 with `decay_over_whole_run`.

        The rounding is `warm * N // B` in G7 resnet-research-TF-tpu-v3-8192/lars_util.py.
        """
        if self.decay_over_whole_run:
            return 0
        # Rounded to six decimals first, so that 28.999999999999996 counts as 29 steps.
        return self.warmup_steps or math.floor(round(self.warmup_epochs * steps_per_epoch, 6))

    def decay_end(self, steps_per_epoch: float, train_steps: int) -> int:
        """The step at which "poly" and "cosine" end: at `train_epochs`, or at the end of training."""
        return round(self.train_epochs * steps_per_epoch) or train_steps

    def decay_steps(self, steps_per_epoch: float, train_steps: int) -> float:
        """Steps over which "poly" and "cosine" decay: T - Sw + 1 (lars_util.py as above), or T over the whole run.

        T is the decay's end and Sw its start, in steps.
        """
        end = self.decay_end(steps_per_epoch, train_steps)
        return max(end - self.decay_start(steps_per_epoch) + (0 if self.decay_over_whole_run else 1), 1)
