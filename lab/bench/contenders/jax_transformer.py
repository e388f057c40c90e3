"""A Transformer of flax's attention with optax's Adam, written as a flax user would: bf16 layers, fp32 weights.

The network is this project's: pre-norm; one table for source, target and softmax; masks that separate packed sentences;
dropout after embeddings, attention weights, ReLU and sublayers. Positions are a constant signal. Random numbers come
from jax's threefry or the device's generator ("rbg").
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

dense = partial(nn.Dense, dtype=jnp.bfloat16)
norm = partial(nn.LayerNorm, epsilon=1e-6, dtype=jnp.bfloat16)


class Sublayers(nn.Module):
    """One layer: self-attention, in the decoder attention to the source, then two dense layers with ReLU between."""

    sizes: tuple

    @nn.compact
    def __call__(self, x: jax.Array, masks: list[jax.Array], source: jax.Array | None = None) -> jax.Array:
        _, width, hidden, heads, _, rate = self.sizes

        def dropped(y: jax.Array) -> jax.Array:
            return nn.Dropout(rate, deterministic=False)(y)

        for mask, memory in zip(masks, (None, source)):
            y = norm()(x)
            attention = nn.MultiHeadDotProductAttention(
                heads,
                dtype=jnp.bfloat16,
                use_bias=False,
                dropout_rate=rate,
                broadcast_dropout=False,
                deterministic=False,
            )
            x = x + dropped(attention(y, y if memory is None else memory, mask=mask))
        y = dense(width)(dropped(nn.relu(dense(hidden)(norm()(x)))))
        return x + dropped(y)


class Transformer(nn.Module):
    """Token ids and segments of source and target, int32 [b, n] each -> logits [b, n, vocabulary], fp32."""

    sizes: tuple

    @nn.compact
    def __call__(
        self, source: jax.Array, target: jax.Array, source_segments: jax.Array, target_segments: jax.Array
    ) -> jax.Array:
        layers, width, _, _, vocabulary, rate = self.sizes
        initial = nn.initializers.normal(width**-0.5)
        table = nn.Embed(vocabulary, width, dtype=jnp.bfloat16, embedding_init=initial)
        signal = jnp.sin(jnp.arange(source.shape[1])[:, None] / 1e4 ** (jnp.arange(width) / width))

        def embedded(ids: jax.Array) -> jax.Array:
            x = table(ids) * width**0.5 + signal.astype(jnp.bfloat16)
            return nn.Dropout(rate, deterministic=False)(x)

        def pairs(queries: jax.Array, keys: jax.Array) -> jax.Array:
            return nn.make_attention_mask(queries, keys, jnp.equal, dtype=bool)

        x, mask = embedded(source), pairs(source_segments, source_segments)
        for _ in range(layers):
            x = Sublayers(self.sizes)(x, [mask])
        memory = norm()(x)
        before = nn.make_causal_mask(target, dtype=bool)
        masks = [
            nn.combine_masks(before, pairs(target_segments, target_segments), dtype=bool),
            pairs(target_segments, source_segments),
        ]
        y = embedded(target)
        for _ in range(layers):
            y = Sublayers(self.sizes)(y, masks, memory)
        return table.attend(norm()(y)).astype(jnp.float32)


def make_step(
    batch: int, length: int, sizes: list, generator: str = "threefry2x32"
) -> tuple[Callable, tuple, int]:
    """Returns (step, shapes of its arguments, number of leading arguments that its first results replace).

    `sizes`: layers, width, hidden, heads, vocabulary, dropout rate; `generator`: the name of a jax generator.
    """
    network = Transformer(tuple(sizes))
    optimizer = optax.adam(1e-3, b1=0.9, b2=0.98, eps=1e-9)
    tokens = [jax.ShapeDtypeStruct((batch, length), jnp.int32)] * 4
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    weights = jax.eval_shape(network.init, keys, *tokens)["params"]

    def step(weights: Any, slots: Any, labels: jax.Array, seed: jax.Array, *tokens: jax.Array) -> tuple:
        key = jax.random.key(seed, impl=generator)

        def loss_of(weights: Any) -> jax.Array:
            logits = network.apply({"params": weights}, *tokens, rngs={"dropout": key})
            targets = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1]), 0.1)
            real = (labels > 0).astype(jnp.float32)
            return jnp.sum(optax.softmax_cross_entropy(logits, targets) * real) / jnp.sum(real)

        loss, gradients = jax.value_and_grad(loss_of)(weights)
        updates, slots = optimizer.update(gradients, slots, weights)
        return optax.apply_updates(weights, updates), slots, loss

    seed = jax.ShapeDtypeStruct((), jnp.int32)
    return step, (weights, jax.eval_shape(optimizer.init, weights), tokens[0], seed, *tokens), 2
