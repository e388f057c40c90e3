"""Multi-head attention, softmax(Q K^T / sqrt(size)) V: its implementations, and the one place that chooses.

An implementation has three methods. `split` multiplies [b, n, width] and splits the heads, in the memory order that its
products need; `attend` computes the formula; `join` brings the heads together and multiplies again, [b, n, width].
causal_attention.py has one more, in blocks of queries, which keeps no scores.
"""

from collections.abc import Callable

import tensorflow as tf

from common.distributed.replicas.base import Replicas
from common.layers.dropout import Dropout, drop
from common.layers.fused_attention import device_has_kernel, fused_attention, kernel_exists
from common.layers.precision import Precision
from common.layers.xla import for_gpu, under_xla

MASKED = -1e9  # A score that the softmax turns into 0.
Product = Callable[[tf.Tensor], tf.Tensor]


def select(
    replicas: Replicas, precision: Precision, size: int, causal: bool = False, fusable: bool = True
) -> str:
    """Returns the implementation for the function being traced: "fused", "blocks", "positions_first" or "plain".

    Args:
      replicas: the backend, which knows its devices.
      precision: of the products.
      size: of a head.
      causal: whether tokens attend to their own and earlier positions, without dropout; "blocks" is for that alone.
      fusable: whether dropout's masks may come from cuDNN's generator, and no weights are needed.
    """
    if not under_xla():
        return "plain"
    if fusable and precision.compute.size == 2 and kernel_exists(size) and device_has_kernel(replicas):
        return "fused"
    if causal:
        return "blocks"
    return "positions_first" if for_gpu(replicas) else "plain"


class Implementation:
    """What the implementations share: heads are [b, n, heads, size], or another order."""

    order = (0, 1, 2)  # Of the axes of [b, n, width] before the product.

    def split(self, x: tf.Tensor, product: Product, heads: int) -> list[tf.Tensor]:
        """Multiplies [b, n, width] -> [b, n, k * width], and splits that into k tensors of heads."""
        return tf.unstack(self._heads(x, product, heads), axis=2)

    def _heads(self, x: tf.Tensor, product: Product, heads: int) -> tf.Tensor:
        y, width = product(_transposed(x, self.order)), x.shape[-1]
        return tf.reshape(y, [*sides(y)[:2], y.shape[-1] // width, heads, width // heads])

    def attend(
        self,
        query: tf.Tensor,
        key: tf.Tensor,
        value: tf.Tensor,
        allowed: tf.Tensor,
        full: tf.DType,
        dropout: Dropout | None = None,
        training: bool = False,
    ) -> tf.Tensor:
        """Returns dropout(softmax(Q K^T / sqrt(size), where allowed)) V, with heads as the query's.

        Args:
          query, key, value: heads from `split`.
          allowed: bool, broadcasts to [b, 1, q, m].
          full: precision of the softmax.
          dropout: of the weights.
          training: whether `dropout` drops.
        """
        raise NotImplementedError

    def join(self, heads: tf.Tensor, product: Product) -> tf.Tensor:
        """Multiplies the joined heads -> [b, n, width]."""
        first, second, count, size = sides(heads)
        return _transposed(product(tf.reshape(heads, [first, second, count * size])), self.order)


class Fused(Implementation):
    """cuDNN's kernel, which keeps no weights and draws its own dropout."""

    def attend(self, query, key, value, allowed, full, dropout=None, training=False):
        rate, seed = (dropout.rate, dropout.seed) if dropout and training else (0.0, 0)
        return fused_attention(query, key, value, allowed, query.shape[-1] ** -0.5, rate, seed)


class PositionsFirst(Implementation):
    """Products of [n, b, heads, size], whose heads cuBLAS finds without a copy.

    The kernels before and after read and write the other order without a pass of their own.
    """

    order = (1, 0, 2)

    def attend(self, query, key, value, allowed, full, dropout=None, training=False):
        scores = tf.einsum("qbhs,mbhs->bhqm", _scaled(query), key)
        weights = _weights(scores, allowed, full, dropout, training)
        return tf.einsum("bhqm,mbhs->qbhs", weights, value)


class Plain(Implementation):
    """Products of [b, heads, n, size]; each head of keys and values may serve several heads of queries."""

    def split(self, x: tf.Tensor, product: Product, heads: int) -> list[tf.Tensor]:
        return tf.unstack(tf.transpose(self._heads(x, product, heads), [2, 0, 3, 1, 4]))

    def attend(self, query, key, value, allowed, full, dropout=None, training=False):
        shape, groups = sides(query), key.shape[1]
        grouped = [-1, groups, shape[1] // groups * shape[2]]
        query = tf.reshape(_scaled(query), [*grouped, query.shape[-1]])
        scores = tf.reshape(tf.matmul(query, key, transpose_b=True), [*shape[:3], key.shape[2]])
        weights = _weights(scores, allowed, full, dropout, training)
        return tf.reshape(tf.matmul(tf.reshape(weights, [*grouped, key.shape[2]]), value), shape)

    def join(self, heads: tf.Tensor, product: Product) -> tf.Tensor:
        return super().join(tf.transpose(heads, [0, 2, 1, 3]), product)


IMPLEMENTATIONS = {"fused": Fused(), "positions_first": PositionsFirst(), "plain": Plain()}


def _scaled(query: tf.Tensor) -> tf.Tensor:
    return query * query.shape[-1] ** -0.5


def _weights(
    scores: tf.Tensor, allowed: tf.Tensor, full: tf.DType, dropout: Dropout | None, training: bool
) -> tf.Tensor:
    """Computes the softmax, with dropout, of scores [b, heads, q, m] in the precision of products."""
    wide = tf.cast(scores, full)
    weights = tf.nn.softmax(tf.where(allowed, wide, tf.constant(MASKED, full)))
    return drop(dropout, tf.cast(weights, scores.dtype), training)


def sides(x: tf.Tensor) -> list[int | tf.Tensor]:
    """Returns the shape of `x`, its static sizes as numbers."""
    return [tf.shape(x)[i] if size is None else size for i, size in enumerate(x.shape)]


def _transposed(x: tf.Tensor, order: tuple[int, ...]) -> tf.Tensor:
    return x if order == tuple(range(len(order))) else tf.transpose(x, order)
