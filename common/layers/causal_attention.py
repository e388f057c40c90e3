"""Causal attention with grouped heads: plain, and in blocks of queries that keep no scores.

Queries [b, n, heads, size] attend to keys and values [b, n, kv_heads, size] of their own and earlier positions. Each
head of keys and values serves heads / kv_heads heads of queries ("GQA", Ainslie et al. 2023). Scores have the scale
1 / sqrt(size), and the softmax is computed in `full` precision.
"""

from collections.abc import Callable

import tensorflow as tf

from common.layers.attention import IMPLEMENTATIONS, MASKED
from common.layers.xla import iota


def plain(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, full: tf.DType) -> tf.Tensor:
    """Returns softmax(scale Q K^T, causal) V, [b, n, heads, size]; keeps all scores."""
    n = query.shape[1]
    heads = (tf.transpose(x, [0, 2, 1, 3]) for x in (query, key, value))
    return tf.transpose(IMPLEMENTATIONS["plain"].attend(*heads, causal_mask(n, n), full), [0, 2, 1, 3])


def causal_mask(queries: int, keys: int) -> tf.Tensor:
    """Returns which of the first `keys` positions the last `queries` of them attend to, bool [queries, keys]."""
    return iota(keys)[None, :] <= iota(queries)[:, None] + (keys - queries)


def in_blocks(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, full: tf.DType, blocks: int) -> tf.Tensor:
    """Returns what `plain` does, block of queries by block, each against the keys up to its end.

    The backward pass computes the scores again from each row's logarithm of the sum of exponentials, as
    "FlashAttention" (Dao et al. 2022) does; sizes are static. `blocks` need not divide the positions.
    """
    b, n, heads, size = query.shape
    groups, per_group = key.shape[2], heads // key.shape[2]
    ends = [n * (i + 1) // blocks for i in range(blocks)]
    cuts = [(start, end) for start, end in zip([0, *ends], ends) if end > start]

    @tf.custom_gradient
    def attend(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        parts = [_Block(query, key, value, cut, full) for cut in cuts]
        results = [part.forward() for part in parts]
        output = tf.concat([part_output for part_output, _ in results], 2)

        def gradient(above: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            to_query, to_key, to_value = [], tf.zeros(key.shape, full), tf.zeros(value.shape, full)
            for part, (part_output, normalizer) in zip(parts, results):
                share = above[:, :, part.start : part.end]
                d_query, d_key, d_value = part.backward(part_output, normalizer, share)
                to_query.append(d_query)
                rest = [[0, 0], [0, n - part.end], [0, 0]]
                to_key, to_value = to_key + tf.pad(d_key, rest), to_value + tf.pad(d_value, rest)
            return tf.concat(to_query, 2), tf.cast(to_key, key.dtype), tf.cast(to_value, value.dtype)

        return output, gradient

    # One matrix for each example and head of keys: [b groups, heads per group, n, size].
    query = tf.transpose(tf.reshape(query, [b, n, groups, per_group, size]), [0, 2, 3, 1, 4])
    key, value = (tf.reshape(tf.transpose(x, [0, 2, 1, 3]), [b * groups, n, size]) for x in (key, value))
    output = attend(tf.reshape(query, [b * groups, per_group, n, size]), key, value)
    output = tf.transpose(tf.reshape(output, [b, groups, per_group, n, size]), [0, 3, 1, 2, 4])
    return tf.reshape(output, [b, n, heads, size])


class _Block:
    """Queries start .. end - 1 of all matrices, and the keys and values that they see.

    Matrices are [m, g, n, size] for queries and [m, n, size] for keys and values; g heads share them.
    """

    def __init__(
        self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, cut: tuple[int, int], full: tf.DType
    ):
        self.start, self.end = cut
        self._shape = [query.shape[0], query.shape[1], self.end - self.start]
        self._query = self._rows(query[:, :, self.start : self.end])
        self._key, self._value, self._full = key[:, : self.end], value[:, : self.end], full

    def forward(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (outputs [m, g, block, size], logarithm of each row's sum of exponentials [m, g, block, 1])."""
        scores = self._scores()
        normalizer = tf.reduce_logsumexp(scores, -1, keepdims=True)
        return self._weighted(tf.exp(scores - normalizer)), normalizer

    def backward(
        self, output: tf.Tensor, normalizer: tf.Tensor, above: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the gradients of the block's queries, and in full precision those of the keys and values it sees."""
        full, dtype = self._full, above.dtype
        weights = tf.exp(self._scores() - normalizer)
        rows = self._rows(above)
        d_value = tf.matmul(self._rows(tf.cast(weights, dtype)), rows, transpose_a=True)
        d_weights = self._groups(tf.cast(tf.matmul(rows, self._value, transpose_b=True), full))
        shared = tf.reduce_sum(tf.cast(above, full) * tf.cast(output, full), -1, keepdims=True)
        scale = self._key.shape[-1] ** -0.5
        d_scores = self._rows(tf.cast(weights * (d_weights - shared) * scale, dtype))
        d_key = tf.matmul(d_scores, self._query, transpose_a=True)
        d_query = self._groups(tf.matmul(d_scores, self._key))
        return d_query, tf.cast(d_key, full), tf.cast(d_value, full)

    def _scores(self) -> tf.Tensor:
        """Computes the scaled scores in full precision, [m, g, block, end]."""
        scores = self._groups(tf.matmul(self._query, self._key, transpose_b=True))
        scores = tf.cast(scores, self._full) * self._key.shape[-1] ** -0.5
        return tf.where(causal_mask(self.end - self.start, self.end), scores, tf.constant(MASKED, self._full))

    def _weighted(self, weights: tf.Tensor) -> tf.Tensor:
        return self._groups(tf.matmul(self._rows(tf.cast(weights, self._value.dtype)), self._value))

    def _rows(self, x: tf.Tensor) -> tf.Tensor:
        """Joins the heads that share keys: [m, g, block, k] -> [m, g block, k]."""
        return tf.reshape(x, [self._shape[0], -1, x.shape[-1]])

    def _groups(self, x: tf.Tensor) -> tf.Tensor:
        """Splits the heads that share keys: [m, g block, k] -> [m, g, block, k]."""
        return tf.reshape(x, [*self._shape, x.shape[-1]])
