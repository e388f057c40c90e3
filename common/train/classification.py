"""Counts correct classifications over padded evaluation batches, and checks that every example counts once."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from common.train.task import Batch


def top_k_sums(scores: tf.Tensor, batch: Batch) -> dict[str, tf.Tensor]:
    """Returns {"correct", "correct_top5", "seen"}: numbers of examples as int32 scalars, without padding.

    Args:
      scores: [b, classes].
      batch: "label", int32 [b], -1 for padding; "weight" [b], 0 for padding.
    """
    # Padding has the label -1, which no argmax equals.
    correct = tf.equal(tf.argmax(scores, -1, tf.int32), batch["label"])
    top5 = tf.math.in_top_k(
        tf.maximum(batch["label"], 0), tf.cast(scores, tf.float32), min(5, scores.shape[-1])
    )
    real = batch["weight"] > 0
    sums = {"correct": correct, "correct_top5": top5 & real, "seen": real}
    return {name: tf.reduce_sum(tf.cast(hit, tf.int32)) for name, hit in sums.items()}


def seen_once(sums: Mapping[str, np.ndarray], expected: int, what: str = "examples") -> int:
    """Returns the number of examples seen.

    Raises ValueError if the number is not `expected`, which is config.num_eval_examples.
    """
    seen = int(sums["seen"])
    if seen != expected:
        raise ValueError(f"{seen} {what} seen, {expected} expected (config.num_eval_examples)")
    return seen
