"""Splits any number of sentences into batches of the network's fixed size, inside the graph."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

TOKENS = tf.TensorSpec([None, None], tf.int32, "tokens")
GROUP = 8  # Number of sentences per search.


def in_groups(
    network: Callable[[tf.Tensor], tf.Tensor], length: int
) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    """Returns a function from tokens [b, m], for any b and any m up to `length`, to {"tokens": [b, n]}.

    Args:
      network: int32 [GROUP, length], or [1, length] of a single sentence, padded with 0 -> int32 [GROUP or 1, n].
      length: length of the network's sentences; longer sentences raise an error.
    """

    def some(tokens: tf.Tensor, size: int) -> tf.Tensor:
        # Copies of the last sentence fill the last group, because they do not prolong the search.
        count = tf.shape(tokens)[0]
        places = tf.minimum(tf.range((count + size - 1) // size * size), count - 1)
        grouped = tf.reshape(tf.gather(tokens, places), [-1, size, length])
        tokens_of_groups = tf.map_fn(network, grouped, fn_output_signature=tf.int32)
        return tf.reshape(tokens_of_groups, [-1, tf.shape(tokens_of_groups)[2]])[:count]

    def translate(tokens: tf.Tensor) -> dict[str, tf.Tensor]:
        missing = length - tf.shape(tokens)[1]
        message = [f"sentences of at most {length} tokens"]
        with tf.control_dependencies([tf.debugging.Assert(missing >= 0, message)]):
            tokens = tf.ensure_shape(tf.pad(tokens, [[0, 0], [0, missing]]), [None, length])
        alone = tf.shape(tokens)[0] == 1
        return {"tokens": tf.cond(alone, lambda: some(tokens, 1), lambda: some(tokens, GROUP))}

    return translate
