"""MagmaDNN's perceptron in JAX, with the steps fused by `lax.scan`; run it in an interpreter that has JAX."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp

BATCH, COUNT, UNITS, RATE, DECAY = 100, 60000, 528, 0.05, 0.001


def logits(weights: list, x: jax.Array) -> jax.Array:
    for kernel, bias in weights[:-1]:
        x = jax.nn.sigmoid(x @ kernel + bias)
    return x @ weights[-1][0] + weights[-1][1]


def loss_of(weights: list, x: jax.Array, labels: jax.Array) -> jax.Array:
    logs = jax.nn.log_softmax(logits(weights, x))
    return -jnp.mean(jnp.take_along_axis(logs, labels[:, None], 1))


@functools.partial(jax.jit, static_argnums=4, donate_argnums=0)
def train(weights: list, images: jax.Array, labels: jax.Array, key: jax.Array, steps: int) -> tuple:
    """Trains `steps` steps over a fresh permutation."""
    order = jax.random.permutation(key, COUNT)

    def step(weights: list, i: jax.Array) -> tuple:
        rows = jax.lax.dynamic_slice(order, [i % (COUNT // BATCH) * BATCH], [BATCH])
        loss, gradients = jax.value_and_grad(loss_of)(weights, images[rows], labels[rows])
        moved = [(k - RATE * (dk + DECAY * k), b - RATE * db) for (k, b), (dk, db) in zip(weights, gradients)]
        return moved, loss

    return jax.lax.scan(step, weights, jnp.arange(steps))


def make() -> tuple[Callable[[int], object], dict[str, object]]:
    """Returns (function that trains N steps, facts about the contender)."""
    key, calls = jax.random.key(0), itertools.count()
    sizes = [784, *[UNITS] * 4, 10]
    weights = [
        (jax.random.normal(jax.random.fold_in(key, i), [m, n]) * (1 / m) ** 0.5, jnp.zeros([n]))
        for i, (m, n) in enumerate(zip(sizes, sizes[1:]))
    ]
    images = jax.random.uniform(key, [COUNT, 784])
    labels = jax.random.randint(key, [COUNT], 0, 10)

    def run(steps: int) -> None:
        nonlocal weights
        weights, losses = train(weights, images, labels, jax.random.fold_in(key, next(calls)), steps)
        losses.block_until_ready()

    return run, {"version": jax.__version__}
