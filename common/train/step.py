"""Builds one replica's training step and evaluation step, and the state they work on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
import tf_keras

from common.config.clock import Clock
from common.config.schema import RunConfig
from common.distributed.block_update import BlockUpdate
from common.distributed.replicas.base import Replicas
from common.distributed.sharded_update import ShardedUpdate
from common.distributed.spatial.sharing import of_first_in_group
from common.distributed.weight_update import WeightUpdate, WholeUpdate
from common.layers import batch_norm
from common.layers.precision import Precision
from common.layers.variable_kinds import kind_of, outputs
from common.optim import optimizers, schedules
from common.train import gradients, loss_scale, names
from common.train.gradients import Gradients
from common.train.task import Batch, Task


class Network:
    """A model's variables, which are all that inference needs.

    Attributes:
      replicas: the backend.
      model: the network.
    """

    def __init__(self, task: Task, replicas: Replicas, precision: Precision):
        config = task.config
        self.replicas = replicas
        tf_keras.utils.set_random_seed(config.seed)
        with replicas.scope():
            self.model = task.build(replicas, precision)
            freeze(self.model, config.stages[: config.frozen_stages])


class State(Network):
    """Every variable of a run: the model's, the optimizer's slots, the step counter."""

    def __init__(self, task: Task, replicas: Replicas, precision: Precision):
        super().__init__(task, replicas, precision)
        config = task.config
        with replicas.scope():
            kinds = kind_of(self.model)
            weights = self.model.trainable_variables
            self.update = _update_of(config)(weights, kinds, replicas, config, outputs(self.model))
            self.kinds = [kinds[v.ref()] for v in self.model.trainable_variables]
            self.loss_scale = loss_scale.make(config, replicas)
        self.averages_weights = bool(config.optimizer.averaged_by)
        self.step = tf.Variable(0, dtype=replicas.counter, trainable=False, name="step")
        # Step of the last finished evaluation; a run that was stopped during an evaluation resumes with it.
        self.evaluated = tf.Variable(0, dtype=replicas.counter, trainable=False, name="evaluated")

    def variables(self) -> list[tf.Variable]:
        """Returns every variable that training changes, in a fixed order."""
        slots = [slot for slots in self.update.slots for slot in slots.values()]
        return [*self.model.variables, *slots, *self.loss_scale.variables, self.step, self.evaluated]

    def snapshot(self) -> list[list[tf.Tensor]]:
        """Returns copies of every variable on every local replica."""
        return [[tf.identity(x) for x in self.replicas.local_results(v)] for v in self.variables()]

    def restore(self, snapshot: list[list[tf.Tensor]]) -> None:
        """Writes a `snapshot` back."""
        for variable, values in zip(self.variables(), snapshot):
            for component, value in zip(self.replicas.local_results(variable), values):
                component.assign(value)


def _update_of(config: RunConfig) -> type[WeightUpdate]:
    if not config.communication.shard_weight_update:
        return WholeUpdate
    return BlockUpdate if config.communication.shard_in_blocks else ShardedUpdate


def freeze(model: tf_keras.Model, stages: Sequence[Sequence[str]]) -> None:
    """Freezes the layers of some stages: their weights do not change, and their batch norm uses its moments."""
    first = tuple(beginning for stage in stages for beginning in stage)
    if not first:
        return
    paths = names.of_layers(model)
    for layer in model._flatten_layers(include_self=False):
        if paths.get(id(layer), "").startswith(first):
            layer.trainable = False


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
      task, state, clock: of the run.
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
        loss, found = gradients_of(batch)
        # Each replica holds its part of a mean over all replicas, so its own gradient is num_replicas times that.
        found = optimizers.clipped(found, config.optimizer.clip_replica_norm / replicas.num_replicas)
        if not config.optimizer.one_warmup_delta:
            found = optimizers.with_bias_factor(found, state.kinds, config.optimizer.bias_gradient_factor)
        scale = state.loss_scale
        updates = state.update.apply(found, rate(step), scale.updates(step), scale.tell)
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
