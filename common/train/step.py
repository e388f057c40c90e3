"""Builds one replica's training step and evaluation step, and the state they work on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
import tf_keras

from common.config.clock import Clock
from common.config.schema import RunConfig
from common.distributed.replicas.base import Replicas
from common.distributed.sharded_update import ShardedUpdate
from common.distributed.spatial.sharing import of_first_in_group
from common.distributed.weight_update import WholeUpdate
from common.errors import UserError
from common.layers import batch_norm, dropout
from common.layers.precision import Precision
from common.layers.variable_kinds import kind_of
from common.optim import optimizers, schedules
from common.train import loss_scale, names
from common.train.task import Batch, Over, Task, WeightedSum


class State:
    """Every variable of a run: the model's, the optimizer's slots, the step counter.

    `stop` is written by the main thread and read by the running block.
    """

    def __init__(self, task: Task, replicas: Replicas, precision: Precision):
        config = task.config
        self.replicas = replicas
        tf_keras.utils.set_random_seed(config.seed)
        with replicas.scope():
            self.model = task.build(replicas, precision)
            freeze(self.model, task.stages, config.frozen_stages)
            sharded, kinds = config.communication.shard_weight_update, kind_of(self.model)
            self.update = (ShardedUpdate if sharded else WholeUpdate)(
                self.model.trainable_variables, kinds, replicas, config
            )
            self.kinds = [kinds[v.ref()] for v in self.model.trainable_variables]
            self.loss_scale = loss_scale.make(config, replicas)
        self.step = tf.Variable(0, dtype=replicas.counter, trainable=False, name="step")
        # The step of the last finished evaluation: a run that was stopped in an evaluation resumes with it.
        self.evaluated = tf.Variable(0, dtype=replicas.counter, trainable=False, name="evaluated")
        self.stop = tf.Variable(False, trainable=False, name="stop")

    def variables(self) -> list[tf.Variable]:
        """Returns every variable that training changes, in a fixed order; not `stop`."""
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


def freeze(model: tf_keras.Model, stages: Sequence[Sequence[str]], count: int) -> None:
    """Freezes the layers of the first `count` stages: their weights stay, and their batch norm uses its moments.

    Raises:
      UserError: the network has fewer stages.
    """
    if count > len(stages):
        raise UserError(
            f"config.frozen_stages={count}: {model.name} has {len(stages)} stages that can be frozen; use at most that"
        )
    first = tuple(beginning for stage in stages[:count] for beginning in stage)
    if not first:
        return
    paths = names.of_layers(model)
    for layer in model._flatten_layers(include_self=False):
        if paths.get(id(layer), "").startswith(first):
            layer.trainable = False


# (batch) -> (loss, gradients): this replica's parts of sums over the replicas.
Gradients = Callable[[Batch], tuple[tf.Tensor, list[tf.Tensor]]]


def make_train_step(
    task: Task,
    state: State,
    precision: Precision,
    clock: Clock,
    timed: Callable[[Gradients], Gradients] = lambda gradients: gradients,
) -> Callable[[Batch, tf.Tensor], tf.Tensor]:
    """Makes `train_step(batch, step)`: one weight update of a replica from its part of the batch.

    Args:
      task, state, precision, clock: of the run.
      timed: wraps the function that computes the gradients, as StepTiming.of_gradients does.

    Returns:
      A function that returns this replica's part of the loss (a scalar; the parts of all replicas add up to the loss).
    """
    config, replicas = task.config, state.replicas
    rate = schedules.learning_rate(
        config.schedule, config.optimizer.base_learning_rate, clock.steps_per_epoch, clock.train_steps
    )
    if replicas.narrow:
        rate = schedules.tabled(rate, clock.train_steps)

    compute = _gradients if config.accumulation_steps == 1 else _accumulated
    gradients_of = timed(functools.partial(compute, task, state, precision))

    def train_step(batch: Batch, step: tf.Tensor) -> tf.Tensor:
        loss, gradients = gradients_of(batch)
        # Each replica holds its part of a mean over all of them: its own gradient is num_replicas times that.
        gradients = optimizers.clipped(gradients, config.optimizer.clip_replica_norm / replicas.num_replicas)
        gradients = optimizers.with_bias_factor(gradients, state.kinds, config.optimizer.bias_gradient_factor)
        scale = state.loss_scale
        updates = state.update.apply(gradients, rate(step), scale.updates(step), scale.tell)
        with tf.control_dependencies(updates):
            return tf.identity(loss)

    return train_step


def _gradients(
    task: Task, state: State, precision: Precision, batch: Batch
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns this replica's loss and gradients, both parts of sums over the replicas."""
    variables = state.model.trainable_variables
    with tf.GradientTape() as tape:
        terms = task.loss(state.model, batch)
        loss = tf.add_n([t.total / _denominator(t, state.replicas) for t in terms.values()])
        scaled = state.loss_scale.scaled(loss)
    gradients = _dense(tape.gradient(scaled, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO))
    return loss, state.loss_scale.unscaled(gradients)


def _dense(gradients: list[tf.Tensor | tf.IndexedSlices]) -> list[tf.Tensor]:
    """Makes every gradient dense, an embedding's too: gradients are summed in buckets of one tensor each."""
    return [tf.convert_to_tensor(g) for g in gradients]


def _denominator(term: WeightedSum, replicas: Replicas, micro_batches: int = 1) -> tf.Tensor:
    weight = tf.stop_gradient(term.weight)
    if term.over is Over.GLOBAL:
        weight = replicas.all_reduce(weight)
    else:
        weight = weight * tf.cast(replicas.num_replicas * micro_batches, weight.dtype)
    # All weights zero: the totals are zero too, and 0 / 1 keeps the loss finite.
    return tf.where(weight > 0, weight, tf.ones_like(weight))


def _accumulated(
    task: Task, state: State, precision: Precision, batch: Batch
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """As `_gradients`, over micro-batches.

    The weight of a GLOBAL term is known only after the last micro-batch, so each such term keeps a gradient of its own
    and is divided at the end.
    """
    count, replicas = task.config.accumulation_steps, state.replicas
    variables = state.model.trainable_variables
    size = tf.nest.flatten(batch)[0].shape[0] // count

    def micro_batch(i: tf.Tensor | int) -> Mapping[str, tf.Tensor]:
        # XLA does not know the length of x[i * size : (i + 1) * size].
        def part(x: tf.Tensor) -> tf.Tensor:
            begin, rest = tf.pad([i * size], [[0, x.shape.rank - 1]]), tf.shape(x)[1:]
            return tf.ensure_shape(tf.slice(x, begin, tf.concat([[size], rest], 0)), [size, *x.shape[1:]])

        return tf.nest.map_structure(part, batch)

    def parts(i: tf.Tensor | int) -> list[tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]]:
        """Returns (total, weight, gradients) of each GLOBAL term, and of the sum of the others with weight 0."""
        with dropout.micro_batch(i, count), tf.GradientTape(persistent=True) as tape:
            terms = task.loss(state.model, micro_batch(i)).values()
            sums = [(t.total, t.weight) for t in terms if t.over is Over.GLOBAL]
            local = [t.total / _denominator(t, replicas, count) for t in terms if t.over is Over.REPLICA]
            if local:
                sums.append((tf.add_n(local), tf.constant(0, local[0].dtype)))
            scaled = [state.loss_scale.scaled(total) for total, _ in sums]
        zero = tf.UnconnectedGradients.ZERO
        return [
            (total, weight, _dense(tape.gradient(s, variables, unconnected_gradients=zero)))
            for (total, weight), s in zip(sums, scaled)
        ]

    def add(i: tf.Tensor | int, totals: list) -> list:
        return tf.nest.map_structure(tf.add, totals, parts(i))

    totals = parts(0)
    if replicas.loops_hold_collectives:
        totals = tf.while_loop(
            lambda i, _: i < count,
            lambda i, t: (i + 1, add(i, t)),
            (tf.constant(1), totals),
            parallel_iterations=1,
        )[1]
    else:
        for i in range(1, count):
            totals = add(i, totals)
    loss, gradients = [], [[] for _ in variables]
    for total, weight, grads in totals:
        weight = replicas.all_reduce(weight)
        weight = tf.where(weight > 0, weight, tf.ones_like(weight))
        loss.append(total / weight)
        for out, g in zip(gradients, grads):
            out.append(g / tf.cast(weight, g.dtype))
    return tf.add_n(loss), state.loss_scale.unscaled([tf.add_n(g) for g in gradients])


def make_eval_step(task: Task, state: State) -> Callable[[Batch], tuple[Mapping, Mapping]]:
    """Makes `eval_step(batch)`: a replica's (sums, arrays), in which each example counts once over all replicas."""

    def eval_step(batch: Batch) -> tuple[Mapping, Mapping]:
        outputs = task.evaluate(state.model, batch)
        sums = of_first_in_group(outputs.sums, task.config.partitions, state.replicas)
        return dict(sums), dict(outputs.arrays)

    return eval_step


def make_prepare_eval(state: State) -> Callable[[], tf.Tensor]:
    """Makes `prepare_eval()`: merges the moments of all batch-norm groups, on every replica before an evaluation."""

    def prepare_eval() -> tf.Tensor:
        batch_norm.merge_moments(state.model, state.replicas)
        return tf.constant(0)

    return prepare_eval


def compiles(config: RunConfig, replicas: Replicas) -> bool:
    """Whether the step goes through XLA: "auto" is off on a CPU, where XLA is slower (docs/sources.md, tf 3)."""
    if config.compile == "auto":
        return bool(tf.config.list_physical_devices("GPU")) and replicas.compiles_collectives()
    return config.compile == "on"
