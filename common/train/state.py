"""Holds the variables of a run: the model's, the optimizer's slots, the step counter."""

from collections.abc import Sequence

import tensorflow as tf
import tf_keras

from common.distributed.block_update import BlockUpdate
from common.distributed.fully_sharded import ShardedWeightsUpdate, is_sharded
from common.distributed.replicas.base import Replicas
from common.distributed.sharded_update import ShardedUpdate
from common.distributed.weight_update import WholeUpdate
from common.layers.precision import Precision
from common.layers.variable_kinds import kind_of
from common.train import names
from common.train.task import Task

_UPDATES = {"whole": WholeUpdate, "sharded": ShardedUpdate, "blocks": BlockUpdate}


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
        self._in_parts = bool(config.state_bytes)
        with replicas.scope(self._in_parts):
            # AutoGraph would rewrite the layers' code, which no step needs: a third of the time to build.
            self.model = tf.autograph.experimental.do_not_convert(task.build)(replicas, precision)
            freeze(self.model, config.stages[: config.frozen_stages])


class State(Network):
    """Every variable of a run: the model's, the optimizer's slots, the step counter."""

    def __init__(self, task: Task, replicas: Replicas, precision: Precision):
        super().__init__(task, replicas, precision)
        config = task.config
        with replicas.scope(self._in_parts):
            kinds = kind_of(self.model)
            weights = self.model.trainable_variables
            update = _UPDATES[config.communication.weight_update]
            update = ShardedWeightsUpdate if any(map(is_sharded, weights)) else update
            self.update = update(weights, kinds, replicas, config)
            self.kinds = [kinds[v.ref()] for v in self.model.trainable_variables]
        self.step = tf.Variable(0, dtype=replicas.counter, trainable=False, name="step")
        # Step of the last finished evaluation; a run that was stopped during an evaluation resumes with it.
        self.evaluated = tf.Variable(0, dtype=replicas.counter, trainable=False, name="evaluated")

    def variables(self) -> list[tf.Variable]:
        """Returns every variable that training changes, in a fixed order."""
        slots = [slot for slots in self.update.slots for slot in slots.values()]
        return [*self.model.variables, *slots, self.step, self.evaluated]

    def snapshot(self, variables: Sequence[tf.Variable] | None = None) -> list[list[tf.Tensor]]:
        """Returns copies of variables, by default all, on every local replica; one copy of a trained weight."""
        same = {v.ref() for v in self.model.trainable_variables if not is_sharded(v)}
        copies = []
        for v in self.variables() if variables is None else variables:
            components = self.replicas.local_results(v)
            copies.append([tf.identity(x) for x in (components[:1] if v.ref() in same else components)])
        return copies

    def restore(
        self, snapshot: list[list[tf.Tensor]], variables: Sequence[tf.Variable] | None = None
    ) -> None:
        """Writes a `snapshot` of the same variables back."""
        variables = self.variables() if variables is None else variables
        for variable, values in zip(variables, snapshot, strict=True):
            components = self.replicas.local_results(variable)
            if len(values) == 1:
                values = values * len(components)
            for component, value in zip(components, values, strict=True):
                component.assign(value)


def freeze(model: tf_keras.Model, stages: Sequence[Sequence[str]]) -> None:
    """Freezes the layers of some stages: their weights do not change, and their batch norm uses its moments."""
    first = tuple(beginning for stage in stages for beginning in stage)
    if not first:
        return
    for path, layer in names.layers(model):
        if path.startswith(first):
            layer.trainable = False
