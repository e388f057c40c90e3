"""Builds one replica's training step and evaluation step."""

from collections.abc import Callable, Mapping

import tensorflow as tf

from common.config.clock import Clock
from common.distributed.spatial.sharing import of_first_in_group
from common.layers import batch_norm
from common.optim import optimizers, schedules
from common.train import gradients
from common.train.gradients import Gradients
from common.train.state import State
from common.train.task import Batch, Task


def make_train_step(
    task: Task,
    state: State,
    clock: Clock,
    timed: Callable[[Gradients], Gradients] = lambda gradients: gradients,
    compiled: bool = False,
    segments: int = 1,
) -> Callable[[Batch, tf.Tensor], tf.Tensor]:
    """Makes `train_step(batch, step)`: one weight update of a replica from its part of the batch.

    Args:
      timed: wraps the function that computes the gradients, as StepTiming.of_gradients does.
      compiled: whether the parts between the exchanges are XLA programs.
      segments: maximum number of compiled programs for the forward and backward pass.

    Returns:
      A function that returns this replica's part of the loss (a scalar; the loss is the sum of all replicas' parts).
    """
    config, replicas = task.config, state.replicas
    rate = schedules.learning_rate(
        config.schedule, config.optimizer.base_learning_rate, clock.steps_per_epoch, clock.train_steps
    )
    if replicas.narrow:
        rate = schedules.tabled(rate, clock.train_steps)
    if compiled:
        state.update.compile()
    gradients_of = timed(gradients.make(task, state.model, replicas, state.loss_scale, compiled, segments))

    def train_step(batch: Batch, step: tf.Tensor) -> tf.Tensor:
        loss, own = gradients_of(batch)
        # Each replica holds its part of a mean over all replicas, so its own gradient is num_replicas times that.
        own = optimizers.clipped(own, config.optimizer.clip_replica_norm / replicas.num_replicas)
        if not config.optimizer.one_warmup_delta:
            own = optimizers.with_bias_factor(own, state.kinds, config.optimizer.bias_gradient_factor)
        scale = state.loss_scale
        updates = state.update.apply(own, rate(step), scale.updates(step), scale.tell)
        with tf.control_dependencies(updates):
            return tf.identity(loss)

    return train_step


def make_eval_step(task: Task, state: State) -> Callable[[Batch], tuple[Mapping, Mapping]]:
    """Makes `eval_step(batch)`: a replica's (sums, arrays); each example counts once over all replicas."""

    def eval_step(batch: Batch) -> tuple[Mapping, Mapping]:
        outputs = task.evaluate(state.model, batch)
        sums = of_first_in_group(outputs.sums, task.config.partitions, state.replicas)
        return dict(sums), dict(outputs.arrays)

    return eval_step


def make_prepare_eval(state: State) -> Callable[[], tf.Tensor]:
    """Makes `prepare_eval()`, which every replica calls before an evaluation.

    It merges all batch-norm groups' moments. If the optimizer averages the weights, it puts the averages in their place
    until `make_finish_eval`'s function has run.
    """

    def prepare_eval() -> tf.Tensor:
        batch_norm.merge_moments(state.model, state.replicas)
        with tf.control_dependencies(state.update.swap(to_average=True) if state.averages_weights else []):
            return tf.constant(0)

    return prepare_eval


def make_finish_eval(state: State) -> Callable[[], tf.Tensor] | None:
    """Makes `finish_eval()`, which every replica calls after an evaluation; None if there is nothing to do."""

    def finish_eval() -> tf.Tensor:
        with tf.control_dependencies(state.update.swap(to_average=False)):
            return tf.constant(0)

    return finish_eval if state.averages_weights else None
