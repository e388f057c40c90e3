"""Builds one replica's training step and evaluation step."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from common.config.run_length import RunLength
from common.config.schema import RunConfig
from common.distributed.spatial.sharing import of_first_in_group
from common.layers import batch_norm
from common.optim import optimizers, schedules
from common.train import gradients
from common.train.state import State
from common.train.task import Batch, Task


def make_train_step(
    task: Task, state: State, run_length: RunLength, gradients_of: gradients.Gradients | None = None
) -> Callable[[Batch, tf.Tensor], tf.Tensor]:
    """Makes `train_step(batch, step)`: one weight update of a replica from its part of the batch.

    It returns this replica's part of the loss (a scalar; the loss is the sum of all replicas' parts). `gradients_of`
    computes loss and gradients, by default the whole batch's at once.
    """
    config, replicas = task.config, state.replicas
    gradients_of = gradients_of or gradients.make(task, state.model, replicas)
    rate = schedules.run_learning_rate(config, run_length)
    if replicas.narrow:
        rate = schedules.tabled(rate, run_length.train_steps)

    def train_step(batch: Batch, step: tf.Tensor) -> tf.Tensor:
        loss, grads = gradients_of(batch)
        grads = clipped_by_replica(grads, config, replicas.num_replicas)
        if not config.optimizer.one_warmup_delta:
            grads = optimizers.with_bias_factor(grads, state.kinds, config.optimizer.bias_gradient_factor)
        updates = state.update.apply(grads, rate(step), step)
        with tf.control_dependencies(updates):
            return tf.identity(loss)

    return train_step


def clipped_by_replica(
    gradients: Sequence[tf.Tensor], config: RunConfig, num_replicas: int
) -> list[tf.Tensor]:
    """Clips a replica's own gradient, and makes it that of a sum over examples if the configuration says so.

    Args:
      gradients: this replica's part of the gradient of the mean over all replicas' examples.
      config: `global_batch_size` and the optimizer's `clip_replica_norm` and `sums_examples` are read.
      num_replicas: number of replicas that share the global batch.
    """
    limit = config.optimizer.clip_replica_norm
    if config.optimizer.sums_examples:
        return optimizers.clipped([config.global_batch_size * g for g in gradients], limit)
    # The gradient of a replica's own mean is num_replicas times its part of the mean over all replicas.
    return optimizers.clipped(gradients, limit / num_replicas)


def make_eval_step(task: Task, state: State) -> Callable[[Batch], tuple[Mapping, Mapping]]:
    """Makes `eval_step(batch)`: a replica's (sums, arrays); each example counts once over all replicas."""

    def eval_step(batch: Batch) -> tuple[Mapping, Mapping]:
        outputs = task.evaluate(state.model, batch)
        sums = of_first_in_group(outputs.sums, task.config.partitions, state.replicas)
        return dict(sums), dict(outputs.arrays)

    return eval_step


def make_prepare_eval(state: State) -> Callable[[], tf.Tensor]:
    """Makes `prepare_eval()`, which every replica calls before an evaluation: it merges batch-norm groups' moments."""

    def prepare_eval() -> tf.Tensor:
        batch_norm.merge_moments(state.model, state.replicas)
        return tf.constant(0)

    return prepare_eval
