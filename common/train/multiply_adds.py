"""Counts a network's multiply-adds: the products in its traced forward pass, one formula for each kind of product."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from common.errors import UserError

Shape = Sequence[int]


def forward_macs(model: tf_keras.Model, batch_shapes: Sequence[Mapping[str, Shape]] = ()) -> int:
    """Returns the multiply-adds of convolutions and matrix products in the forward pass of one example.

    The network is traced as it evaluates outside XLA. An example counts for what it adds to a batch of one, so a
    product of two weights does not count. As in the literature, normalization, activations, biases and pooling do not
    count either: ResNet-50 at 224 px has 4.1e9. A product of masked operands counts: causal attention multiplies all
    pairs.

    Args:
      model: images, tokens or clips -> its outputs.
      batch_shapes: of the task; an input's unknown sizes are the largest size in them.

    Raises UserError if the model states no inputs, a size is unknown, or how often a loop with products runs.
    """
    if model.inputs is None:
        raise UserError(f"network {model.name}: its inputs are unknown; give them to its constructor")
    longest = max((n for one in batch_shapes for shape in one.values() for n in shape), default=None)
    shapes = [[longest if n is None else n for n in x.shape[1:]] for x in model.inputs]
    for x, shape in zip(model.inputs, shapes):
        if None in shape:
            fix = "build the model with a fixed image size"
            raise UserError(f"input {x.name}: unknown size {tuple(shape)}; {fix}")
    return _traced(model, shapes, 2).macs() - _traced(model, shapes, 1).macs()


def _traced(model: tf_keras.Model, shapes: Sequence[Shape], examples: int) -> _Body:
    specs = [tf.TensorSpec([examples, *shape], x.dtype) for x, shape in zip(model.inputs, shapes)]

    @tf.function(autograph=False)
    def forward(*inputs: tf.Tensor) -> Any:
        return model(inputs[0] if len(inputs) == 1 else list(inputs), training=False)

    graph = forward.get_concrete_function(*specs).graph.as_graph_def(add_shapes=True)
    return _Body(graph.node, {}, {one.signature.name: one for one in graph.library.function})


class _Body:
    """The nodes of a graph or of a function in it."""

    def __init__(self, nodes: Iterable[Any], arguments: dict[str, list[Shape]], library: dict[str, Any]):
        self._nodes, self._library = {node.name: node for node in nodes}, library
        self._shapes = arguments | {
            node.name: _shapes(node.attr["_output_shapes"]) for node in self._nodes.values()
        }

    def macs(self) -> int:
        return sum(map(self._macs_of, self._nodes.values()))

    def _macs_of(self, node: Any) -> int:
        if node.op in _SUMMED:
            operands = [self._operand(name) for name in node.input]
            sizes = _SUMMED[node.op](node, self._shapes[node.name][0], *operands)
            if min(sizes) < 0:
                raise UserError(f"{node.op} {node.name}: unknown sizes; build the model with fixed ones")
            return math.prod(sizes)
        called = sum(
            self._called(one) for key, one in node.attr.items() if key != "cond" and one.HasField("func")
        )
        if called and node.op in ("While", "StatelessWhile"):
            return called * self._most_turns(node)
        if (called and not node.op.endswith("PartitionedCall")) or _NOT_SUMMED.search(node.op):
            raise UserError(f"{node.op} {node.name}: no formula for its multiply-adds; use another operation")
        return called

    def _called(self, attribute: Any) -> int:
        function = self._library[attribute.func.name]
        shapes = _shapes(function.attr["_input_shapes"])
        arguments = {one.name: [shape] for one, shape in zip(function.signature.input_arg, shapes)}
        return _Body(function.node_def, arguments, self._library).macs()

    def _most_turns(self, node: Any) -> int:
        """Returns the constant `maximum_iterations` of a loop, its second operand."""
        constant = self._nodes.get(node.input[1].split(":")[0])
        fixed = constant and constant.op == "Const"
        turns = int(tf.make_ndarray(constant.attr["value"].tensor)) if fixed else -1
        if turns < 0:
            raise UserError(f"loop {node.name}: its number of turns is unknown; give it `maximum_iterations`")
        return turns

    def _operand(self, name: str) -> Shape:
        """Returns the shape of an operand: NODE, NODE:NUMBER, or in a function NODE:RESULT:NUMBER."""
        node, *number = name.split(":")
        return self._shapes[node][int(number[-1]) if number else 0]


def _shapes(attribute: Any) -> list[Shape]:
    return [[side.size for side in shape.dim] for shape in attribute.list.shape]


def _matrices(node: Any, result: Shape, a: Shape, b: Shape) -> list[int]:
    transposed = node.attr["transpose_a"].b or node.attr["adj_x"].b
    return [*result, a[-2] if transposed else a[-1]]


def _convolution(node: Any, result: Shape, images: Shape, kernel: Shape) -> list[int]:
    """A grouped kernel holds one group's input channels, so its size needs no correction."""
    return [*result, *kernel[:-1]]


def _depthwise(node: Any, result: Shape, images: Shape, kernel: Shape) -> list[int]:
    return [*result, *kernel[:2]]


def _transposed(node: Any, result: Shape, size: Shape, kernel: Shape, images: Shape) -> list[int]:
    return [*images, *kernel[:-1]]


def _einsum(node: Any, result: Shape, *operands: Shape) -> list[int]:
    terms, output = node.attr["equation"].s.decode().split("->")
    sides: dict[str, int] = {}
    for term, shape in zip(terms.split(","), operands, strict=True):
        before, _, after = term.partition("...")
        sides |= {**dict(zip(before, shape)), **dict(zip(after, shape[len(shape) - len(after) :]))}
    return [*result, *(side for label, side in sides.items() if label not in output)]


# By operation: the sizes whose product is the number of multiply-adds, from the node, its result and its operands.
_SUMMED: dict[str, Callable[..., list[int]]] = {
    "MatMul": _matrices, "BatchMatMul": _matrices, "BatchMatMulV2": _matrices, "Einsum": _einsum,
    "Conv2D": _convolution, "Conv3D": _convolution, "DepthwiseConv2dNative": _depthwise,
    "Conv2DBackpropInput": _transposed, "Conv3DBackpropInputV2": _transposed,
}  # fmt: skip
# Operations that multiply matrices, but not by one of these formulas.
_NOT_SUMMED = re.compile("MatMul|Conv[23]D|Einsum|RNN")
