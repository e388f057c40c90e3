"""Learning rates as functions of the step: curves and their combination with a warmup.

A curve maps a float64 step to a float64 rate. A run's first update uses the rate at step `first_step`, 0 by default.
Sources: mlcommons/training_results_v0.7 resnet-research-TF-tpu-v3-8192/lars_util.py for the warmup and the
polynomial decay; "Large-Batch Training for LSTM and Beyond", section 3.2, for its decay over the whole run.
"""

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from common.config import plugins
from common.config.run_length import RunLength
from common.config.schedule import Cosine, Gnmt, Noam, OwnSchedule, Polynomial, Schedule, Step
from common.config.schema import RunConfig
from common.config.validation import check_schedule

Curve = Callable[[tf.Tensor], tf.Tensor]
_SHORTEST = 10  # Base-2 logarithm of the minimum table length: TensorFlow embeds shorter ones in the program.


def constant(rate: float) -> Curve:
    """The same rate at every step."""
    return lambda step: tf.fill(tf.shape(step), tf.constant(rate, step.dtype))


def polynomial(peak: float, end: float, power: float, start: float, steps: float) -> Curve:
    """end + (peak - end) * (1 - t)^power; t rises from 0 at `start` to 1 at `start + steps`, then stays 1."""
    return lambda step: end + (peak - end) * (1 - _progress(step, start, steps)) ** power


def cosine(peak: float, end: float, start: float, steps: float) -> Curve:
    """end + (peak - end) * (1 + cos(pi t)) / 2, with the t of `polynomial`."""
    return lambda step: end + (peak - end) * (1 + tf.cos(math.pi * _progress(step, start, steps))) / 2


def piecewise(peak: float, boundaries: Sequence[float], factor: float) -> Curve:
    """Multiplies `peak` by `factor` once for each boundary (in steps) that the step has reached."""

    def curve(step: tf.Tensor) -> tf.Tensor:
        reached = [tf.cast(step >= boundary, step.dtype) for boundary in boundaries]
        return peak * tf.pow(tf.constant(factor, step.dtype), tf.add_n([tf.zeros_like(step), *reached]))

    return curve


def inverse_root(scale: float, width: int) -> Curve:
    """scale * (width * step)^-1/2: section 5.3 of "Attention Is All You Need", after the warmup."""
    return lambda step: scale * tf.math.rsqrt(width * tf.maximum(step, 1))


def halvings(peak: float, factor: float, start: int, interval: int, most: int, at_start: bool) -> Curve:
    """Multiplies `peak` by `factor` once for each whole `interval` since `start`, at most `most` times.

    With `at_start`, the first decay is at `start`, as in the GNMT reference: (step - start) // interval + 1. Without
    it, the first decay is an interval later, as in Google's code: floor((step - start) / interval) (docs/sources.md,
    mlperf 0.6).
    """

    def curve(step: tf.Tensor) -> tf.Tensor:
        # Half a step more, because a compiler divides by a constant as it multiplies by the rounded reciprocal.
        done = tf.floor((step - start + 0.5) / interval) + (1 if at_start else 0)
        return peak * tf.pow(tf.constant(factor, step.dtype), tf.clip_by_value(done, 0, most))

    return curve


def exponential_warmup(curve: Curve, peak: float, length: float) -> Curve:
    """peak * 0.01^((length - step) / length) before step `length`, then `curve` (GNMT; docs/sources.md, mlperf 1.5)."""
    if length <= 0:
        return curve
    return lambda step: tf.where(
        step < length, peak * tf.pow(tf.constant(0.01, step.dtype), 1 - step / length), curve(step)
    )


def warmup(curve: Curve, peak: float, length: float, initial: float = 0.0) -> Curve:
    """Rises linearly from `initial` at step 0 to `peak` at step `length`, both included; then follows `curve`."""
    if length <= 0:
        return curve
    return lambda step: tf.where(step <= length, initial + (peak - initial) * step / length, curve(step))


def _progress(step: tf.Tensor, start: float, steps: float) -> tf.Tensor:
    return tf.clip_by_value((step - start) / steps, 0, 1)


def run_learning_rate(config: RunConfig, run_length: RunLength) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the learning rate of a run as a function of the step; see `learning_rate`."""
    peak, lengths = config.optimizer.base_learning_rate, (run_length.steps_per_epoch, run_length.train_steps)
    return learning_rate(config.schedule, peak, *lengths, config.drops_round_down)


def learning_rate(
    schedule: Schedule,
    base_learning_rate: float,
    steps_per_epoch: float,
    train_steps: int,
    drops_round_down: bool = False,
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a schedule's learning rate as a function of the step.

    Args:
      base_learning_rate: the peak.
      steps_per_epoch: examples / batch, not rounded.
      train_steps: steps of the run.
      drops_round_down: whether the steps of drops are rounded down.

    Returns:
      A function of the step (an integer tensor of any shape) that gives the rate (float32, the same shape).

    Raises UserError: see check_schedule; or a user function is not found or does not return a curve.
    """
    check_schedule(schedule, steps_per_epoch)
    curve = _curve(schedule, base_learning_rate, steps_per_epoch, train_steps, drops_round_down)
    curve = _warmed(schedule, curve, base_learning_rate, schedule.warmup_length(steps_per_epoch))

    def rate(step: tf.Tensor) -> tf.Tensor:
        # float64, because float32 would lose the small differences 1 - t at the end of a long run.
        return tf.cast(curve(tf.cast(step, tf.float64) + schedule.first_step), tf.float32)

    return rate


def tabled(rate: Callable[[tf.Tensor], tf.Tensor], train_steps: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns `rate` as a table lookup for steps below `train_steps`, because TPUs emulate float64.

    The table's length is a power of two, so that runs of similar lengths share one compiled program.
    """
    with tf.init_scope():
        size = 1 << max(_SHORTEST, math.ceil(math.log2(train_steps)))
        table = rate(tf.minimum(tf.range(size), train_steps - 1))
    return lambda step: tf.gather(table, step)


def _curve(
    schedule: Schedule, peak: float, steps_per_epoch: float, train_steps: int, drops_round_down: bool
) -> Curve:
    """Returns the curve after the warmup; the arguments are those of `learning_rate`."""
    match schedule:
        case OwnSchedule(kind=kind):
            curve = plugins.call("schedule.kind", kind, schedule, peak, steps_per_epoch, train_steps)
            if not callable(curve):
                raise schedule.refused("kind", f"returned {type(curve).__name__}, not a curve")
            return curve
        case Polynomial(end_learning_rate=end, power=power):
            start = schedule.decay_start(steps_per_epoch)
            return polynomial(peak, end, power, start, schedule.decay_steps(steps_per_epoch, train_steps))
        case Cosine(end_learning_rate=end):
            start = schedule.decay_start(steps_per_epoch)
            return cosine(peak, end, start, schedule.decay_steps(steps_per_epoch, train_steps))
        case Step():
            # Rounded to six decimals, so that 28.999999999999996 counts as 29 steps.
            boundaries = [round(epoch * steps_per_epoch, 6) for epoch in schedule.boundaries]
            if drops_round_down:
                boundaries = [math.floor(boundary) for boundary in boundaries]
            # Drops are at epochs, which do not depend on how code counts its steps.
            shifted = [boundary + schedule.first_step for boundary in boundaries]
            return piecewise(peak, shifted, schedule.factor)
        case Noam(width=width):
            return inverse_root(peak, width)
        case Gnmt(factor=factor, decay_start_step=start, decay_interval=interval, max_decays=most):
            return halvings(peak, factor, start, interval, most, schedule.decay_at_start)
        case _:
            return constant(peak)


def _warmed(schedule: Schedule, curve: Curve, peak: float, length: float) -> Curve:
    if isinstance(schedule, Noam) and not schedule.is_plugin:
        peak /= math.sqrt(schedule.width * length)
    if schedule.warmup_is_exponential:
        return exponential_warmup(curve, peak, length)
    return warmup(curve, peak, length, schedule.warmup_start)
