"""Builds the layers of the Transformer: attention, encoder and decoder layers, embeddings.

Attention is figure 2 of "Attention Is All You Need"; encoder and decoder layers are figure 1, with the normalization
before each sublayer. Activations are [b, length, width] in the precision of products; softmax and normalization run in
full precision. A decoder layer can also run one step at a time, with a cache of earlier steps' keys and values.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas
from common.layers import attention
from common.layers.dense import LastAxisDense, product_transposed, rows
from common.layers.dropout import Dropout, drop
from common.layers.layer_norm import LayerNormalization
from common.layers.precision import Precision
from common.layers.seeds import seeds
from transformer.config import Config

EPSILON = 1e-6  # Layer normalization epsilon from G6 transformer/layers/common_layers.py.


class Layers:
    """Creates layers, each with its own seed."""

    def __init__(self, config: Config, replicas: Replicas, precision: Precision):
        self.config, self.replicas, self.precision = config, replicas, precision
        self._seeds = seeds(config.seed)

    def dense(self, units: int, use_bias: bool) -> LastAxisDense:
        """Creates a matrix product; weights uniform, variance 2 / (fan-in + fan-out) (docs/sources.md, mlperf 2)."""
        return LastAxisDense(
            units, use_bias=use_bias, kernel_initializer=self._uniform(), dtype=self.precision.layer
        )

    def projection(self, count: int) -> LastAxisDense:
        """Creates `count` products of [width, width] as one; each matrix has initial weights as its own layer would."""
        initials = [self._uniform() for _ in range(count)]

        def initial(shape: list[int], dtype: tf.DType, **_: Any) -> tf.Tensor:
            return tf.concat([one([shape[0], shape[1] // count], dtype) for one in initials], 1)

        units = count * self.config.width
        return LastAxisDense(units, use_bias=False, kernel_initializer=initial, dtype=self.precision.layer)

    def _uniform(self) -> tf_keras.initializers.Initializer:
        return tf_keras.initializers.VarianceScaling(1.0, "fan_avg", "uniform", seed=next(self._seeds))

    def norm(self) -> LayerNormalization:
        return LayerNormalization(epsilon=EPSILON, dtype=self.precision.full)

    def dropout(self, rate: float) -> Dropout | None:
        seed, config = next(self._seeds), self.config
        if not rate:
            return None
        generator, dtype = config.dropout_generator, self.precision.layer
        return Dropout(self.replicas, rate, seed, config.partitions, generator, dtype=dtype)

    def residual_dropouts(self, count: int) -> list[Dropout | None]:
        return [self.dropout(self.config.residual_dropout) for _ in range(count)]

    def seed(self) -> int:
        return next(self._seeds)


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

    def __init__(self, layers: Layers):
        super().__init__(dtype=layers.precision.full, autocast=False)
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
        shape = [*attention.sides(x)[:-1], self.config.vocabulary_size]
        return tf.cast(tf.reshape(flat, shape), self.precision.variable)


@tf.custom_gradient
def _rows(table: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Gathers rows with a dense gradient, because the softmax makes the table's gradient dense anyway."""

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        flat = tf.reshape(upstream, [-1, table.shape[1]])
        return tf.math.unsorted_segment_sum(flat, tf.reshape(ids, [-1]), table.shape[0]), None

    return tf.gather(table, ids), gradient


class Heads(NamedTuple):
    """Keys and values of each head, in the order of an implementation of `common.layers.attention`."""

    key: tf.Tensor
    value: tf.Tensor


class Attention(tf_keras.layers.Layer):
    """Multi-head attention: softmax(Q K^T / sqrt(d)) V between products without bias."""

    def __init__(self, layers: Layers):
        super().__init__(dtype=layers.precision.full, autocast=False)
        self.config, self.replicas, self.precision = layers.config, layers.replicas, layers.precision
        self.heads, self.size = self.config.heads, self.config.width // self.config.heads

    def implementation(self, training: bool) -> attention.Implementation:
        """Returns how the function being traced attends to a whole sequence."""
        fusable = training and self.config.dropout_generator == "hardware"
        name = attention.select(self.replicas, self.precision, self.size, fusable=fusable)
        return attention.IMPLEMENTATIONS[name]

    def _attended(
        self,
        form: attention.Implementation,
        query: tf.Tensor,
        key: tf.Tensor,
        value: tf.Tensor,
        allowed: tf.Tensor,
        training: bool,
    ) -> tf.Tensor:
        heads = form.attend(query, key, value, allowed, self.precision.variable, self.dropout, training)
        return form.join(heads, self.output_product)


class SelfAttention(Attention):
    """Attention of a sequence's tokens to each other; one product computes queries, keys and values."""

    def __init__(self, layers: Layers):
        super().__init__(layers)
        self.query_key_value, self.output_product = layers.projection(3), layers.projection(1)
        self.dropout = layers.dropout(layers.config.attention_dropout)

    def call(
        self,
        x: tf.Tensor,
        allowed: tf.Tensor,
        training: bool = False,
        cache: Heads | None = None,
        step: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, Heads | None]:
        """Attends: [b, n, width] -> [b, n, width]; bool `allowed` broadcasts to [b, 1, n, n].

        With a cache, [b n, heads, steps, size], the n tokens are those of step `step` of n hypotheses of a sentence;
        `allowed` is [steps], and the cache returns with them filled in.
        """
        if cache is None:
            form = self.implementation(training)
            heads = form.split(x, self.query_key_value, self.heads)
            return self._attended(form, *heads, allowed, training), None
        form, at_step = attention.IMPLEMENTATIONS["plain"], (tf.range(allowed.shape[0]) == step)[:, None]
        query, *new = form.split(tf.reshape(x, [-1, 1, x.shape[-1]]), self.query_key_value, self.heads)
        cache = Heads(*(tf.where(at_step, *pair) for pair in zip(new, cache)))
        return tf.reshape(self._attended(form, query, *cache, allowed, training), x.shape), cache


class SourceAttention(Attention):
    """Attention to the encoder's output."""

    def __init__(self, layers: Layers):
        super().__init__(layers)
        self.query, self.key_value, self.output_product = map(layers.projection, (1, 2, 1))
        self.dropout = layers.dropout(layers.config.attention_dropout)

    def call(
        self, x: tf.Tensor, source: tf.Tensor | Heads, allowed: tf.Tensor, training: bool = False
    ) -> tf.Tensor:
        """Attends: [b, n, width] to [b, m, width], or to its `memory` -> [b, n, width]."""
        if isinstance(source, Heads):
            form = attention.IMPLEMENTATIONS["plain"]
        else:
            form = self.implementation(training)
            source = self.memory(source, form)
        (query,) = form.split(x, self.query, self.heads)
        return self._attended(form, query, *source, allowed, training)

    def memory(self, source: tf.Tensor, form: attention.Implementation) -> Heads:
        """Computes the keys and values of the encoder's output [b, m, width]."""
        return Heads(*form.split(source, self.key_value, self.heads))


class FeedForward(tf_keras.layers.Layer):
    """Two products with bias, ReLU and dropout between them."""

    def __init__(self, layers: Layers):
        super().__init__(dtype=layers.precision.layer)
        self.inner = layers.dense(layers.config.hidden, use_bias=True)
        self.outer = layers.dense(layers.config.width, use_bias=True)
        self.dropout = layers.dropout(layers.config.relu_dropout)

    def call(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        return self.outer(drop(self.dropout, tf.nn.relu(self.inner(x)), training))


class EncoderLayer(tf_keras.layers.Layer):
    """Self-attention, then feed-forward; each adds its result to what it reads."""

    def __init__(self, layers: Layers):
        super().__init__(dtype=layers.precision.layer)
        self.attention_norm, self.feed_forward_norm = layers.norm(), layers.norm()
        self.attention_dropout, self.feed_forward_dropout = layers.residual_dropouts(2)
        self.attention, self.feed_forward = SelfAttention(layers), FeedForward(layers)

    def call(self, x: tf.Tensor, allowed: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Encodes [b, n, width]; bool `allowed`, [b, 1, n, n], marks whom a token attends to."""
        y, _ = self.attention(self.attention_norm(x), allowed, training)
        x += drop(self.attention_dropout, y, training)
        y = self.feed_forward(self.feed_forward_norm(x), training)
        return x + drop(self.feed_forward_dropout, y, training)


class DecoderLayer(tf_keras.layers.Layer):
    """Self-attention, attention to the source, feed-forward; each adds its result to what it reads."""

    def __init__(self, layers: Layers):
        super().__init__(dtype=layers.precision.layer)
        self.attention_norm, self.source_norm, self.feed_forward_norm = (layers.norm() for _ in range(3))
        dropouts = layers.residual_dropouts(3)
        self.attention_dropout, self.source_dropout, self.feed_forward_dropout = dropouts
        self.attention, self.feed_forward = SelfAttention(layers), FeedForward(layers)
        self.source_attention = SourceAttention(layers)

    def call(
        self,
        x: tf.Tensor,
        allowed: tf.Tensor,
        source: tf.Tensor | Heads,
        source_allowed: tf.Tensor,
        training: bool = False,
        cache: Heads | None = None,
        step: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, Heads | None]:
        """Decodes whole sequences, or with a cache the next tokens of n hypotheses of each sentence.

        Args:
          x: [b, n, width].
          allowed: bool, which target tokens a token attends to: [b, 1, n, n], or [steps] of the cache.
          source: the encoder's output [b, m, width], or its `source_attention.memory`. A sentence's hypotheses are n
            queries to the same keys, so nothing is copied n times.
          source_allowed: bool, which source tokens: broadcasts to [b, 1, n, m].
          training: whether to drop.
          cache, step: see `SelfAttention`.

        Returns:
          ([b, n, width], the cache with the tokens filled in).
        """
        y, cache = self.attention(self.attention_norm(x), allowed, training, cache, step)
        x += drop(self.attention_dropout, y, training)
        y = self.source_attention(self.source_norm(x), source, source_allowed, training)
        x += drop(self.source_dropout, y, training)
        y = self.feed_forward(self.feed_forward_norm(x), training)
        return x + drop(self.feed_forward_dropout, y, training), cache


def same(segments: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Marks pairs of tokens in the same segment: [b, n] and [b, m] -> bool [b, 1, n, m]."""
    return segments[:, None, :, None] == others[:, None, None, :]
