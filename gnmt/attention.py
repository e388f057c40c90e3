"""Computes normed Bahdanau attention: score = g v / |v| . tanh(W_q q + W_m m + b).

The attention comes from Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and Translate", the
norm from Salimans and Kingma, "Weight Normalization".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras

from common.layers.dense import product, rows
from common.layers.precision import Precision
from gnmt.config import Config

MASKED = -1e9  # A score that the softmax turns into 0.
# Maximum bytes of tanh [b, queries, m, width] at a time. 256 sentences of 75 tokens take 5.5 GiB in fp32, 0.07 a query.
BLOCK_BYTES = 512 * 2**20


class Memory(NamedTuple):
    """The encoder's output as keys and values [b, m, width]; `real`, bool [b, 1, m], is False for padding."""

    keys: tf.Tensor
    values: tf.Tensor
    real: tf.Tensor


class Attention(tf_keras.layers.Layer):
    """Attention with one head; queries and keys each have a matrix, and the values are the memory itself."""

    kinds = {
        "query_kernel": "kernel",
        "memory_kernel": "kernel",
        "direction": "kernel",
        "scale": "norm",
        "bias": "bias",
    }

    def __init__(self, config: Config, precision: Precision, uniform: Callable[[], Any]):
        super().__init__(dtype=precision.full, autocast=False)
        self.precision, width = precision, config.width
        self.width = width
        self.query_kernel = self.add_weight("query_kernel", shape=[width, width], initializer=uniform())
        self.memory_kernel = self.add_weight("memory_kernel", shape=[width, width], initializer=uniform())
        self.direction = self.add_weight("direction", shape=[width], initializer=uniform())
        # sqrt(1 / width): docs/sources.md, mlperf 2.
        start = tf_keras.initializers.Constant(width**-0.5)
        self.scale = self.add_weight("scale", shape=[], initializer=start)
        self.bias = self.add_weight("bias", shape=[width], initializer="zeros")

    def memory(self, source: tf.Tensor, lengths: tf.Tensor) -> Memory:
        """Creates the memory from the encoder's output, [m, b, width]; `lengths`, int32 [b], counts tokens."""
        values = tf.transpose(source, [1, 0, 2])
        length = values.shape[1] or tf.shape(values)[1]
        real = tf.sequence_mask(lengths, length)[:, None, :]
        return Memory(self._product(values, self.memory_kernel), values, real)

    def call(self, queries: tf.Tensor, memory: Memory) -> tuple[tf.Tensor, tf.Tensor]:
        """Attends: queries [b, q, width] -> (contexts [b, q, width], attention weights [b, q, m], which sum to 1)."""
        return self.attend(self._product(queries, self.query_kernel) + self.bias, memory)

    def attend(self, projected: tf.Tensor, memory: Memory) -> tuple[tf.Tensor, tf.Tensor]:
        """Attends like `call`, but accepts queries after the product and bias, [b, q, width]."""
        scores = additive_scores(projected, memory.keys, self.scaled_direction())
        weights = tf.nn.softmax(tf.where(memory.real, scores, tf.constant(MASKED, scores.dtype)))
        compute = self.precision.compute
        contexts = tf.matmul(tf.cast(weights, compute), tf.cast(memory.values, compute))
        return tf.cast(contexts, self.precision.variable), weights

    def scaled_direction(self) -> tf.Tensor:
        """Returns g v / |v|, [width]."""
        direction = tf.convert_to_tensor(self.direction)
        return direction * (self.scale * tf.math.rsqrt(tf.reduce_sum(direction * direction)))

    def _product(self, x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """Multiplies [b, n, width] by a matrix; the result is in full precision."""
        compute = self.precision.compute
        products = product(tf.cast(rows(x), compute), tf.cast(kernel, compute))
        return tf.cast(tf.reshape(products, tf.shape(x)), self.precision.variable)


@tf.custom_gradient
def additive_scores(queries: tf.Tensor, keys: tf.Tensor, direction: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Sums direction * tanh(query + key) over the width: [b, q, n], [b, m, n], [n] -> [b, q, m].

    The gradient recomputes tanh, because [b, q, m, n] would be by far the largest tensor to keep. If it is larger than
    BLOCK_BYTES, forward and backward pass compute it for one block of queries at a time.
    """
    blocks = _blocks(queries, keys)
    if blocks == 1:
        return scores_of(queries, keys, direction), lambda above: _gradients(above, queries, keys, direction)
    length = queries.shape[1]

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Sums the blocks' gradients; padding after the last query has upstream gradient 0 and adds nothing."""
        upstream_blocks, query_blocks = _split(upstream, blocks), _split(queries, blocks)

        def body(i: tf.Tensor, d_queries: tf.TensorArray, d_keys: tf.Tensor, d_direction: tf.Tensor) -> tuple:
            block = _gradients(upstream_blocks[i], query_blocks[i], keys, direction)
            return i + 1, d_queries.write(i, block[0]), d_keys + block[1], d_direction + block[2]

        slopes = tf.TensorArray(queries.dtype, blocks, element_shape=query_blocks.shape[1:])
        start = tf.constant(0), slopes, tf.zeros_like(keys), tf.zeros_like(direction)
        _, slopes, d_keys, d_direction = tf.while_loop(
            lambda i, *_: i < blocks, body, start, parallel_iterations=1, maximum_iterations=blocks
        )
        return _joined(slopes.stack(), length), d_keys, d_direction

    query_blocks = _split(queries, blocks)
    scores = tf.map_fn(lambda part: scores_of(part, keys, direction), query_blocks, parallel_iterations=1)
    return _joined(scores, length), gradient


def scores_of(queries: tf.Tensor, keys: tf.Tensor, direction: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.tanh(queries[:, :, None] + keys[:, None]) * direction, -1)


def _gradients(
    upstream: tf.Tensor, queries: tf.Tensor, keys: tf.Tensor, direction: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Computes the gradients of the three inputs to `scores_of`."""
    squashed = tf.tanh(queries[:, :, None] + keys[:, None])
    d_direction = tf.einsum("bqm,bqmn->n", upstream, squashed)
    inner = upstream[..., None] * (1 - squashed * squashed) * direction
    return tf.reduce_sum(inner, 2), tf.reduce_sum(inner, 1), d_direction


def query_gradients(
    upstream: tf.Tensor, queries: tf.Tensor, keys: tf.Tensor, direction: tf.Tensor
) -> tf.Tensor:
    """Computes only the gradient of the queries, [b, q, n]."""
    squashed = tf.tanh(queries[:, :, None] + keys[:, None])
    return tf.reduce_sum(upstream[..., None] * (1 - squashed * squashed) * direction, 2)


def key_gradients(
    upstream: tf.Tensor, queries: tf.Tensor, keys: tf.Tensor, direction: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the gradients of keys and direction, [b, m, n] and [n]; both are sums over the queries.

    Only for XLA, where each sum computes tanh [b, q, m, n] itself. If both read the same tanh, XLA would store it.
    """
    x, upstream = queries[:, :, None] + keys[:, None], upstream[..., None]
    squashed, same = tf.tanh(x), 2 * tf.sigmoid(2 * x) - 1
    d_keys = direction * tf.reduce_sum(upstream * (1 - squashed * squashed), 1)
    return d_keys, tf.reduce_sum(tf.reduce_sum(upstream * same, 1), [0, 1])


def _blocks(queries: tf.Tensor, keys: tf.Tensor) -> int:
    """Counts blocks of [b, queries, m, n]; each has at most BLOCK_BYTES, or one query. Unknown shapes give 1."""
    length, elements_per_query = queries.shape[1], keys.shape.num_elements()
    if not length or not elements_per_query:
        return 1
    rows = max(1, BLOCK_BYTES // (elements_per_query * keys.dtype.size))
    return -(-length // rows)


def _split(x: tf.Tensor, blocks: int) -> tf.Tensor:
    """Splits [b, q, n] -> [blocks, b, q / blocks, n], rounded up, with zeros after the last query."""
    rows = -(-x.shape[1] // blocks)
    padded = tf.pad(x, [[0, 0], [0, rows * blocks - x.shape[1]], [0, 0]])
    return tf.transpose(tf.reshape(padded, [x.shape[0], blocks, rows, x.shape[2]]), [1, 0, 2, 3])


def _joined(x: tf.Tensor, length: int) -> tf.Tensor:
    """Reverses `_split`: [blocks, b, rows, n] -> [b, length, n]."""
    blocks, b, rows, n = x.shape
    return tf.reshape(tf.transpose(x, [1, 0, 2, 3]), [b, blocks * rows, n])[:, :length]
