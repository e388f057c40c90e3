"""Pads evaluation so that every replica does equal work and every example counts once."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from common.distributed.replicas.base import Shard


def num_batches(sizes: Sequence[int], batch_size: int, per_step: int = 1) -> int:
    """Returns the number of batches per shard: equal for all shards, and enough for the largest of their `sizes`.

    It is a multiple of `per_step`, the number of replicas that take turns reading a shard's batches.
    """
    return max(1, *(-(-size // (batch_size * per_step)) for size in sizes)) * per_step


def pad(dataset: tf.data.Dataset, padding: dict[str, Any], batch_size: int, batches: int) -> tf.data.Dataset:
    """Returns exactly `batches` full batches: the examples of `dataset`, then padding.

    Args:
      dataset: at most batches * batch_size single examples, dicts of tensors with static shapes.
      padding: one example with the same keys, shapes and dtypes.
      batch_size: examples per batch of one replica.
      batches: from `num_batches`.

    Returns:
      Dataset of dicts with leading dimension `batch_size`, plus "weight" float32 [batch_size]: 0 for padding, else 1.
      A metric needs no correction if it sums weight * value over all replicas and divides by the summed weight.
    """
    spec = dataset.element_spec
    filler = {name: tf.convert_to_tensor(padding[name], spec[name].dtype) for name in spec}
    real = dataset.map(lambda example: {**example, "weight": tf.constant(1.0)})
    empty = tf.data.Dataset.from_tensors({**filler, "weight": tf.constant(0.0)}).repeat()
    padded = real.concatenate(empty).take(batches * batch_size).batch(batch_size, drop_remainder=True)
    return padded.apply(tf.data.experimental.assert_cardinality(batches))


def shard_of(
    arrays: Mapping[str, np.ndarray],
    padding: dict[str, Any],
    shard: Shard,
    global_batch: int,
    batch_size: int,
) -> tf.data.Dataset:
    """Returns the batches of one shard, every `shard.count`-th of the examples in `arrays`; see `pad`."""
    part = {name: array[shard.index :: shard.count] for name, array in arrays.items()}
    largest = len(range(0, len(next(iter(arrays.values()))), shard.count))
    # One stream may feed several replicas; each gets a whole number of batches.
    batches = num_batches([largest], batch_size, shard.batches_per_step(global_batch, batch_size))
    return pad(tf.data.Dataset.from_tensor_slices(part), padding, batch_size, batches)
