"""Scales the loss so that small gradients do not vanish in fp16: by a fixed or a dynamic factor.

The dynamic scale follows "Mixed Precision Training" (Micikevicius et al., ICLR 2018, section 3.2), in the form of
tf_keras.mixed_precision.LossScaleOptimizer. If a gradient is not finite, the update is skipped and the scale halves.
After a configured number of finite updates in a row, the scale doubles. Finiteness is checked after the sum over the
replicas, so all replicas decide alike.
"""

from collections.abc import Sequence

import tensorflow as tf

from common.config.schema import RunConfig
from common.distributed.replicas.base import Replicas
from common.train import events

# tf_keras/mixed_precision/loss_scale_optimizer.py: the factor of a change, and the smallest scale.
FACTOR, SMALLEST = 2.0, 1.0


class FixedScale:
    """The same scale at every step.

    Attributes:
      variables: variables of its state; none.
      update: for `WeightUpdate.apply`; None, so that no update is skipped.
    """

    variables: tuple[tf.Variable, ...] = ()
    update = None

    def __init__(self, value: float):
        self._value = value

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        """Returns the loss times the scale."""
        return loss * self._value if self._value != 1 else loss

    def unscaled(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the gradients of a scaled loss, divided by the scale."""
        return [g / self._value for g in gradients] if self._value != 1 else list(gradients)

    def updates(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the number of updates before step `step`."""
        return step

    def report(self) -> dict[str, float]:
        """Outside `run`: returns what a log reports about the scale after a block; nothing for a fixed scale."""
        return {}

    def lost(self) -> str:
        """Outside `run`: returns why the run cannot go on, or ""."""
        return ""


class DynamicScale:
    """A scale that halves at each overflow, and doubles after `growth_steps` finite updates in a row.

    Attributes:
      variables: the scale; the number of finite updates since it last changed (-1 after an overflow at the smallest
        scale); the total number of skipped updates. They are equal on every replica, and part of a checkpoint.
    """

    def __init__(self, initial: float, growth_steps: int, replicas: Replicas):
        """Creates the variables; called in the replicas' scope."""
        self._growth_steps, self._replicas = growth_steps, replicas
        self._scale = tf.Variable(initial, dtype=tf.float32, trainable=False, name="loss_scale")
        self._finite = tf.Variable(0, dtype=replicas.counter, trainable=False, name="finite_updates")
        self._skipped = tf.Variable(0, dtype=replicas.counter, trainable=False, name="skipped_updates")
        self.variables = (self._scale, self._finite, self._skipped)

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        """Returns the loss times the scale."""
        return loss * tf.cast(self._scale.read_value(), loss.dtype)

    def unscaled(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the gradients of a scaled loss, divided by the scale."""
        scale = self._scale.read_value()
        return [g / tf.cast(scale, g.dtype) for g in gradients]

    def updates(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the number of updates before step `step`, for Adam's corrections."""
        return step - tf.cast(self._skipped.read_value(), step.dtype)

    def update(self, finite: tf.Tensor) -> list[tf.Tensor]:
        """Inside `run`: adapts the scale after an update; the update was skipped if not `finite`.

        Returns the written tensors.
        """
        scale = self._scale.read_value()
        count = tf.maximum(self._finite.read_value(), 0) + 1
        grows = count >= self._growth_steps
        # A scale beyond fp32's range would never return to it.
        doubled = tf.where(tf.math.is_finite(scale * FACTOR), scale * FACTOR, scale)
        after = tf.where(finite, tf.where(grows, doubled, scale), tf.maximum(scale / FACTOR, SMALLEST))
        lost = tf.cast(~finite & (scale <= SMALLEST), count.dtype)
        values = [
            after,
            tf.where(finite & ~grows, count, -lost),
            self._skipped.read_value() + tf.cast(~finite, count.dtype),
        ]
        self._replicas.assign(list(self.variables), values)
        return values

    def report(self) -> dict[str, float]:
        """Outside `run`: returns what a log reports about the scale after a block."""
        return {"loss_scale": self._value(self._scale), "skipped_updates": int(self._value(self._skipped))}

    def lost(self) -> str:
        """Outside `run`: returns why the run cannot go on (gradients overflow even at the smallest scale), or ""."""
        if self._value(self._finite) >= 0:
            return ""
        return f"{events.NOT_FINITE[1]} at a loss scale of 1 either; lower the learning rate or use bf16"

    def _value(self, variable: tf.Variable) -> float:
        return float(self._replicas.local_results(variable)[0])


LossScale = FixedScale | DynamicScale


def make(config: RunConfig, replicas: Replicas) -> LossScale:
    """Returns a configuration's loss scale; called in the replicas' scope."""
    if config.loss_scale_growth_steps:
        return DynamicScale(config.loss_scale, config.loss_scale_growth_steps, replicas)
    return FixedScale(config.loss_scale)
