"""Builds the layers of the Transformer: attention, encoder and decoder layers, embeddings.

Attention is figure 2 of "Attention Is All You Need"; encoder and decoder layers are figure 1, with the normalisation
before each sublayer. Activations are [b, length, width] in the precision of products; softmax and normalisation run in
full precision. A decoder layer can also run one step at a time, with a cache of earlier steps' keys and values.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas
from common.layers.dense import LastAxisDense, product, product_transposed, rows
from common.layers.dropout import Dropout, drop
from common.layers.fused_attention import fused_attention, kernel_exists
from common.layers.layer_norm import LayerNormalization
from common.layers.precision import Precision
from common.layers.xla import for_gpu, under_xla
from transformer.config import Config

EPSILON = 1e-6  # Layer normalisation epsilon from G6 transformer/layers/common_layers.py.
_MASKED = -1e9  # A score that the softmax turns into 0.
Cache = Mapping[str, tf.Tensor]


class Layers:
    """Creates layers, each with its own seed."""

    def __init__(self, config: Config, replicas: Replicas, precision: Precision):
        self.config, self.replicas, self.precision = config, replicas, precision
        self._seeds = _seeds(config.seed)

    def dense(self, units: int, use_bias: bool) -> LastAxisDense:
        """Creates a matrix product; weights uniform, variance 2 / (fan-in + fan-out) (docs/sources.md, mlperf 2)."""
        initial = tf_keras.initializers.VarianceScaling(1.0, "fan_avg", "uniform", seed=next(self._seeds))
        return LastAxisDense(units, use_bias=use_bias, kernel_initializer=initial, dtype=self.precision.layer)

    def norm(self) -> LayerNormalization:
        return LayerNormalization(epsilon=EPSILON, dtype=self.precision.full)

    def dropout(self, rate: float) -> Dropout | None:
        seed, config = next(self._seeds), self.config
        if not rate:
            return None
        generator, dtype = config.dropout_generator, self.precision.layer
        return Dropout(self.replicas, rate, seed, config.partitions, generator, dtype=dtype)

    def seed(self) -> int:
        return next(self._seeds)


def _seeds(seed: int) -> Iterator[int]:
    """Yields an independent seed for each layer."""
    for child in np.random.SeedSequence(seed).spawn(4096):
        yield int(child.generate_state(1)[0] >> 1)


def position_signal(length: int, width: int) -> np.ndarray:
    """Computes sines, then cosines, with wavelengths from 2 pi to 2 pi x 10^4: float64 [length, width].

    This is tensor2tensor's form of section 3.5, with (width/2 - 1) ratios between wavelengths.
    """
    half = width // 2
    rates = np.exp(-np.log(1e4) / max(half - 1, 1) * np.arange(half))
    angles = np.arange(length)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


class Embedding(tf_keras.layers.Layer):
    """The table that source, target and softmax share; its rows are N(0, 1 / width)."""

    kinds = {"table": "embedding"}

    def __init__(self, layers: Layers, **kwargs: Any):
        super().__init__(dtype=layers.precision.full, autocast=False, **kwargs)
        self.config, self.precision = layers.config, layers.precision
        self.initial = tf_keras.initializers.RandomNormal(stddev=self.config.width**-0.5, seed=layers.seed())

    def build(self, input_shape: tf.TensorShape) -> None:
        shape = [self.config.vocabulary_size, self.config.width]
        self.table = self.add_weight("table", shape=shape, initializer=self.initial)
        super().build(input_shape)

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        """Looks up [b, n] -> [b, n, width]: rows times sqrt(width), or zeros for id 0, in the precision of products."""
        real = tf.cast(ids != 0, self.table.dtype)[..., None]
        rows = _rows(tf.convert_to_tensor(self.table), ids)
        return tf.cast(rows * real * self.config.width**0.5, self.precision.compute)

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        """Multiplies by the table, [b, n, width] -> [b, n, vocabulary], in full precision."""
        table = tf.cast(tf.convert_to_tensor(self.table), self.precision.compute)
        flat = product_transposed(rows(x), table)
        return tf.cast(tf.reshape(flat, [*_leading(x), self.config.vocabulary_size]), self.precision.variable)

    def multiply_adds(self, input_shape: Any, output_shape: Any) -> int:
        """Returns 0, because a lookup multiplies no matrices."""
        return 0


@tf.custom_gradient
def _rows(table: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Gathers rows with a dense gradient, because the softmax makes the table's gradient dense anyway."""

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        flat = tf.reshape(upstream, [-1, table.shape[1]])
        return tf.math.unsorted_segment_sum(flat, tf.reshape(ids, [-1]), table.shape[0]), None

    return tf.gather(table, ids), gradient


def _leading(x: tf.Tensor) -> list[int | tf.Tensor]:
    """Returns all dimensions but the last."""
    return [tf.shape(x)[i] if size is None else size for i, size in enumerate(x.shape[:-1])]


class Attention(tf_keras.layers.Layer):
    """Multi-head attention: softmax(Q K^T / sqrt(d)) V, four products without bias."""

    def __init__(self, layers: Layers, **kwargs: Any):
        super().__init__(dtype=layers.precision.full, autocast=False, **kwargs)
        self.heads, self.width = layers.config.heads, layers.config.width
        self.replicas, self.precision = layers.replicas, layers.precision
        self.query, self.key, self.value, self.output_product = (
            layers.dense(self.width, use_bias=False) for _ in range(4)
        )
        self.dropout = layers.dropout(layers.config.attention_dropout)
        self.in_one_kernel = (
            layers.config.dropout_generator == "hardware"
            and self.precision.compute.size == 2
            and kernel_exists(self.width // self.heads)
        )

    def call(self, queries: tf.Tensor, memory: tf.Tensor, allowed: tf.Tensor, training: bool) -> tf.Tensor:
        """Attends: [b, q, width], [b, m, width] -> [b, q, width]; bool `allowed` broadcasts to [b, 1, q, m]."""
        if for_gpu(self.replicas) and self._one_product():
            if self.in_one_kernel and training:
                return self._fused(queries, memory, allowed)
            return self._positions_first(queries, memory, allowed, training)
        if queries is memory:
            query, key, value = self._heads(queries, self.query, self.key, self.value)
        else:
            query, (key, value) = self._split(self.query(queries)), self._heads(memory, self.key, self.value)
        return self._weighted(query, {"key": key, "value": value}, allowed, training)

    def keys_values(self, memory: tf.Tensor) -> Cache:
        """Computes {"key", "value"} of a memory [b, m, width], each [b, heads, m, width / heads]."""
        return {"key": self._split(self.key(memory)), "value": self._split(self.value(memory))}

    def attend(self, queries: tf.Tensor, memory: Cache, allowed: tf.Tensor, training: bool) -> tf.Tensor:
        """Attends to `keys_values`; shapes as in `call`."""
        return self._weighted(self._split(self.query(queries)), memory, allowed, training)

    def _one_product(self) -> bool:
        """Whether one product computes several layers, so that x's gradient is one product, not a sum of several."""
        return under_xla() and self.query.built and self.key.built and self.value.built

    def _heads(self, x: tf.Tensor, *layers: LastAxisDense) -> list[tf.Tensor]:
        """Applies several layers to x and splits the heads: [b, n, width] -> several [b, heads, n, width / heads]."""
        if not self._one_product():
            return [self._split(layer(x)) for layer in layers]
        return tf.unstack(tf.transpose(self._joined(x, layers), [2, 0, 3, 1, 4]))

    def _joined(self, x: tf.Tensor, layers: Sequence[LastAxisDense]) -> tf.Tensor:
        """Applies several layers to x in one product: [i, j, width] -> [i, j, layers, heads, width / heads]."""
        compute, size = self.precision.compute, self.width // self.heads
        kernels = tf.concat([tf.convert_to_tensor(layer.kernel) for layer in layers], 1)
        found = product(rows(tf.cast(x, compute)), tf.cast(kernels, compute))
        return tf.reshape(found, [*_leading(x), len(layers), self.heads, size])

    def _fused(self, queries: tf.Tensor, memory: tf.Tensor, allowed: tf.Tensor) -> tf.Tensor:
        """Computes `call` in training with cuDNN's kernel, which keeps no weights and draws its own dropout."""
        if queries is memory:
            heads = tf.unstack(self._joined(queries, [self.query, self.key, self.value]), axis=2)
        else:
            heads = tf.unstack(self._joined(queries, [self.query]), axis=2)
            heads += tf.unstack(self._joined(memory, [self.key, self.value]), axis=2)
        rate, seed = (self.dropout.rate, self.dropout.seed) if self.dropout else (0.0, 0)
        found = fused_attention(*heads, allowed, (self.width // self.heads) ** -0.5, rate, seed)
        return self.output_product(tf.reshape(found, [*_leading(found)[:2], self.width]))

    def _positions_first(
        self, queries: tf.Tensor, memory: tf.Tensor, allowed: tf.Tensor, training: bool
    ) -> tf.Tensor:
        """Computes `call` with activations of [n, b, width], whose heads cuBLAS finds without a copy.

        The kernels before and after read and write the other order without a pass of their own.
        """
        x = tf.transpose(queries, [1, 0, 2])
        if queries is memory:
            query, key, value = tf.unstack(self._joined(x, [self.query, self.key, self.value]), axis=2)
        else:
            (query,) = tf.unstack(self._joined(x, [self.query]), axis=2)
            memory = tf.transpose(memory, [1, 0, 2])
            key, value = tf.unstack(self._joined(memory, [self.key, self.value]), axis=2)
        scores = tf.einsum("qbhs,mbhs->bhqm", self._scaled(query), key)
        heads = tf.einsum("bhqm,mbhs->qbhs", self._weights(scores, allowed, training), value)
        found = self.output_product(tf.reshape(heads, [*_leading(heads)[:2], self.width]))
        return tf.transpose(found, [1, 0, 2])

    def _weighted(self, query: tf.Tensor, memory: Cache, allowed: tf.Tensor, training: bool) -> tf.Tensor:
        """Attends with queries of split heads, [b, heads, q, width / heads]; other shapes as in `call`."""
        scores = tf.matmul(self._scaled(query), memory["key"], transpose_b=True)
        weights = self._weights(scores, allowed, training)
        heads = tf.transpose(tf.matmul(weights, memory["value"]), [0, 2, 1, 3])
        return self.output_product(tf.reshape(heads, [*_leading(heads)[:2], self.width]))

    def _scaled(self, query: tf.Tensor) -> tf.Tensor:
        return query * (self.width // self.heads) ** -0.5

    def _weights(self, scores: tf.Tensor, allowed: tf.Tensor, training: bool) -> tf.Tensor:
        """Computes the softmax, with dropout, of scores [b, heads, q, m]."""
        scores = tf.cast(scores, self.precision.variable)
        weights = tf.nn.softmax(tf.where(allowed, scores, tf.constant(_MASKED, scores.dtype)))
        return drop(self.dropout, tf.cast(weights, self.precision.compute), training)

    def _split(self, x: tf.Tensor) -> tf.Tensor:
        """Splits the heads: [b, n, width] -> [b, heads, n, width / heads]."""
        heads = tf.reshape(x, [*_leading(x), self.heads, self.width // self.heads])
        return tf.transpose(heads, [0, 2, 1, 3])

    def products(self, queries: int, memory: int) -> int:
        """Counts the multiply-adds when `queries` rows attend to `memory` rows."""
        return self.width * (2 * self.width * (queries + memory) + 2 * queries * memory)


class FeedForward(tf_keras.layers.Layer):
    """Two products with bias, ReLU and dropout between them."""

    def __init__(self, layers: Layers, **kwargs: Any):
        super().__init__(dtype=layers.precision.layer, **kwargs)
        config = layers.config
        self.inner = layers.dense(config.hidden, use_bias=True)
        self.outer = layers.dense(config.width, use_bias=True)
        self.dropout = layers.dropout(config.relu_dropout)
        self.size = 2 * config.width * config.hidden

    def call(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        return self.outer(drop(self.dropout, tf.nn.relu(self.inner(x)), training))


class _Residual(tf_keras.layers.Layer):
    """Computes x + dropout(sublayer(norm(x))) for each sublayer of a layer."""

    def __init__(self, layers: Layers, sublayers: int, **kwargs: Any):
        super().__init__(dtype=layers.precision.layer, **kwargs)
        self.norms = [layers.norm() for _ in range(sublayers)]
        self.dropouts = [layers.dropout(layers.config.residual_dropout) for _ in range(sublayers)]
        self.precision, self.length = layers.precision, layers.config.packed_length

    def normed(self, i: int, x: tf.Tensor) -> tf.Tensor:
        return tf.cast(self.norms[i](x), self.precision.compute)

    def add(self, i: int, x: tf.Tensor, y: tf.Tensor, training: bool) -> tf.Tensor:
        return x + drop(self.dropouts[i], y, training)


class EncoderLayer(_Residual):
    """Self-attention, then feed-forward."""

    def __init__(self, layers: Layers, **kwargs: Any):
        super().__init__(layers, 2, **kwargs)
        self.attention, self.feed_forward = Attention(layers), FeedForward(layers)

    def call(self, x: tf.Tensor, segments: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Encodes [b, n, width]; a token attends to the tokens of its own segment, int32 [b, n]."""
        y = self.normed(0, x)
        x = self.add(0, x, self.attention(y, y, same(segments, segments), training), training)
        return self.add(1, x, self.feed_forward(self.normed(1, x), training), training)

    def multiply_adds(self, input_shape: Any, output_shape: Any) -> int:
        """Counts the multiply-adds of one packed sequence."""
        return self.attention.products(self.length, self.length) + self.length * self.feed_forward.size


class DecoderLayer(_Residual):
    """Causal self-attention, attention to the source, feed-forward."""

    def __init__(self, layers: Layers, **kwargs: Any):
        super().__init__(layers, 3, **kwargs)
        self.attention, self.feed_forward = Attention(layers), FeedForward(layers)
        self.source_attention = Attention(layers) if layers.config.attend_source else None

    def call(
        self,
        x: tf.Tensor,
        source: tf.Tensor,
        segments: tf.Tensor,
        source_segments: tf.Tensor,
        training: bool = False,
    ) -> tf.Tensor:
        """Decodes: [b, n, width], the encoder's [b, m, width] -> [b, n, width]; segments are int32 [b, n], [b, m]."""
        length = x.shape[1]
        before = tf.linalg.band_part(tf.ones([length, length], tf.bool), -1, 0)
        y = self.normed(0, x)
        allowed = same(segments, segments) & before
        x = self.add(0, x, self.attention(y, y, allowed, training), training)
        if self.source_attention:
            allowed = same(segments, source_segments)
            y = self.source_attention(self.normed(1, x), source, allowed, training)
            x = self.add(1, x, y, training)
        return self.add(2, x, self.feed_forward(self.normed(2, x), training), training)

    def empty_cache(self, rows: int | tf.Tensor, steps: int) -> Cache:
        """Creates an empty cache of keys and values for `rows` hypotheses of up to `steps` steps."""
        shape = [rows, self.attention.heads, steps, self.attention.width // self.attention.heads]
        return {name: tf.zeros(shape, self.precision.compute) for name in ("key", "value")}

    def source_cache(self, source: tf.Tensor) -> Cache:
        """Computes the keys and values of the encoder's output, which all steps share."""
        return self.source_attention.keys_values(source) if self.source_attention else {}

    def step(
        self, x: tf.Tensor, index: tf.Tensor, cache: Cache, source: Cache, allowed: tf.Tensor
    ) -> tuple[tf.Tensor, Cache]:
        """Decodes one token of each hypothesis.

        Args:
          x: [b, k, width], the k hypotheses of each sentence.
          index: scalar int32, the step number from 0.
          cache: from `empty_cache`, with b * k rows and the earlier steps filled in.
          source: from `source_cache`.
          allowed: bool [b, 1, 1, m], False for source tokens that are padding.

        Returns:
          ([b, k, width], the cache with this step filled in).
        """
        rows, width = cache["key"].shape[0], self.attention.width
        y = tf.reshape(self.normed(0, x), [rows, 1, width])
        here = tf.range(cache["key"].shape[2])[:, None] == index
        new = self.attention.keys_values(y)
        cache = {name: tf.where(here, new[name], cache[name]) for name in cache}
        before = tf.range(cache["key"].shape[2]) <= index
        x += tf.reshape(self.attention.attend(y, cache, before, False), x.shape)
        if self.source_attention:
            # A sentence's k hypotheses are k queries to the same keys, so nothing is copied k times.
            x += self.source_attention.attend(self.normed(1, x), source, allowed, False)
        return x + self.feed_forward(self.normed(2, x), False), cache

    def multiply_adds(self, input_shape: Any, output_shape: Any) -> int:
        """Counts the multiply-adds of one packed sequence."""
        attentions = 2 if self.source_attention else 1
        products = self.attention.products(self.length, self.length)
        return attentions * products + self.length * self.feed_forward.size


def same(segments: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Marks pairs of tokens in the same segment: [b, n] and [b, m] -> bool [b, 1, n, m]."""
    return segments[:, None, :, None] == others[:, None, None, :]
