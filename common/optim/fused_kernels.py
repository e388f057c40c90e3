"""Updates a variable and its slots in place by TensorFlow's fused optimizer kernels.

Each kernel equals its rule in `common/optim/optimizers.py` except for rounding. It reads and writes every element once;
without a compiler that fuses them, the rule's separate operations move several times as many bytes. Only the
single-replica backend uses the kernels: with several replicas, XLA fuses the rule, or the weights are cut into parts,
which are not variables.
"""

import tensorflow as tf

from common.config.optimizer import Adam, LazyAdam, Optimizer, Sgd
from common.optim import optimizers
from common.optim.optimizers import WeightState, Whole


def has_kernel(config: Optimizer, segments: Whole) -> bool:
    """Whether `apply` can compute `optimizers.rule(config)` for a variable with these segments."""
    if type(config) not in (Sgd, Adam, LazyAdam):
        return False
    # For other variables than embeddings, LazyAdam equals Adam.
    skips_rows = config.skips_rows and segments.kind == "embedding"
    # `_gradient_descent` divides by 1 - rate * decay, which must not be small.
    decays_fast = config.base_learning_rate * config.weight_decay * segments.adapts > 0.1
    plain = isinstance(config, Sgd) and not config.momentum
    return not skips_rows and not (plain and decays_fast)


def apply(config: Optimizer, state: WeightState) -> tf.Operation:
    """Updates a variable and its slots and returns the operation; weight and slots of `state` are the variables."""
    weight, _, slots, rate, step, segments = state
    gradient = optimizers.raw_gradient(config, state)
    if isinstance(config, Sgd) and not config.momentum:
        return _gradient_descent(config.weight_decay * segments.adapts, weight, gradient, rate)
    gradient = optimizers.with_decay(config, state, gradient)
    dtype = rate.dtype
    if isinstance(config, Adam):
        # The kernel rounds 1 - beta alike in the averages and in their corrections, so the first steps are exact.
        count = tf.cast(step, tf.float64) + 1
        epsilon = (
            config.epsilon * tf.sqrt(1 - config.beta_2**count) if config.corrected_epsilon else config.epsilon
        )
        return tf.raw_ops.ResourceApplyAdam(
            var=weight.handle,
            m=slots["m"].handle,
            v=slots["v"].handle,
            beta1_power=tf.cast(config.beta_1**count, dtype),
            beta2_power=tf.cast(config.beta_2**count, dtype),
            lr=rate,
            beta1=tf.constant(config.beta_1, dtype),
            beta2=tf.constant(config.beta_2, dtype),
            epsilon=tf.cast(epsilon, dtype),
            grad=gradient,
        )
    if not config.scaled_momentum:
        # The kernel accumulates gradients, as scaled momentum does; unscaled momentum accumulates rate * gradient.
        gradient, rate = rate * gradient, tf.ones_like(rate)
    return tf.raw_ops.ResourceApplyMomentum(
        var=weight.handle,
        accum=slots["momentum"].handle,
        lr=rate,
        grad=gradient,
        momentum=tf.constant(config.momentum, dtype),
        use_nesterov=config.nesterov,
    )


def _gradient_descent(
    decay: float, weight: tf.Variable, gradient: tf.Tensor, rate: tf.Tensor
) -> tf.Operation:
    """Sets weight to weight - rate (gradient + decay weight), without a temporary of the weight's size.

    With decay, it uses a proximal step for the L2 norm: (weight - a gradient) / (1 + a decay). This gives the same
    result if a = rate / (1 - rate decay).
    """
    if not decay:
        return tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=rate, delta=gradient)
    return tf.raw_ops.ResourceApplyProximalGradientDescent(
        var=weight.handle,
        alpha=rate / (1 - rate * decay),
        l1=tf.zeros([], rate.dtype),
        l2=tf.constant(decay, rate.dtype),
        delta=gradient,
    )
