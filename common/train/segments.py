"""Cuts a forward and backward pass into XLA programs, so that some gradients travel while others are being computed.

A single program returns all its results at its end. The last layers' gradients exist first, but their exchange would
wait for the first layers' gradients. Cut into segments, the first program computes the forward pass and the last
layers' backward pass; each later program continues the backward pass to earlier layers. The exchange of a segment's
gradients overlaps the next segment. Horovod does the same with operations that are not compiled.

Only the graph determines the cut: a segment has all operations that its results need and that no earlier segment has.
It also returns what later segments need from it. Constants and reads of weights are in each segment that needs them.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import tensorflow as tf

# XLA needs a Reshape's target shape at compile time; for a static shape these are constants.
_SHAPES = {"Shape": lambda x: x.shape.as_list(), "Size": lambda x: x.shape.num_elements()}
_SHAPES["Rank"] = lambda x: x.shape.rank


class Segment(NamedTuple):
    """A program: the names of its arguments and results, and its function."""

    takes: list[str]
    returns: list[str]
    function: Callable[..., list[tf.Tensor]]


class Cut:
    """A concrete function in segments; calling it with the function's flat arguments returns its flat results.

    Attributes:
      segments: the programs, in order.
    """

    def __init__(self, function: tf.types.experimental.ConcreteFunction, groups: Sequence[Sequence[int]]):
        """`groups`: for each segment, indices of the function's flat results; each index occurs once overall."""
        self._function, graph = function, function.graph
        self._results = graph.outputs
        self._definitions = graph.as_graph_def()
        self._operations = graph.get_operations()  # In an order in which they can run.
        self._constant = self._constants()
        ends = [[graph.outputs[i].op for i in group] for group in groups]
        self._segment_of = self._assigned(ends)
        self._join_what_cannot_leave()
        numbers = sorted(set(self._segment_of.values()))
        self.segments = [self._program(number) for number in numbers]

    def __call__(self, arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        graph = self._function.graph
        inputs = [*arguments, *self._function.captured_inputs]
        values = {x.name: value for x, value in zip(graph.inputs, inputs, strict=True)}
        for segment in self.segments:
            results = segment.function(*[values[name] for name in segment.takes])
            for name, value in zip(segment.returns, results, strict=True):
                value.set_shape(graph.get_tensor_by_name(name).shape)
                values[name] = value
        return [values[x.name] for x in self._results]

    def _constants(self) -> set[tf.Operation]:
        """Returns the operations that every segment may duplicate: constants, static shapes and reads of weights."""
        initialized = {
            op.inputs[0].name
            for op in self._operations
            if op.type.startswith("Assign") and op.inputs and op.inputs[0].dtype == tf.resource
        }
        constants: set[tf.Operation] = set()
        for op in self._operations:
            if op.type == "ReadVariableOp":
                free = op.inputs[0].op.type == "Placeholder" and op.inputs[0].name not in initialized
            elif op.type in _SHAPES:
                free = op.inputs[0].shape.is_fully_defined()
            else:
                free = op.type != "Placeholder" and all(x.op in constants for x in op.inputs)
                free = free and not op.op_def.is_stateful and "Variable" not in op.type
                free = free and all(x.op.type != "ReadVariableOp" for x in op.inputs)
            if free:
                constants.add(op)
        return constants

    def _assigned(self, ends: Sequence[Sequence[tf.Operation]]) -> dict[tf.Operation, int]:
        """Returns each operation's segment; constants have none."""
        segment_of: dict[tf.Operation, int] = {}
        for number, operations in enumerate(ends):
            segment_of.update(dict.fromkeys(self._needed(operations, segment_of), number))
        # Operations that only write, such as batch norm's moments, go to the first segment that can run them.
        for op in self._function.graph.control_outputs:
            rest = self._needed([op], segment_of)
            before = {x for one in rest for x in (*(y.op for y in one.inputs), *one.control_inputs)}
            first = max((segment_of[x] for x in before if x in segment_of), default=0)
            segment_of.update(dict.fromkeys(rest, first))
        return segment_of

    def _needed(
        self, operations: Iterable[tf.Operation], there: dict[tf.Operation, int]
    ) -> set[tf.Operation]:
        """Returns `operations` and all they need, except constants, arguments and operations in `there`."""
        needed: set[tf.Operation] = set()
        waiting = list(operations)
        while waiting:
            op = waiting.pop()
            if op in needed or op in there or op in self._constant or op.type == "Placeholder":
                continue
            needed.add(op)
            waiting += [*(x.op for x in op.inputs), *op.control_inputs]
        return needed

    def _join_what_cannot_leave(self) -> None:
        """Joins segments that would have to exchange a list of tensors, as loops have them, or a resource."""
        for op in self._operations:
            for x in op.inputs:
                first, last = self._segment_of.get(x.op), self._segment_of.get(op)
                if x.dtype in (tf.variant, tf.resource) and first is not None and last is not None:
                    for other, number in self._segment_of.items():
                        if first < number <= last:
                            self._segment_of[other] = first

    def _program(self, number: int) -> Segment:
        """Makes a segment's program."""
        operations = {op for op, n in self._segment_of.items() if n == number}
        # A result may be a constant; the first segment returns it.
        first = number == min(self._segment_of.values())
        results = [x for x in self._results if x.op in operations or (first and x.op in self._constant)]
        needed = self._with_constants(operations | {x.op for x in results})
        takes = dict.fromkeys(x.name for op in needed for x in self._inputs(op) if x.op not in needed)
        later = self._with_constants({op for op, n in self._segment_of.items() if n > number})
        leaving = [x for op in later for x in self._inputs(op) if x.op in operations]
        returns = list(dict.fromkeys(x.name for x in (*results, *leaving)))
        definition = self._definition(needed, takes)

        def program(*arguments: tf.Tensor) -> list[tf.Tensor]:
            inputs = {_plain(name): value for name, value in zip(takes, arguments, strict=True)}
            return tf.graph_util.import_graph_def(definition, inputs, returns, name="")

        program.__name__ = f"segment_{number}"
        return Segment(list(takes), returns, tf.function(program, jit_compile=True, autograph=False))

    def _inputs(self, op: tf.Operation) -> list[tf.Tensor]:
        """Returns an operation's inputs; none for a static shape, which needs no input."""
        return [] if op.type in _SHAPES and op in self._constant else list(op.inputs)

    def _with_constants(self, operations: set[tf.Operation]) -> list[tf.Operation]:
        """Returns operations and the constant operations that they need, in the graph's order."""
        with_constants, waiting = set(operations), list(operations)
        while waiting:
            for x in self._inputs(waiting.pop()):
                if x.op in self._constant and x.op not in with_constants:
                    with_constants.add(x.op)
                    waiting.append(x.op)
        return [op for op in self._operations if op in with_constants]

    def _definition(self, needed: Sequence[tf.Operation], takes: Iterable[str]) -> tf.compat.v1.GraphDef:
        """Returns the operations' graph; it renames the tensors it `takes`, so that the importer can map them."""
        whole, names = self._definitions, {name: _plain(name) for name in takes}
        graph = tf.compat.v1.GraphDef(versions=whole.versions, library=whole.library)
        names_here = {op.name for op in needed}
        for op in needed:
            node = graph.node.add()
            if op.type in _SHAPES and op in self._constant:
                value = tf.make_tensor_proto(_SHAPES[op.type](op.inputs[0]), op.outputs[0].dtype)
                node.name, node.op = op.name, "Const"
                node.attr["dtype"].type = op.outputs[0].dtype.as_datatype_enum
                node.attr["value"].tensor.CopyFrom(value)
                continue
            node.CopyFrom(op.node_def)
            node.attr.pop("_class", None)  # Names operations of other segments.
            del node.input[:]
            node.input.extend(names.get(x.name, x.name) for x in op.inputs)
            node.input.extend(f"^{c.name}" for c in op.control_inputs if c.name in names_here)
        return graph


def _plain(name: str) -> str:
    """Returns the argument name that replaces the tensor NAME:NUMBER."""
    return "argument/" + name.replace(":", "_")
