"""Worst errors of the optimizers' iterations with float32 products whose operands are rounded as devices round them.

23 bits are float32's own, 10 are TF32's on a GPU, 7 are bfloat16's on a TPU. Each row is compiled by XLA and compared
with float64, relative to the largest element.

    python -m lab.bench.precision
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from common.config.schema import Optimizer
from common.optim import muon, optimizers, shampoo, soap
from lab.bench.harness.rounding import BF16, FLOAT32, TF32, rounding

BITS = (FLOAT32, TF32, BF16)
_SIZE, _STEPS = 64, 12


def _sums(rank: int) -> np.ndarray:
    """A sum G G' of a given rank, [1, 128, 128]."""
    x = np.random.default_rng(0).normal(size=(1, 128, rank))
    return x @ x.transpose(0, 2, 1)


def _steps(name: str, **fields: float) -> Callable[[np.dtype], tf.Tensor]:
    """Returns a function that runs 12 steps of a rule on a kernel [64, 64], with gradients of a low rank."""
    rule = optimizers.rule(Optimizer(name, epsilon=1e-8, **fields))
    rule = rule.matrices.rule if rule.matrices else rule

    def run(dtype: np.dtype) -> tf.Tensor:
        rng = np.random.default_rng(1)
        weight = tf.constant(rng.normal(size=(1, _SIZE, _SIZE)), dtype)
        slots = rule.init(weight)
        for step in range(_STEPS):
            factors = rng.normal(size=(2, _SIZE, 4))
            gradient = tf.constant((factors[0] @ factors[1].T)[None], dtype)
            weight, slots = rule.update(
                weight,
                gradient,
                slots,
                tf.constant(0.01, dtype),
                tf.constant(step),
                optimizers.Whole("kernel"),
            )
        return weight

    return run


def _power_step(dtype: np.dtype) -> tf.Tensor:
    """The projector on the first eight vectors of SOAP's basis after six power steps: the vectors' signs are free."""
    matrix, basis = tf.constant(_sums(10), dtype), tf.eye(128, batch_shape=[1], dtype=dtype)
    for _ in range(6):
        basis, _ = soap._power_step(matrix, basis)
    return tf.matmul(
        tf.cast(basis[..., :8], tf.float64), tf.cast(basis[..., :8], tf.float64), transpose_b=True
    )


# Row: what runs, as a function of the dtype.
ROWS: dict[str, Callable[[np.dtype], tf.Tensor]] = {
    "Shampoo's root, rank 10": lambda dtype: shampoo.inverse_root(tf.constant(_sums(10), dtype), 1e-6)[0],
    "Shampoo's root, rank 1,000": lambda dtype: shampoo.inverse_root(tf.constant(_sums(1000), dtype), 1e-6)[
        0
    ],
    "SOAP's power steps and QR": _power_step,
    "Muon's Newton-Schulz": lambda dtype: muon.orthogonalised(tf.constant(_sums(1000), dtype), 5),
    "shampoo, 12 steps": _steps("shampoo", root_interval=3, matrix_block=_SIZE),
    "soap, 12 steps": _steps("soap", root_interval=3, matrix_block=_SIZE),
    "muon, 12 steps": _steps("muon"),
    "lars, 12 steps": _steps("lars", weight_decay=1e-4),
    "lamb, 12 steps": _steps("lamb", weight_decay=1e-4),
}


def worst(name: str, bits: int, compiled: bool = True) -> float:
    """Returns a row's largest error, relative to the largest element of the float64 result; inf if it is not finite."""
    function = ROWS[name]
    exact = function(np.float64).numpy()
    with rounding(bits):
        traced = tf.function(lambda: function(np.float32), jit_compile=compiled, autograph=False)
        error = np.abs(traced().numpy() - exact).max() / np.abs(exact).max()
    return float(error) if np.isfinite(error) else float("inf")


def main() -> None:
    print("| | " + " | ".join(f"{bits} bits" for bits in BITS) + " |\n|---" * 1 + "|---" * len(BITS) + "|")
    for name in ROWS:
        print(f"| {name} | " + " | ".join(f"{worst(name, bits):.1e}" for bits in BITS) + " |", flush=True)


if __name__ == "__main__":
    main()
