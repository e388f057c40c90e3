"""Training batches of a few static shapes: a program for each of them, all compiled before the clock starts.

A task names the shapes of its batches in `batch_shapes` where there are several, and those of evaluation in
`eval_batch_shapes`. In a step all replicas hold the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from common.distributed.replicas.base import Replicas
from common.train.task import Shape


def summed(
    replicas: Replicas,
    shapes: Sequence[Shape],
    batch_size: int,
    total: Callable[[Any], Any] | None = None,
) -> Callable[[Callable, tuple], Any]:
    """`run(function, (batch, *rest))`: what `function` returns on every replica, added up.

    `function` is traced once for each of `shapes`, with a batch whose shape is static; the batch's own shape picks one
    of these at every call.

    Args:
      replicas: the backend.
      shapes: none where all batches have one.
      batch_size: of a replica. TensorFlow's strategies forget it where other axes vary.
      total: what is done with the replicas' values in place of adding them up.
    """
    total = total or replicas.sum

    def run(function: Callable, args: tuple) -> Any:
        return total(replicas.run(function, args))

    def run_one(function: Callable, args: tuple) -> Any:
        batch, *rest = args

        def of(shape: Shape) -> Callable[[], Any]:
            def shaped(batch: Mapping[str, tf.Tensor], *rest: Any) -> Any:
                return function(_with_shape(batch, batch_size, shape), *rest)

            return lambda: run(shaped, (batch, *rest))

        first = {name: replicas.local_results(batch[name])[0] for name in shapes[0]}
        return tf.switch_case(_which(first, shapes), [of(shape) for shape in shapes])

    return run_one if shapes else run


def in_turn(dataset: tf.data.Dataset, replicas: Replicas) -> tf.data.Dataset:
    """The dataset's batches, each once for every replica of this process, so that all have one shape in a step."""
    copies = replicas.num_replicas // replicas.num_processes
    return dataset.flat_map(lambda batch: tf.data.Dataset.from_tensors(batch).repeat(copies))


def _with_shape(batch: Mapping[str, tf.Tensor], batch_size: int, shape: Shape) -> dict[str, tf.Tensor]:
    return {
        name: tf.ensure_shape(x, [batch_size, *shape.get(name, x.shape[1:])]) for name, x in batch.items()
    }


def _which(batch: Mapping[str, tf.Tensor], shapes: Sequence[Shape]) -> tf.Tensor:
    """The number of the shape that the batch has. Where it has none of them, `_with_shape` will say so."""
    actual = tf.concat([tf.shape(batch[name])[1:] for name in shapes[0]], 0)
    known = [[size for name in shapes[0] for size in shape[name]] for shape in shapes]
    return tf.argmax(tf.reduce_all(actual == tf.constant(known), 1), output_type=tf.int32)
