"""The precision harness: float32 products and convolutions whose operands lose bits, as on GPUs (10) and TPUs (7)."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import tensorflow as tf
from tensorflow.python.ops import gen_linalg_ops, gen_math_ops, gen_nn_ops

from common.optim import products

TF32, BF16, FLOAT32 = 10, 7, 23
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
