"""Matrix products in TensorFlow: the peak for kernels.py, and the counterpart of jax_products.py.

Arguments: precision, then shapes as ROWSxINNERxCOLUMNS.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

DTYPES = {"fp32": tf.float32, "bf16": tf.bfloat16}


def make(precision: str, *shapes: str) -> tuple[Callable[[int], None], dict[str, object]]:
    """Returns (function that computes all the products N times, facts about the contender)."""
    pairs = []
    for i, shape in enumerate(shapes):
        m, k, n = map(int, shape.split("x"))
        sides = [tf.random.stateless_uniform(size, [i, j]) for j, size in enumerate(([m, k], [k, n]))]
        pairs.append([tf.cast(side, DTYPES[precision]) for side in sides])

    def run(steps: int) -> None:
        for _ in range(steps):
            for left, right in pairs:
                tf.raw_ops.MatMul(a=left, b=right)  # On a CPU this returns only when the product is done.

    return run, {"version": tf.__version__}
