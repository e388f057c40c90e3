"""Builds Llama 3.1: a decoder of RMSNorm, rotary positions, grouped queries and SwiGLU ("The Llama 3 Herd of Models").

A token's vector passes the layers; each adds its attention's and its feed-forward network's result:

    tokens -> embedding -> [ + attention(norm) -> + feed_forward(norm) ] x layers -> norm -> head -> logits

There are no biases and there is no dropout. The embedding and the head are two tables. Activations are [b, n, width] in
the precision of products; weights, norms, rotations and softmax have full precision.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras

from common.distributed import fully_sharded
from common.distributed.replicas.base import Replicas
from common.layers import rope
from common.layers.dense import rows
from common.layers.precision import Precision
from common.layers.recompute import recomputed
from common.layers.rms_norm import rms_normalized
from common.layers.seeds import seeds
from llama31_8b import attention
from llama31_8b.config import Config

# Llama 3.1's rotary positions, as `rope.frequencies` takes them (NVIDIA/NeMo v2.1.0
# nemo/collections/llm/gpt/model/llama.py: Llama31Config8B, apply_rope_scaling).
ROPE = {"base": 500_000.0, "factor": 8.0, "low": 1.0, "high": 4.0, "length": 8192}
# Added to the mean square of a normalization (LlamaConfig.layernorm_epsilon there).
NORM_EPSILON = 1e-5


def build(config: Config, replicas: Replicas, precision: Precision) -> Llama:
    """Builds the network: tokens int32 [b, n] -> logits [b, n, vocabulary] in `precision.variable`."""
    return Llama(config, replicas, precision)


class Llama(tf_keras.Model):
    """The network. A call on tokens [b, n] returns the logits of each token's successor.

    Attributes:
      embedding, decoders, norm, head: its layers.
    """

    def __init__(self, config: Config, replicas: Replicas, precision: Precision):
        parts = Parts(config, replicas, precision)
        embedding, positions = Embedding(parts, name="embedding"), Positions(parts, name="positions")
        decoders = [Decoder(parts, positions, name=f"layer_{i}") for i in range(config.layers)]
        norm, head = Norm(parts, name="norm"), Head(parts, name="head")
        tokens = replicas.model_input([config.sequence_length], config.micro_batch_size, tf.int32)
        x = embedding(tokens)
        for decoder in decoders:
            x = decoder(x)
        super().__init__(tokens, head(norm(x)), name=config.model)
        self.embedding, self.decoders, self.norm, self.head = embedding, decoders, norm, head

    def features(self, tokens: tf.Tensor) -> tf.Tensor:
        """Computes what the head multiplies, [b, n, width], from tokens [b, n]."""
        x = self.embedding(tokens)
        for decoder in self.decoders:
            x = decoder(x)
        return self.norm(x)


class Parts:
    """What the layers share: configuration, backend, precision, and a seed for each initial weight.

    Attributes:
      sharded: whether each replica holds a part of every weight.
    """

    def __init__(self, config: Config, replicas: Replicas, precision: Precision):
        self.config, self.replicas, self.precision = config, replicas, precision
        self.sharded = config.shard_weights and replicas.shards_weights
        self._seeds = seeds(config.seed)

    def normal(self, deviation: float) -> tf_keras.initializers.Initializer:
        return tf_keras.initializers.RandomNormal(stddev=deviation, seed=next(self._seeds))


class _Layer(tf_keras.layers.Layer):
    """A layer whose weights have full precision."""

    def __init__(self, parts: Parts, name: str):
        super().__init__(name=name, dtype=parts.precision.full, autocast=False)
        self.parts, self.config, self.precision = parts, parts.config, parts.precision

    def matrix(self, name: str, rows: int, columns: int, deviation: float) -> tf.Variable:
        return self._weight(name, [rows, columns], self.parts.normal(deviation))

    def gain(self, name: str) -> tf.Variable:
        return self._weight(name, [self.config.width], tf_keras.initializers.Ones())

    def _weight(self, name: str, shape: list[int], initial: tf_keras.initializers.Initializer) -> tf.Variable:
        """Returns a weight, or this replica's part of it."""
        name, dtype = f"{self.name}/{name}", self.precision.variable
        if not self.parts.sharded:
            return self.add_weight(name, shape=shape, initializer=initial)
        return fully_sharded.create(self.parts.replicas, lambda: initial(shape, dtype), shape, dtype, name)

    def whole(self, weight: tf.Variable, part: tf.Tensor | None = None) -> tf.Tensor:
        """Returns a weight; gathers it if replicas hold parts, `part` or else the variable's value."""
        part = tf.convert_to_tensor(weight) if part is None else part
        if not self.parts.sharded:
            return part
        shape, full = fully_sharded.shape_of(weight), self.precision.variable
        compute = self.precision.compute if len(shape) > 1 else full  # Norms have full precision.
        wire = tf.bfloat16 if self.config.communication.wire == "bf16_sum" else full
        return fully_sharded.gathered(self.parts.replicas, part, shape, compute, wire)


class Embedding(_Layer):
    """Looks up tokens [b, n] -> [b, n, width]."""

    kinds = {"table": "embedding"}

    def __init__(self, parts: Parts, name: str):
        super().__init__(parts, name)
        config = parts.config
        self.table = self.matrix("table", config.vocab_size, config.width, config.init_std)

    def call(self, tokens: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.gather(self.whole(self.table), tokens), self.precision.compute)


class Positions(_Layer):
    """Holds the rotations of all positions, as variables: XLA would write constants out in every layer."""

    def __init__(self, parts: Parts, name: str):
        super().__init__(parts, name)
        turns = rope.frequencies(parts.config.head_size, **ROPE)
        for label, table in zip(("cosine", "sine"), rope.tables(parts.config.sequence_length, turns)):
            initial = tf_keras.initializers.Constant(table)
            setattr(
                self,
                label,
                self.add_weight(f"{name}/{label}", table.shape, initializer=initial, trainable=False),
            )


class Weights(NamedTuple):
    """The weights of a layer.

    Attributes:
      attention_norm, ffn_norm: gains [width].
      qkv: [width, (heads + 2 kv_heads) * size]: the heads of queries, of keys, of values.
      output: [heads * size, width].
      gate_up: [width, 2 hidden]: the gate, then what it multiplies.
      down: [hidden, width].
    """

    attention_norm: Any
    qkv: Any
    output: Any
    ffn_norm: Any
    gate_up: Any
    down: Any


class Decoder(_Layer):
    """One layer: x + attention(norm(x)), then x + feed_forward(norm(x)); [b, n, width] -> the same."""

    kinds = {
        "attention_norm": "norm", "qkv": "kernel", "output_kernel": "kernel",
        "ffn_norm": "norm", "gate_up": "kernel", "down": "kernel",
    }  # fmt: skip

    def __init__(self, parts: Parts, positions: Positions, name: str):
        super().__init__(parts, name)
        config = parts.config
        width, hidden, std = config.width, config.hidden, config.init_std
        heads, all_heads = config.heads, config.heads + 2 * config.kv_heads
        self.positions = positions
        self.attention_norm = self.gain("attention_norm")
        self.qkv = self.matrix("qkv", width, all_heads * config.head_size, std)
        self.output_kernel = self.matrix("output", heads * config.head_size, width, config.residual_std)
        self.ffn_norm = self.gain("ffn_norm")
        self.gate_up = self.matrix("gate_up", width, 2 * hidden, std)
        self.down = self.matrix("down", hidden, width, config.residual_std)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        weights = (self.attention_norm, self.qkv, self.output_kernel, self.ffn_norm, self.gate_up, self.down)
        tables = [tf.convert_to_tensor(table) for table in (self.positions.cosine, self.positions.sine)]

        def layer(x: tf.Tensor, *parts: tf.Tensor) -> tf.Tensor:
            whole = map(self.whole, weights, parts)
            return decoded(self.parts, x, Weights(*whole), *tables)

        if self.config.recompute:
            return recomputed(layer, x, *weights)
        return layer(x, *map(tf.convert_to_tensor, weights))


def decoded(parts: Parts, x: tf.Tensor, weights: Weights, cosine: tf.Tensor, sine: tf.Tensor) -> tf.Tensor:
    """Computes a layer: [b, n, width] -> [b, n, width]; `cosine` and `sine` are `rope.tables`."""
    config = parts.config
    joined = _product(rms_normalized(x, weights.attention_norm, NORM_EPSILON), weights.qkv)
    heads = tf.reshape(joined, [-1, x.shape[1], config.heads + 2 * config.kv_heads, config.head_size])
    query, key, value = tf.split(heads, [config.heads, config.kv_heads, config.kv_heads], 2)
    query, key = rope.rotated(query, cosine, sine), rope.rotated(key, cosine, sine)
    attended = attention.causal(parts.config, parts.replicas, parts.precision, query, key, value)
    x += _product(tf.reshape(attended, [-1, *attended.shape[1:2], config.width]), weights.output)

    gate, up = tf.split(_product(rms_normalized(x, weights.ffn_norm, NORM_EPSILON), weights.gate_up), 2, -1)
    return x + _product(tf.nn.silu(gate) * up, weights.down)


def _product(x: tf.Tensor, matrix: tf.Tensor) -> tf.Tensor:
    """Multiplies [b, n, k] by a matrix [k, m] in the dtype of `x` -> [b, n, m]."""
    product = tf.matmul(rows(x), tf.cast(matrix, x.dtype))
    return tf.reshape(product, [-1, x.shape[1], matrix.shape[1]])


class Norm(_Layer):
    """The normalization after the last layer."""

    kinds = {"gamma": "norm"}

    def __init__(self, parts: Parts, name: str):
        super().__init__(parts, name)
        self.gamma = self.gain("gamma")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return rms_normalized(x, self.whole(self.gamma), NORM_EPSILON)


class Head(_Layer):
    """Multiplies by the output table: [b, n, width] -> logits [b, n, vocabulary] in full precision."""

    def __init__(self, parts: Parts, name: str):
        super().__init__(parts, name)
        config = parts.config
        self.kernel = self.matrix("kernel", config.width, config.vocab_size, config.init_std)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return tf.cast(_product(x, self.whole(self.kernel)), self.precision.variable)
