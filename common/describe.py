"""Size of a network: its parameters and the multiply-adds of one forward pass, counted on the built model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import tf_keras

from common.errors import UserError

_CONVOLUTIONS = (
    tf_keras.layers.Conv1D,
    tf_keras.layers.Conv2D,
    tf_keras.layers.Conv3D,
)
_TRANSPOSED = (
    tf_keras.layers.Conv1DTranspose,
    tf_keras.layers.Conv2DTranspose,
    tf_keras.layers.Conv3DTranspose,
)
_DEPTHWISE = (tf_keras.layers.DepthwiseConv1D, tf_keras.layers.DepthwiseConv2D)
_SEPARABLE = (tf_keras.layers.SeparableConv1D, tf_keras.layers.SeparableConv2D)

Shape = Sequence[int | None]


def parameters(model: tf_keras.Model) -> int:
    """Number of trainable parameters."""
    return sum(math.prod(v.shape) for v in model.trainable_variables)


def forward_macs(model: tf_keras.Model) -> int:
    """Multiply-adds of convolutions and matrix products of one forward pass of one example.

    Counted as the literature does: normalisation, activations, biases and pooling are left out, so that the
    224 px ResNet-50 has 4.1e9. A layer of our own that multiplies matrices says how often in a method
    `multiply_adds(input_shape, output_shape) -> int`, shapes without the batch axis.

    Raises:
      UserError: a layer with a matrix that this function cannot count, or an unknown spatial size.
    """
    return sum(_macs(layer, inputs, outputs) for layer, inputs, outputs in _calls(model))


def _calls(model: tf_keras.Model) -> Iterator[tuple[tf_keras.layers.Layer, Shape, Shape]]:
    """(layer, input shape, output shape) of every call of every leaf layer, shapes without the batch axis."""
    for layer in model.layers:
        if isinstance(layer, tf_keras.Model):
            for _ in layer.inbound_nodes:
                yield from _calls(layer)
        elif layer.trainable_weights and not isinstance(layer, tf_keras.layers.InputLayer):
            for node in layer.inbound_nodes:
                yield layer, tuple(node.input_shapes)[1:], tuple(node.output_shapes)[1:]


def _macs(layer: tf_keras.layers.Layer, inputs: Shape, outputs: Shape) -> int:
    if hasattr(layer, "multiply_adds"):
        return layer.multiply_adds(inputs, outputs)
    if isinstance(layer, _TRANSPOSED):
        return _size(layer, inputs[:-1]) * math.prod(layer.kernel.shape)
    if isinstance(layer, _SEPARABLE):
        kernels = math.prod(layer.depthwise_kernel.shape) + math.prod(layer.pointwise_kernel.shape)
        return _size(layer, outputs[:-1]) * kernels
    if isinstance(layer, _DEPTHWISE):
        return _size(layer, outputs[:-1]) * math.prod(layer.depthwise_kernel.shape)
    if isinstance(layer, (*_CONVOLUTIONS, tf_keras.layers.Dense)):
        # A grouped kernel holds the input channels of one group, so its size is right as it is.
        return _size(layer, outputs[:-1]) * math.prod(layer.kernel.shape)
    matrices = [v for v in layer.trainable_weights if len(v.shape) > 1]
    if matrices and not isinstance(layer, tf_keras.layers.Embedding):
        raise UserError(f"layer {layer.name} ({type(layer).__name__}): give it a method `multiply_adds`")
    return 0


def _size(layer: tf_keras.layers.Layer, shape: Shape) -> int:
    if None in shape:
        raise UserError(
            f"layer {layer.name}: unknown size {tuple(shape)}; build the model with a fixed image size"
        )
    return math.prod(shape)
