"""Normed Bahdanau attention: score = g v / |v| . tanh(W_q q + W_m m + b) (Bahdanau et al., "Neural Machine Translation
by Jointly Learning to Align and Translate"; the norm: Salimans and Kingma, "Weight Normalization").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras

from common.layers.dense import product, rows
from common.layers.precision import Precision
from gnmt.config import Config

_MASKED = -1e9  # A score that the softmax turns into 0.
# Of [b, queries, m, width] at a time. 256 sentences of 75 tokens have 5.5 GiB in fp32, 0.07 GiB for each query.
BLOCK_BYTES = 512 * 2**20


class Memory(NamedTuple):
    """What is attended to: keys and values [b, m, width], and bool [b, 1, m], False at padding."""

    keys: tf.Tensor
    values: tf.Tensor
    real: tf.Tensor


class Attention(tf_keras.layers.Layer):
    """One head; queries and keys are multiplied by a matrix each, values are the memory itself."""

    kinds = {
        "query_kernel": "kernel",
        "memory_kernel": "kernel",
        "direction": "kernel",
        "scale": "norm",
        "bias": "bias",
    }

    def __init__(self, config: Config, precision: Precision, uniform: Callable[[], Any]):
        super().__init__(dtype=precision.full, autocast=False)
        self.precision, self.attends, width = precision, config.attend, config.width
        self.width = width
        self.query_kernel = self.add_weight("query_kernel", shape=[width, width], initializer=uniform())
        self.memory_kernel = self.add_weight("memory_kernel", shape=[width, width], initializer=uniform())
        self.direction = self.add_weight("direction", shape=[width], initializer=uniform())
        # sqrt(1 / width): mlperf_facts 2.
        start = tf_keras.initializers.Constant(width**-0.5)
        self.scale = self.add_weight("scale", shape=[], initializer=start)
        self.bias = self.add_weight("bias", shape=[width], initializer="zeros")

    def memory(self, source: tf.Tensor, lengths: tf.Tensor) -> Memory:
        """Of the encoder's output, [m, b, width], of sentences of int32 [b] tokens."""
        values = tf.transpose(source, [1, 0, 2])
        length = values.shape[1] or tf.shape(values)[1]
        real = tf.sequence_mask(lengths, length)[:, None, :]
        return Memory(self._product(values, self.memory_kernel), values, real)

    def call(self, queries: tf.Tensor, memory: Memory) -> tuple[tf.Tensor, tf.Tensor]:
        """[b, q, width] -> (what they find [b, q, width], their attention [b, q, m], whose sums are 1)."""
        direction = tf.convert_to_tensor(self.direction)
        direction *= self.scale * tf.math.rsqrt(tf.reduce_sum(direction * direction))
        asked = self._product(queries, self.query_kernel) + self.bias
        scores = additive_scores(asked, memory.keys, direction)
        weights = tf.nn.softmax(tf.where(memory.real, scores, tf.constant(_MASKED, scores.dtype)))
        compute = self.precision.compute
        found = tf.matmul(tf.cast(weights, compute), tf.cast(memory.values, compute))
        found = tf.cast(found, self.precision.variable)
        return (found if self.attends else tf.zeros_like(found)), weights

    def _product(self, x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """[b, n, width] times a matrix, in full precision."""
        compute = self.precision.compute
        found = product(tf.cast(rows(x), compute), tf.cast(kernel, compute))
        return tf.cast(tf.reshape(found, tf.shape(x)), self.precision.variable)

    def products(self, queries: int, memory: int) -> int:
        """Multiply-adds for `queries` rows that attend to `memory` rows."""
        return self.width * (self.width * (queries + memory) + 2 * queries * memory)


@tf.custom_gradient
def additive_scores(queries: tf.Tensor, keys: tf.Tensor, direction: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """The sum over the width of direction * tanh(query + key): [b, q, n], [b, m, n], [n] -> [b, q, m].

    tanh is computed again for the gradient: [b, q, m, n] would be the largest tensor of the network by far. Where it is
    larger than BLOCK_BYTES, both directions compute it for a few queries at a time.
    """
    blocks = _blocks(queries, keys)
    if blocks == 1:
        return _scores(queries, keys, direction), lambda above: _gradients(above, queries, keys, direction)
    length = queries.shape[1]

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """What is behind the last query has no gradient from above, so it adds nothing to the sums."""
        above, asked = _split(upstream, blocks), _split(queries, blocks)

        def body(i: tf.Tensor, d_queries: tf.TensorArray, d_keys: tf.Tensor, d_direction: tf.Tensor) -> tuple:
            of_queries, of_keys, of_direction = _gradients(above[i], asked[i], keys, direction)
            return i + 1, d_queries.write(i, of_queries), d_keys + of_keys, d_direction + of_direction

        parts = tf.TensorArray(queries.dtype, blocks, element_shape=asked.shape[1:])
        start = tf.constant(0), parts, tf.zeros_like(keys), tf.zeros_like(direction)
        _, parts, d_keys, d_direction = tf.while_loop(
            lambda i, *_: i < blocks, body, start, parallel_iterations=1, maximum_iterations=blocks
        )
        return _joined(parts.stack(), length), d_keys, d_direction

    asked = _split(queries, blocks)
    scores = tf.map_fn(lambda part: _scores(part, keys, direction), asked, parallel_iterations=1)
    return _joined(scores, length), gradient


def _scores(queries: tf.Tensor, keys: tf.Tensor, direction: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.tanh(queries[:, :, None] + keys[:, None]) * direction, -1)


def _gradients(
    upstream: tf.Tensor, queries: tf.Tensor, keys: tf.Tensor, direction: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Of the three inputs of `_scores`."""
    squashed = tf.tanh(queries[:, :, None] + keys[:, None])
    d_direction = tf.einsum("bqm,bqmn->n", upstream, squashed)
    inner = upstream[..., None] * (1 - squashed * squashed) * direction
    return tf.reduce_sum(inner, 2), tf.reduce_sum(inner, 1), d_direction


def _blocks(queries: tf.Tensor, keys: tf.Tensor) -> int:
    """How many, so that [b, queries of a block, m, n] is at most BLOCK_BYTES, or of one query; 1 for unknown shapes."""
    length, of_query = queries.shape[1], keys.shape.num_elements()
    if not length or not of_query:
        return 1
    rows = max(1, BLOCK_BYTES // (of_query * keys.dtype.size))
    return -(-length // rows)


def _split(x: tf.Tensor, blocks: int) -> tf.Tensor:
    """[b, q, n] -> [blocks, b, q / blocks, n], zeros behind the last one where that is not whole."""
    rows = -(-x.shape[1] // blocks)
    padded = tf.pad(x, [[0, 0], [0, rows * blocks - x.shape[1]], [0, 0]])
    return tf.transpose(tf.reshape(padded, [x.shape[0], blocks, rows, x.shape[2]]), [1, 0, 2, 3])


def _joined(x: tf.Tensor, length: int) -> tf.Tensor:
    """`_split` undone: [blocks, b, rows, n] -> [b, length, n]."""
    blocks, b, rows, n = x.shape
    return tf.reshape(tf.transpose(x, [1, 0, 2, 3]), [b, blocks * rows, n])[:, :length]
