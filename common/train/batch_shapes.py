"""Runs steps on batches of a few static shapes: one program per shape, all compiled before the clock starts.

A task with several shapes lists its training batches' shapes in `batch_shapes` and its evaluation batches' in
`eval_batch_shapes`. Within a step, all replicas' batches have the same shape.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from common.distributed.replicas.base import Replicas
from common.train.task import Shape


def summed(
    replicas: Replicas, shapes: Sequence[Shape], batch_size: int, total: Callable[[Any], Any] | None = None
) -> Callable[[Callable, tuple], Any]:
    """Returns `run(function, (batch, *rest))`, which adds up the results of `function` over the replicas.

    `function` is traced once for each of `shapes`, with a batch of that static shape; every call uses the trace for
    its batch's shape.

    Args:
      shapes: shapes of the batches; empty if all batches have one shape.
      batch_size: examples per replica; a static size that TensorFlow's strategies forget if other axes vary.
      total: combines the replicas' values, instead of a sum.
    """
    total = total or replicas.sum

    def run(function: Callable, args: tuple) -> Any:
        return total(replicas.run(function, args))

    def run_one(function: Callable, args: tuple) -> Any:
        batch, *rest = args

        def branch(shape: Shape) -> Callable[[], Any]:
            def shaped(batch: Mapping[str, tf.Tensor], *rest: Any) -> Any:
                return function(_with_shape(batch, batch_size, shape), *rest)

            return lambda: run(shaped, (batch, *rest))

        first = {name: replicas.local_results(batch[name])[0] for name in shapes[0]}
        return tf.switch_case(_shape_index(first, shapes), [branch(shape) for shape in shapes])

    return run_one if shapes else run


def in_turn(dataset: tf.data.Dataset, replicas: Replicas) -> tf.data.Dataset:
    """Repeats every batch for each replica of this process, so that all have the same shape in a step."""
    copies = replicas.num_replicas // replicas.num_processes
    return dataset.flat_map(lambda batch: tf.data.Dataset.from_tensors(batch).repeat(copies))


def _with_shape(batch: Mapping[str, tf.Tensor], batch_size: int, shape: Shape) -> dict[str, tf.Tensor]:
    return {
        name: tf.ensure_shape(x, [batch_size, *shape.get(name, x.shape[1:])]) for name, x in batch.items()
    }


def _shape_index(batch: Mapping[str, tf.Tensor], shapes: Sequence[Shape]) -> tf.Tensor:
    """Returns the index of the batch's shape; 0 if it is unknown, which `_with_shape` then reports."""
    actual = tf.concat([tf.shape(batch[name])[1:] for name in shapes[0]], 0)
    sizes = [[size for name in shapes[0] for size in shape[name]] for shape in shapes]
    return tf.argmax(tf.reduce_all(actual == tf.constant(sizes), 1), output_type=tf.int32)
