"""Computes a replica's loss and gradients, whole or in micro-batches, as one XLA program if that pays.

A term may be divided by its weight over all replicas. Such a term keeps separate gradients until that weight is known:
after the last micro-batch, or, for a compiled program, outside it, because replicas may not be able to exchange
inside.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from common.distributed import gradient_sum
from common.distributed.replicas.base import Replicas
from common.layers import dropout, gpu_forms, recompute
from common.train.segments import Cut
from common.train.task import Batch, Reduction, Task, WeightedSum

# (batch) -> (loss, gradients): this replica's summands; the sums over the replicas are the step's.
Gradients = Callable[[Batch], tuple[tf.Tensor, list[tf.Tensor]]]
# A term's (total, weight, gradients of the total).
_Part = tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]


def make(
    task: Task,
    model: tf_keras.Model,
    replicas: Replicas,
    compiled: bool = False,
    segments: int = 1,
) -> Gradients:
    """Makes the function that computes the gradients of `model`'s trainable variables.

    The loss is multiplied by `loss_scale`, so that small gradients do not vanish in fp16, and the gradients are divided
    by it ("Mixed Precision Training", Micikevicius et al., ICLR 2018, section 3.2).

    Args:
      compiled: whether forward and backward are one XLA program; replicas then exchange only outside it.
      segments: maximum number of compiled programs for the forward and backward pass; one program's gradients are
        ready before the next program runs. A step of several micro-batches has one program.
    """
    if task.config.accumulation_steps == 1 and not compiled:
        return lambda batch: _whole(task, model, replicas, batch)
    if compiled and segments > 1 and task.config.accumulation_steps == 1:
        return _InSegments(task, model, replicas, segments)
    return _InParts(task, model, replicas, compiled)


def _whole(
    task: Task, model: tf_keras.Model, replicas: Replicas, batch: Batch
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns this replica's loss and gradients; their sums over the replicas are the step's."""
    with tf.GradientTape() as tape:
        terms = task.loss(model, batch)
        loss = tf.add_n([t.total / _denominator(t, replicas) for t in terms.values()])
        scaled = _scaled(task, loss)
    gradients = _dense(tape, scaled, model.trainable_variables)
    return loss, _unscaled(task, [gpu_forms.in_weight_layout(replicas, g) for g in gradients])


def _scaled(task: Task, loss: tf.Tensor) -> tf.Tensor:
    scale = task.config.loss_scale
    return loss * scale if scale != 1 else loss


def _unscaled(task: Task, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the gradients of a scaled loss, divided by the scale."""
    scale = task.config.loss_scale
    return [g / scale for g in gradients] if scale != 1 else gradients


def _dense(
    tape: tf.GradientTape,
    loss: tf.Tensor,
    variables: Sequence[tf.Variable],
    earlier: Sequence[tf.Tensor] | None = None,
) -> list[tf.Tensor]:
    """Returns every gradient as a dense tensor, even an embedding's, because buckets need one tensor per gradient.

    With `earlier`, sums of earlier gradients, returns the new sums.
    """
    remaining = {v.ref(): x for v, x in zip(variables, earlier, strict=True)} if earlier else {}
    with recompute.earlier_gradients(remaining):
        gradients = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    dense = [tf.convert_to_tensor(g) for g in gradients]
    return [
        remaining[v.ref()] + g if v.ref() in remaining else g for v, g in zip(variables, dense, strict=True)
    ]


def _denominator(term: WeightedSum, replicas: Replicas, micro_batches: int = 1) -> tf.Tensor:
    weight = tf.stop_gradient(term.weight)
    if term.reduction is Reduction.GLOBAL:
        weight = replicas.all_reduce(weight)
    else:
        weight = weight * tf.cast(replicas.num_replicas * micro_batches, weight.dtype)
    return _or_one(weight)


def _or_one(weight: tf.Tensor) -> tf.Tensor:
    # If all weights are zero, the totals are zero too, and 0 / 1 keeps the loss finite.
    return tf.where(weight > 0, weight, tf.ones_like(weight))


class _InParts:
    """As `_whole`, over micro-batches: one part for each GLOBAL term, and one for all other terms together."""

    def __init__(self, task: Task, model: tf_keras.Model, replicas: Replicas, compiled: bool):
        self._task, self._model, self._replicas = task, model, replicas
        self._count = task.config.accumulation_steps
        self._compiled = compiled
        self._parts = tf.function(self._of, jit_compile=True, autograph=False) if compiled else self._of

    def __call__(self, batch: Batch) -> tuple[tf.Tensor, list[tf.Tensor]]:
        if self._replicas.loops_hold_collectives and self._count > 1:
            totals = self._looped(batch)
        else:
            totals = self._parts(batch, tf.constant(0))
            for i in range(1, self._count):
                totals = tf.nest.map_structure(tf.add, totals, self._parts(batch, tf.constant(i)))
        loss, gradients = [], [[] for _ in self._model.trainable_variables]
        for total, weight, grads in totals:
            weight = _or_one(self._replicas.all_reduce(weight))
            loss.append(total / weight)
            for out, g in zip(gradients, grads):
                out.append(g / tf.cast(weight, g.dtype))
        summed = [gpu_forms.in_weight_layout(self._replicas, tf.add_n(g)) for g in gradients]
        return tf.add_n(loss), _unscaled(self._task, summed)

    def _looped(self, batch: Batch) -> list[_Part]:
        """Returns the sums over the micro-batches; the program holds the network once."""
        parts = self._parts if self._compiled else tf.function(self._of, autograph=False)
        # A trace of the forward pass says how many sums there are, before the loop.
        forward = tf.function(self._terms, autograph=False)
        like = forward.get_concrete_function(batch, tf.constant(0)).structured_outputs
        start = [(*pair, self._model.trainable_variables) for pair in like]
        return tf.while_loop(
            lambda i, _: i < self._count,
            lambda i, totals: (i + 1, parts(batch, i, totals)),
            (tf.constant(0), tf.nest.map_structure(lambda x: tf.zeros(x.shape, x.dtype), start)),
            parallel_iterations=1,
            maximum_iterations=self._count,
        )[1]

    def _of(self, batch: Batch, i: tf.Tensor, before: list[_Part] | None = None) -> list[_Part]:
        """Returns the parts of micro-batch `i`, or their sums with those `before` it."""
        with tf.GradientTape(persistent=True) as tape:
            terms = self._terms(batch, i)
            scaled = [_scaled(self._task, total) for total, _ in terms]
        variables = self._model.trainable_variables
        if before is None:
            return [(total, weight, _dense(tape, s, variables)) for (total, weight), s in zip(terms, scaled)]
        return [
            (all_total + total, all_weight + weight, _dense(tape, s, variables, sums))
            for (total, weight), s, (all_total, all_weight, sums) in zip(terms, scaled, before, strict=True)
        ]

    def _terms(self, batch: Batch, i: tf.Tensor) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Returns (total, weight) of micro-batch `i`; the terms that are not GLOBAL form one, with weight 0."""
        with dropout.micro_batch(i, self._count):
            terms = self._task.loss(self._model, self._micro_batch(batch, i)).values()
        sums = [(t.total, t.weight) for t in terms if t.reduction is Reduction.GLOBAL]
        local = [
            t.total / _denominator(t, self._replicas, self._count)
            for t in terms
            if t.reduction is Reduction.REPLICA
        ]
        return [*sums, (tf.add_n(local), tf.constant(0, local[0].dtype))] if local else sums

    def _micro_batch(self, batch: Batch, i: tf.Tensor) -> Mapping[str, tf.Tensor]:
        if self._count == 1:
            return batch
        size = tf.nest.flatten(batch)[0].shape[0] // self._count

        # A slice with a static size: XLA does not know the length of x[i * size : (i + 1) * size].
        def part(x: tf.Tensor) -> tf.Tensor:
            begin, rest = tf.pad([i * size], [[0, x.shape.rank - 1]]), tf.shape(x)[1:]
            return tf.ensure_shape(tf.slice(x, begin, tf.concat([[size], rest], 0)), [size, *x.shape[1:]])

        return tf.nest.map_structure(part, batch)


class _InSegments(_InParts):
    """As `_InParts` for one micro-batch; several programs compute the forward and backward pass.

    The first program computes the forward pass, and the backward pass up to the gradients of the last layers' buckets.
    """

    def __init__(self, task: Task, model: tf_keras.Model, replicas: Replicas, segments: int):
        super().__init__(task, model, replicas, compiled=False)
        buckets = gradient_sum.buckets(model.trainable_variables, gradient_sum.BUCKET_BYTES)
        sizes = [v.shape.num_elements() * v.dtype.size for v in model.trainable_variables]
        self._groups = divided(buckets, sizes, segments)
        self._cuts: dict[Any, Cut] = {}  # Keyed by the batch's dtypes and shapes.
        self._parts = self._cut

    def _cut(self, batch: Batch, i: tf.Tensor) -> list[_Part]:
        inputs = tf.nest.flatten((batch, i))
        key = tuple((x.dtype, tuple(x.shape)) for x in inputs)
        if key not in self._cuts:
            traced = tf.function(self._of, autograph=False).get_concrete_function(batch, i)
            self._structure = traced.structured_outputs
            numbers = tf.nest.pack_sequence_as(self._structure, range(len(tf.nest.flatten(self._structure))))
            groups = [[grads[v] for _, _, grads in numbers for v in group] for group in self._groups]
            groups[0] += [x for total, weight, _ in numbers for x in (total, weight)]
            self._cuts[key] = Cut(traced, groups)
        return tf.nest.pack_sequence_as(self._structure, self._cuts[key](inputs))


def divided(buckets: Sequence[Sequence[int]], sizes: Sequence[int], count: int) -> list[list[int]]:
    """Joins consecutive buckets into at most `count` groups of about equal size.

    Args:
      buckets: indices of variables, in the order in which their gradients are made.
      sizes: size of each variable, in bytes.
      count: number of groups.
    """
    whole, done, last = sum(sizes), 0, -1
    groups: list[list[int]] = []
    for bucket in buckets:
        # The bucket's middle decides its group.
        size = sum(sizes[v] for v in bucket)
        place = min(int(count * (done + size / 2) / whole), count - 1)
        done += size
        if place > last:
            groups.append([])
            last = place
        groups[-1] += bucket
    return groups
