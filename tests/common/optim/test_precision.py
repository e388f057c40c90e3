"""Tests what iterates with products whose operands lose bits, as on GPUs (10 remain) and TPUs (7 remain).

23 bits are float32's own. Each row is compiled by XLA and compared with float64, relative to the largest element.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import gen_linalg_ops, gen_math_ops, gen_nn_ops

from common.config.rules import OPTIMIZERS
from common.detection import boxes, roi_align
from common.layers import batch_norm_compiled, cross_entropy, layer_norm, products
from common.optim import optimizers

FLOAT32, TF32, BF16 = 23, 10, 7
# TensorFlow's operations by module, and which of their arguments are operands. Gradients call the same functions.
_OPERATIONS = {
    gen_math_ops: dict.fromkeys(("mat_mul", "batch_mat_mul", "batch_mat_mul_v2", "batch_mat_mul_v3"), (0, 1)),
    gen_linalg_ops: {"einsum": (0,)},
    gen_nn_ops: {
        **dict.fromkeys(("conv2d", "conv3d", "depthwise_conv2d_native"), (0, 1)),
        **dict.fromkeys(("conv2d_backprop_input", "conv3d_backprop_input_v2"), (1, 2)),
        **dict.fromkeys(("conv2d_backprop_filter", "conv3d_backprop_filter_v2"), (0, 2)),
    },
}
_SIZE, _STEPS = 64, 12


def _cut(x: tf.Tensor, bits: int) -> tf.Tensor:
    lost = FLOAT32 - bits
    word = tf.bitcast(x, tf.int32)
    last = tf.bitwise.bitwise_and(tf.bitwise.right_shift(word, lost), 1)
    word = tf.bitwise.bitwise_and(word + last + ((1 << (lost - 1)) - 1), -(1 << lost))
    return tf.where(tf.math.is_finite(x), tf.bitcast(word, tf.float32), x)


def rounded(x: Any, bits: int) -> Any:
    """Returns a float32 tensor, or each of a list, rounded to nearest even at `bits` of the mantissa."""
    if isinstance(x, list | tuple):
        return type(x)(rounded(one, bits) for one in x)
    x = tf.convert_to_tensor(x)
    if x.dtype != tf.float32 or bits == FLOAT32:
        return x
    return tf.custom_gradient(lambda x: (_cut(x, bits), lambda upstream: upstream))(x)


@contextlib.contextmanager
def rounding(bits: int) -> Iterator[None]:
    """What is traced or called meanwhile rounds the operands of float32 products and convolutions to `bits`.

    A product that asks XLA for the highest precision is not rounded. Outside XLA, devices count as GPUs.
    """
    with contextlib.ExitStack() as stack:
        for module, operations in _OPERATIONS.items():
            for name, places in operations.items():
                whole = getattr(module, name)
                stack.enter_context(mock.patch.object(module, name, _rounds(whole, places, bits)))
        if bits < FLOAT32:
            stack.enter_context(mock.patch.object(products, "rounds", lambda: True))
        yield


def _rounds(operation: Callable, places: tuple[int, ...], bits: int) -> Callable:
    names = list(operation.__wrapped__.__code__.co_varnames) if hasattr(operation, "__wrapped__") else []

    @functools.wraps(operation)
    def call(*arguments: Any, **keywords: Any) -> Any:
        arguments = tuple(rounded(x, bits) if i in places else x for i, x in enumerate(arguments))
        for name in (names[i] for i in places if i < len(names)):
            if name in keywords:
                keywords[name] = rounded(keywords[name], bits)
        return operation(*arguments, **keywords)

    return call


def _steps(name: str, **fields: float) -> Callable[[np.dtype], tf.Tensor]:
    """Returns a function that runs 12 steps of a rule on a kernel [64, 64], with gradients of a low rank."""
    rule = optimizers.rule(OPTIMIZERS.make(name, **fields))

    def run(dtype: np.dtype) -> tf.Tensor:
        rng = np.random.default_rng(1)
        weight = tf.constant(rng.normal(size=(1, _SIZE, _SIZE)), dtype)
        slots = rule.init(weight)
        for step in range(_STEPS):
            factors = rng.normal(size=(2, _SIZE, 4))
            gradient = tf.constant((factors[0] @ factors[1].T)[None], dtype)
            weight, slots = rule.update(
                optimizers.WeightState(
                    weight,
                    gradient,
                    slots,
                    tf.constant(0.01, dtype),
                    tf.constant(step),
                    optimizers.Whole("kernel"),
                )
            )
        return weight

    return run


def _normal(shape: Sequence[int], dtype: np.dtype, mean: float = 0.0) -> tf.Tensor:
    return tf.constant(np.random.default_rng(2).normal(mean, 1, shape), dtype)


def _normalized(kind: str) -> Callable[[np.dtype], tf.Tensor]:
    """A norm in XLA's form and its gradient, of values whose mean is 30 standard deviations."""

    def run(dtype: np.dtype) -> tf.Tensor:
        x, ones = _normal([64, 1024], dtype, 30), tf.ones([1024], dtype)
        with tf.GradientTape() as tape:
            tape.watch(x)
            if kind == "layer":
                y = layer_norm.normalized(x, ones, 0 * ones, 1e-5)
            else:
                y, *_ = batch_norm_compiled.normalize(tf.transpose(x), ones[:64], 0 * ones[:64], 1e-5, False)
                y = tf.transpose(y)
            loss = tf.reduce_sum(y * y * y)
        return tf.concat([y, tape.gradient(loss, x) / 10], 0)

    return run


def _losses(dtype: np.dtype) -> tf.Tensor:
    """Losses and gradients over 10,000 classes, each relative to about 1."""
    logits, targets = 5 * _normal([64, 10_000], dtype), tf.range(64)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        losses = cross_entropy.sparse_cross_entropy(logits, targets, 0.1)
    return tf.concat([losses / 20, tf.reshape(tape.gradient(losses, logits), [-1])], 0)


def _metric(dtype: np.dtype) -> tf.Tensor:
    """A sum over 200,000 examples in batches, as an evaluation adds it, relative to its value."""
    parts = tf.abs(_normal([2000, 100], dtype))
    total = tf.zeros([], dtype)
    return tf.scan(lambda total, part: total + tf.reduce_sum(part), parts, total)[-1:]


def _boxes(dtype: np.dtype) -> tuple[tf.Tensor, tf.Tensor]:
    """Boxes [1, 16, 4] in pixels and masks [1, 16, 28, 28] of 0 and 1."""
    rng = np.random.default_rng(3)
    corner, side = rng.uniform(0, 40, [1, 16, 2]), rng.uniform(8, 60, [1, 16, 2])
    return tf.constant(np.concatenate([corner, corner + side], -1), dtype), tf.constant(
        rng.integers(0, 2, [1, 16, 28, 28]), dtype
    )


def _masks(dtype: np.dtype) -> tf.Tensor:
    corners, masks = _boxes(dtype)
    return roi_align.crop_masks(masks, corners, corners + tf.constant([1, 2, -3, 1], dtype), 28)


def _regions(dtype: np.dtype) -> tf.Tensor:
    return roi_align.roi_align({2: _normal([1, 32, 32, 8], dtype)}, _boxes(dtype)[0], 7)


# Row: what runs, as a function of the dtype.
ROWS: dict[str, Callable[[np.dtype], tf.Tensor]] = {
    "lars, 12 steps": _steps("lars", weight_decay=1e-4),
    "lamb, 12 steps": _steps("lamb", weight_decay=1e-4),
    "layer norm, mean 30": _normalized("layer"),
    "batch norm, mean 30": _normalized("batch"),
    "cross-entropy, 10,000 classes": _losses,
    "evaluation's sum": _metric,
    "clipping's norm": lambda dtype: optimizers.clipped([_normal([500_000], dtype)], 1.0)[0],
    "overlap of boxes": lambda dtype: boxes.iou(*[_boxes(dtype)[0]] * 2),
    "masks' targets": _masks,
    "RoI align, as a layer": _regions,
}


def worst(name: str, bits: int) -> float:
    """Returns a row's largest error, relative to the largest element of the float64 result; inf if it is not finite."""
    function = ROWS[name]
    exact = function(np.float64).numpy()
    with rounding(bits):
        traced = tf.function(lambda: function(np.float32), jit_compile=True, autograph=False)
        error = np.abs(traced().numpy() - exact).max() / np.abs(exact).max()
    return float(error) if np.isfinite(error) else float("inf")


@pytest.mark.parametrize("name", ROWS)
def test_an_iteration_loses_nothing_on_a_device_that_rounds(name: str) -> None:
    """RoI align rounds as the layers around it."""
    fp32, gpu, tpu = (worst(name, bits) for bits in (FLOAT32, TF32, BF16))
    if name == "RoI align, as a layer":
        assert fp32 < 1e-5 and gpu < 0.01 and tpu < 0.05
    else:
        assert fp32 < 3e-3
        assert max(gpu, tpu) < 1.1 * fp32 + 1e-6


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True)])
def test_an_exact_product_is_that_of_float64(transposed: tuple[bool, bool]) -> None:
    a, b = np.random.default_rng(0).normal(size=(2, 3, 40, 40)).astype(np.float32)
    expected = tf.matmul(a.astype(float), b.astype(float), *transposed).numpy()
    with rounding(TF32):
        plain = tf.matmul(a, b, *transposed)
        forms = [
            products.exact(tf.constant(a), tf.constant(b), *transposed),
            tf.function(
                lambda: products.exact(tf.constant(a), tf.constant(b), *transposed), jit_compile=True
            )(),
        ]
    assert np.abs(plain - expected).max() > 1e-3, "the harness must round"
    for form in forms:
        np.testing.assert_allclose(form, expected, rtol=0, atol=2e-5)
