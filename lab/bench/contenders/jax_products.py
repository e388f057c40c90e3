"""Matrix products in JAX; run it in an interpreter that has JAX.

Arguments: precision, then shapes as ROWSxINNERxCOLUMNS.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16}


def make(precision: str, *shapes: str) -> tuple[Callable[[int], None], dict[str, object]]:
    """Returns (function that computes all the products N times, facts about the contender)."""
    pairs = []
    for i, shape in enumerate(shapes):
        m, k, n = map(int, shape.split("x"))
        keys = jax.random.split(jax.random.key(i))
        sides = [jax.random.uniform(key, size) for key, size in zip(keys, ([m, k], [k, n]))]
        pairs.append([side.astype(DTYPES[precision]) for side in sides])
    product = jax.jit(jnp.matmul)

    def run(steps: int) -> None:
        for _ in range(steps):
            for left, right in pairs:
                product(left, right).block_until_ready()

    return run, {"version": jax.__version__}
