"""Counts classifications over padded evaluation batches, and checks that every example counts once."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from common.train.task import Batch

MOST_CLASSES = 100  # A network of more classes counts no confusions: people would not read them.
_SHOWN = 10


def top_k_sums(scores: tf.Tensor, batch: Batch) -> dict[str, tf.Tensor]:
    """Returns {"correct", "correct_top5", "seen"}: numbers of examples as int32 scalars, without padding.

    Up to MOST_CLASSES classes there is "confused", int32 [classes, classes]: the examples of a label, a row, by answer.

    Args:
      scores: [b, classes].
      batch: "label", int32 [b], -1 for padding; "weight" [b], 0 for padding.
    """
    # Padding has the label -1, which no argmax equals.
    answers, classes = tf.argmax(scores, -1, tf.int32), scores.shape[-1]
    correct = tf.equal(answers, batch["label"])
    scores = tf.cast(scores, tf.float32)
    top5 = tf.math.in_top_k(tf.maximum(batch["label"], 0), scores, min(5, classes))
    # in_top_k counts all ties with the fifth: a network whose scores are all equal would be right always.
    best = tf.math.top_k(scores, min(5, classes)).indices
    top5 &= tf.reduce_any(best == batch["label"][:, None], -1)
    real = batch["weight"] > 0
    sums = {"correct": correct, "correct_top5": top5 & real, "seen": real}
    counts = {name: tf.reduce_sum(tf.cast(hit, tf.int32)) for name, hit in sums.items()}
    if classes <= MOST_CLASSES:  # Padding has no row. Zeros and ones are exact in any format.
        hot = tf.one_hot(batch["label"], classes)
        counts["confused"] = tf.cast(tf.matmul(hot, tf.one_hot(answers, classes), transpose_a=True), tf.int32)
    return counts


def confused(
    sums: Mapping[str, np.ndarray], names: Callable[[], Sequence[str]]
) -> list[tuple[str, str, int]]:
    """Returns the largest counts (class, answer, examples) of wrong answers, largest first; [] without "confused"."""
    counts = np.array(sums.get("confused", np.zeros([0, 0])))
    np.fill_diagonal(counts, 0)
    if not counts.any():
        return []
    labels = names()
    called = [*labels, *map(str, range(len(labels), len(counts)))]
    places = np.argsort(-counts, axis=None, kind="stable")[:_SHOWN]
    rows = zip(*np.unravel_index(places, counts.shape))
    return [(called[i], called[j], int(counts[i, j])) for i, j in rows if counts[i, j]]


def seen_once(sums: Mapping[str, np.ndarray], expected: int, unit: str = "examples") -> int:
    """Returns the number of examples seen.

    Raises ValueError if the number is not `expected`, which is config.num_eval_examples.
    """
    count = int(sums["seen"])
    if count != expected:
        raise ValueError(f"{count} {unit} seen, {expected} expected (config.num_eval_examples)")
    return count
