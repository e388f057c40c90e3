"""Parses StableHLO text as TensorFlow prints it: functions, operations, types, exchanges."""

import dataclasses
import re
from collections.abc import Iterator

from common.hlo.sizes import Window, convolution_macs, product_macs, sides

# MLIR's name of an element type -> NumPy's name.
DTYPES = {
    "f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16", "i64": "int64", "i32": "int32",
    "i16": "int16", "i8": "int8", "ui64": "uint64", "ui32": "uint32", "ui16": "uint16", "ui8": "uint8", "i1": "bool",
}  # fmt: skip
_FUNCTION = re.compile(r"^  func\.func [^@]*@([^(]+)\((.*?)^  \}", re.MULTILINE | re.DOTALL)
_MAIN = re.compile(r"func\.func @main\((.*?)\) -> (.*?) \{\n")
_CALL = re.compile(r"(?<!custom_)call @([^(]+)\(")
_OPERATION = re.compile(r'= "?stablehlo\.(\w+)')
_TYPE = re.compile(r"tensor<((?:\d+x)*)([a-z]+\d+)>")
_EXCHANGE = re.compile(
    r'"stablehlo\.(all_reduce|all_gather|reduce_scatter|all_to_all|collective_permute)"\(.*?\) <\{(.*?)\}>'
    r"(?: \(\{.*?\}\))? : \((.*?)\)",
    re.DOTALL,
)
_GROUPS = re.compile(
    r"(?:replica_groups|source_target_pairs) = dense<.*?> : tensor<(\d+)x(\d+)xi64>", re.DOTALL
)

Type = tuple[tuple[int, ...], str]  # Dimensions, and MLIR's name of the element type.


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation, or a call of a function.

    Attributes:
      name: StableHLO's name, e.g. "convolution"; '' for a call.
      called: for a call, the called function; else ''.
      line: its first line; if a region follows, the line lacks the types.
      in_loop: whether it is inside a while loop of its function.
    """

    name: str
    called: str
    line: str
    in_loop: bool = False

    @property
    def types(self) -> list[Type]:
        """The types of operands and result; an element-wise operation has one type."""
        return types(self.line.partition(" loc(")[0].rpartition(" : ")[2])

    @property
    def opens(self) -> bool:
        """Whether a region follows, such as the addition in an all_reduce."""
        return self.line.partition(" loc(")[0].endswith("({")

    def macs(self) -> int:
        """Multiply-adds of a convolution or product; 0 for other operations."""
        if self.name == "convolution":
            return _convolution(self)
        return _product(self) if self.name in ("dot", "dot_general") else 0


@dataclasses.dataclass(frozen=True)
class Exchange:
    """A collective, with one replica's operands. For a permutation, `groups` is the number of pairs and `size` is 2."""

    operation: str
    groups: int
    size: int
    operands: tuple[Type, ...]


def functions(text: str) -> dict[str, list[Operation]]:
    """Returns {function: its operations and calls}. Some are never called: TensorFlow leaves copies of loop bodies."""
    return {name: list(_operations(body)) for name, body in _FUNCTION.findall(text)}


def operations(text: str) -> Iterator[Operation]:
    """Yields the operations of all functions; does not determine `in_loop`."""
    for line in text.splitlines():
        if match := _OPERATION.search(line):
            yield Operation(match[1], "", line)


def _operations(body: str) -> Iterator[Operation]:
    loop = -1  # Indentation of the outermost loop around the line; -1 outside loops.
    for line in body.splitlines():
        indentation = len(line) - len(line.lstrip())
        if loop >= 0 and indentation <= loop and not line.lstrip().startswith(("}", "cond {")):
            loop = -1
        called, operation = _CALL.search(line), _OPERATION.search(line)
        if called:
            yield Operation("", called[1], line, loop >= 0)
        elif operation:
            if operation[1] == "while" and loop < 0:
                loop = indentation
            yield Operation(operation[1], "", line, loop >= 0)


def types(text: str) -> list[Type]:
    """Returns the tensor types in a piece of text, in order; sizes must be known."""
    return [(sides(shape, "x"), kind) for shape, kind in _TYPE.findall(text)]


def exchanges(text: str) -> list[Exchange]:
    """Returns the collectives of all functions, in order."""
    all_exchanges = []
    for operation, attributes, operands in _EXCHANGE.findall(text):
        groups, size = map(int, _GROUPS.search(attributes).groups())
        all_exchanges.append(Exchange(operation, groups, size, tuple(types(operands))))
    return all_exchanges


def signature(text: str) -> tuple[list[Type], list[Type]]:
    """Returns the types of `main`'s arguments and results."""
    return tuple(types(part) for part in _MAIN.search(text).groups())


def has_unknown_sizes(text: str) -> bool:
    """Whether the program has a tensor whose size is unknown before it runs."""
    return bool(re.search(r"tensor<[^>]*\?", text))


def custom_calls(text: str) -> list[str]:
    """Returns the targets of custom calls, sorted."""
    return sorted(set(re.findall(r"custom_call @([\w.]+)", text)))


def aliases(text: str) -> dict[int, int]:
    """Returns {result: the argument whose buffer it reuses} from the module's attribute mhlo.input_output_alias."""
    pairs = re.findall(r"parameter_number = (\d+) : i64\}, output_index = array<i64(?:: (\d+))?>", text)
    return {int(result or 0): int(argument) for argument, result in pairs}


def portable(text: str) -> str:
    """Removes the parts that only TensorFlow's XLA reads or that depend on the exporting machine and process.

    Only TensorFlow's XLA reads the attributes and copies of the dialect mhlo. Python file paths and the numbers that
    TensorFlow gives to functions depend on the process. So a step's text is the same wherever it is exported.
    """
    text = re.sub(r"^module @\S+ attributes .*\{$", "module @step {", text, count=1, flags=re.MULTILINE)
    text = re.sub(r'loc\("[^"]*":\d+:\d+\)', "loc(unknown)", text)
    names = re.findall(r"func\.func private @([\w.\-]+)\(", text)
    plain = {name: f"part.{i}" for i, name in enumerate(names)}
    text = re.sub(r"@([\w.\-]+)", lambda match: f"@{plain.get(match[1], match[1])}", text)
    text = re.sub(r"mhlo\.copy (%\S+) : (\S+)", r"stablehlo.reshape \1 : (\2) -> \2", text)
    return re.sub(r" \{mhlo\.frontend_attributes = \{[^{}]*\}\}", "", text)


def _product(one: Operation) -> int:
    (left, _), _, (out, _) = one.types
    match = re.search(r"contracting_dims = \[([\d, ]*)\] x", one.line)
    axes = sides(match[1]) if match else (len(left) - 1,)
    return product_macs(out, (left[axis] for axis in axes))


def _convolution(one: Operation) -> int:
    shapes = [shape for shape, _ in one.types]
    labels = re.search(r"dim_numbers = \[(.*?)\]x\[(.*?)\]->\[(.*?)\]", one.line).groups()
    inputs, kernel, output = ([part.strip() for part in label.split(",")] for label in labels)
    window, rank = re.search(r"window = \{(.*?)\}(?: \{|$| :)", one.line)[1], len(inputs) - 2

    def field(name: str) -> list[int]:
        match = re.search(name + r" = \[([-\d, ]*)\]", window)
        return [int(value) for value in match[1].split(",")] if match else [1] * rank

    pads = re.search(r"pad = \[(\[.*?\])\]", window)
    pairs = re.findall(r"\[([-\d, ]+)\]", pads[1]) if pads else ["0"] * rank
    lows = [int(pair.split(",")[0]) for pair in pairs]
    strides, input_dilations, kernel_dilations = field("stride"), field("lhs_dilate"), field("rhs_dilate")
    windows = []
    for axis in range(rank):
        label = str(axis)
        places = zip(shapes, (inputs.index(label), kernel.index(label), output.index(label)))
        lengths = (shape[place] for shape, place in places)
        dilations = input_dilations[axis], kernel_dilations[axis]
        windows.append(Window(*lengths, strides[axis], lows[axis], *dilations))
    out = shapes[2]
    examples, outputs = out[output.index("b")], out[output.index("f")]
    return convolution_macs(windows, examples, shapes[1][kernel.index("i")], outputs)
