"""Holds the variables of a run: the model's, the optimizer's slots, the step counter."""

from collections.abc import Sequence

import tensorflow as tf
import tf_keras

from common.distributed.block_update import BlockUpdate
from common.distributed.replicas.base import Replicas
from common.distributed.sharded_update import ShardedUpdate
from common.distributed.weight_update import WholeUpdate
from common.layers.precision import Precision
from common.layers.variable_kinds import kind_of, outputs
from common.train import loss_scale, names
from common.train.task import Task


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
            # AutoGraph would rewrite the layers' code, which no step needs: a third of the time to build.
            self.model = tf.autograph.experimental.do_not_convert(task.build)(replicas, precision)
            freeze(self.model, config.stages[: config.frozen_stages])


class State(Network):
    """Every variable of a run: the model's, the optimizer's slots, the step counter."""

    def __init__(self, task: Task, replicas: Replicas, precision: Precision):
        super().__init__(task, replicas, precision)
        config = task.config
        with replicas.scope():
            kinds = kind_of(self.model)
            weights = self.model.trainable_variables
            update = BlockUpdate if config.communication.shard_in_blocks else ShardedUpdate
            update = update if config.communication.shard_weight_update else WholeUpdate
            self.update = update(weights, kinds, replicas, config, outputs(self.model))
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


def freeze(model: tf_keras.Model, stages: Sequence[Sequence[str]]) -> None:
    """Freezes the layers of some stages: their weights do not change, and their batch norm uses its moments."""
    first = tuple(beginning for stage in stages for beginning in stage)
    if not first:
        return
    paths = names.of_layers(model)
    for layer in model._flatten_layers(include_self=False):
        if paths.get(id(layer), "").startswith(first):
            layer.trainable = False
