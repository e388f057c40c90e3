"""The optimizers for which TensorFlow has a kernel that updates a variable and its slots where they are.

Each equals its rule in `common/optimizers.py` but for rounding, and reads and writes every element once; the rule's
operations, one after another, move several times as many bytes where no compiler fuses them. For a single replica:
with many, XLA fuses the rule, or its weights are cut into parts, which are no variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tensorflow as tf

from common.config import Optimizer
from common.optimizers import Whole

# (config, weight, gradient with its decay, slots, rate, step) -> what updates the weight and its slots.
Kernel = Callable[
    [Optimizer, tf.Variable, tf.Tensor, Mapping[str, tf.Variable], tf.Tensor, tf.Tensor], tf.Operation
]


def kernel(config: Optimizer, segments: Whole) -> Kernel | None:
    """The kernel that does what `optimizers.rule(config)` does to a variable, if there is one."""
    if config.name == "sgd":
        return _momentum if config.momentum else _plain
    # LazyAdam leaves out rows of embeddings; for other variables it is Adam.
    lazy = config.name == "lazy_adam" and segments.kind == "embedding"
    return _adam if config.name in ("adam", "lazy_adam") and not lazy else None


def _plain(
    config: Optimizer,
    weight: tf.Variable,
    gradient: tf.Tensor,
    slots: Mapping[str, tf.Variable],
    rate: tf.Tensor,
    step: tf.Tensor,
) -> tf.Operation:
    del config, slots, step
    return tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=rate, delta=gradient)


def _momentum(
    config: Optimizer,
    weight: tf.Variable,
    gradient: tf.Tensor,
    slots: Mapping[str, tf.Variable],
    rate: tf.Tensor,
    step: tf.Tensor,
) -> tf.Operation:
    """The kernel keeps sums of gradients, as scaled momentum does; the other gets their product with the rate."""
    del step
    if not config.scaled_momentum:
        gradient, rate = rate * gradient, tf.ones_like(rate)
    return tf.raw_ops.ResourceApplyMomentum(
        var=weight.handle,
        accum=slots["momentum"].handle,
        lr=rate,
        grad=gradient,
        momentum=tf.constant(config.momentum, rate.dtype),
        use_nesterov=config.nesterov,
    )


def _adam(
    config: Optimizer,
    weight: tf.Variable,
    gradient: tf.Tensor,
    slots: Mapping[str, tf.Variable],
    rate: tf.Tensor,
    step: tf.Tensor,
) -> tf.Operation:
    """The kernel's 1 - beta is as inexact in the averages as in their corrections: the first steps are exact."""
    count, dtype = tf.cast(step, tf.float64) + 1, rate.dtype
    return tf.raw_ops.ResourceApplyAdam(
        var=weight.handle,
        m=slots["m"].handle,
        v=slots["v"].handle,
        beta1_power=tf.cast(config.beta_1**count, dtype),
        beta2_power=tf.cast(config.beta_2**count, dtype),
        lr=rate,
        beta1=tf.constant(config.beta_1, dtype),
        beta2=tf.constant(config.beta_2, dtype),
        epsilon=tf.constant(config.epsilon, dtype),
        grad=gradient,
    )
