"""Flax's ResNet-50 with optax's SGD or LARS, written as a flax user would: bf16 layers, fp32 weights and logits.

Convolutions, batch norm over the whole batch and initializers are flax.linen's; the images come normalized. Momentum is
0.9, label smoothing 0.1. Weight decay is 1e-4: SGD has it in the loss, LARS in its update. As in this project's preset,
only kernels decay and have a trust ratio.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

CLASSES, SIZE = 1000, 224
BLOCKS = (3, 4, 6, 3)


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution, with a shortcut."""

    filters: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        conv = partial(nn.Conv, use_bias=False, dtype=jnp.bfloat16)
        norm = partial(
            nn.BatchNorm, use_running_average=False, momentum=0.9, epsilon=1e-5, dtype=jnp.bfloat16
        )
        wide, strides = 4 * self.filters, (self.stride, self.stride)
        y = nn.relu(norm()(conv(self.filters, (1, 1))(x)))
        y = nn.relu(norm()(conv(self.filters, (3, 3), strides, padding=1)(y)))
        y = norm(scale_init=nn.initializers.zeros)(conv(wide, (1, 1))(y))
        if x.shape != y.shape:
            x = norm()(conv(wide, (1, 1), strides)(x))
        return nn.relu(x + y)


class ResNet50(nn.Module):
    """Normalized images [b, 224, 224, 3] -> logits [b, 1000], fp32."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = nn.Conv(64, (7, 7), (2, 2), padding=3, use_bias=False, dtype=jnp.bfloat16)(images)
        x = nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-5, dtype=jnp.bfloat16)(x)
        x = nn.max_pool(nn.relu(x), (3, 3), (2, 2), padding="SAME")
        for stage, blocks in enumerate(BLOCKS):
            for block in range(blocks):
                x = Bottleneck(64 * 2**stage, 2 if stage and not block else 1)(x)
        return nn.Dense(CLASSES, dtype=jnp.float32)(x.astype(jnp.float32).mean((1, 2)))


DECAY = 1e-4


def _kernels(weights: Any) -> Any:
    return jax.tree.map(lambda w: w.ndim > 1, weights)


# {optimizer: (its transformation, the part of weight decay that the loss has)}.
OPTIMIZERS = {
    "sgd": (lambda: optax.sgd(0.1, momentum=0.9), DECAY),
    "lars": (
        lambda: optax.lars(
            0.1, weight_decay=DECAY, weight_decay_mask=_kernels, trust_ratio_mask=_kernels, momentum=0.9
        ),
        0.0,
    ),
}


def make_step(batch: int, optimizer: str = "sgd") -> tuple[Callable, tuple, int]:
    """Returns (step, shapes of its arguments, number of leading arguments that its first results replace)."""
    make, in_loss = OPTIMIZERS[optimizer]
    network, rule = ResNet50(), make()
    images = jax.ShapeDtypeStruct((batch, SIZE, SIZE, 3), jnp.bfloat16)
    labels = jax.ShapeDtypeStruct((batch,), jnp.int32)
    variables = jax.eval_shape(network.init, jax.random.key(0), images)
    weights, moments = variables["params"], variables["batch_stats"]

    def loss_of(weights: Any, moments: Any, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, Any]:
        logits, changed = network.apply(
            {"params": weights, "batch_stats": moments}, images, mutable=["batch_stats"]
        )
        targets = optax.smooth_labels(jax.nn.one_hot(labels, CLASSES), 0.1)
        loss = optax.softmax_cross_entropy(logits, targets).mean()
        if in_loss:
            decay = sum(jnp.sum(jnp.square(w)) for w in jax.tree.leaves(weights) if w.ndim > 1)
            loss += in_loss / 2 * decay
        return loss, changed["batch_stats"]

    def step(weights: Any, moments: Any, slots: Any, images: jax.Array, labels: jax.Array) -> tuple:
        gradient = jax.value_and_grad(loss_of, has_aux=True)
        (loss, moments), gradients = gradient(weights, moments, images, labels)
        updates, slots = rule.update(gradients, slots, weights)
        return optax.apply_updates(weights, updates), moments, slots, loss

    return step, (weights, moments, jax.eval_shape(rule.init, weights), images, labels), 3
