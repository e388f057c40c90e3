"""Recomputation of activations: "Training Deep Nets with Sublinear Memory Cost" (Chen et al. 2016).

XLA would merge the second computation with the first, and keep the activations after all. So the backward pass takes
its operands through a barrier, which XLA does not look through.
"""

import contextlib
import contextvars
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from common.distributed.replicas.xla import embedded, tensor_type
from common.layers.xla import under_xla

_EARLIER: contextvars.ContextVar[dict[Hashable, tf.Tensor]] = contextvars.ContextVar("earlier")


@contextlib.contextmanager
def earlier_gradients(sums: dict[Hashable, tf.Tensor]) -> Iterator[None]:
    """Context of a backward pass in which `with_earlier` takes sums out of `sums`, by the variable's `ref()`."""
    token = _EARLIER.set(sums)
    try:
        yield
    finally:
        _EARLIER.reset(token)


def with_earlier(operand: tf.Tensor | tf.Variable, gradient: tf.Tensor) -> tf.Tensor:
    """Returns an operand's gradient plus the sum of earlier micro-batches, for a variable whose sum nobody has taken.

    So a layer can give its sum back before the layer below starts, and its own gradient needs no memory afterwards.
    """
    earlier = _EARLIER.get({}).pop(operand.ref(), None) if isinstance(operand, tf.Variable) else None
    return gradient if earlier is None else earlier + gradient


def recomputed(function: Callable[..., tf.Tensor], *operands: tf.Tensor | tf.Variable) -> tf.Tensor:
    """Returns function(*operands); its backward pass keeps the operands alone and computes the function again.

    `function` takes tensors. It must depend on its operands alone, as far as gradients are needed. Operands that are
    not of a floating dtype have no gradient.
    """

    @tf.custom_gradient
    def call(*values: tf.Tensor) -> tuple[tf.Tensor, Any]:
        def gradient(above: tf.Tensor) -> list[tf.Tensor]:
            *again, above = barrier([*values, above])
            with tf.GradientTape() as tape:
                tape.watch(again)
                result = function(*again)
            grads = tape.gradient(result, again, above, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            # All or none: XLA would go on with the first operand's gradient alone, and keep what the other gradients
            # need, half a gigabyte for each layer of Llama 3.1 8B, until the end of the backward pass.
            return barrier(list(map(with_earlier, operands, grads)))

        return function(*values), gradient

    return call(*map(tf.convert_to_tensor, operands))


def barrier(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the values; XLA computes nothing across this point that it knows from before it.

    Outside XLA these are copies: TensorFlow then recomputes in eager execution, but may merge in a graph.
    """
    if not under_xla():
        return [tf.identity(value) for value in values]
    kinds = ", ".join(tensor_type(value.shape, value.dtype) for value in values)
    names = ["%r"] if len(values) == 1 else [f"%r#{i}" for i in range(len(values))]
    result = "%r" if len(values) == 1 else f"%r:{len(values)}"
    operands = ", ".join(f"%x{i}" for i in range(len(values)))
    text = f'  {result} = "stablehlo.optimization_barrier"({operands}) : ({kinds}) -> ({kinds})\n'
    return embedded(values, text, names, [(value.shape.as_list(), value.dtype) for value in values])
