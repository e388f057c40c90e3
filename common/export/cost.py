"""Counts a StableHLO program's FLOPs and bytes from its text, as XLA's cost analysis does for an unfused program."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_TYPE = re.compile(r"tensor<([0-9x]*?)([a-z]+\d+)>")
_FUNCTION = re.compile(r"^  func\.func [^@]*@([^(]+)\((.*?)^  \}", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"(?<!custom_)call @([^(]+)\(")
_OPERATION = re.compile(r'= "?stablehlo\.(\w+)')
_EXCHANGE = re.compile(
    r'"stablehlo\.(all_reduce|all_gather|reduce_scatter|all_to_all|collective_permute)"\(.*?\) <\{(.*?)\}>'
    r"(?: \(\{.*?\}\))? : \((.*?)\)",
    re.DOTALL,
)
_GROUPS = re.compile(
    r"(replica_groups|source_target_pairs) = dense<.*?> : tensor<(\d+)x(\d+)xi64>", re.DOTALL
)
_WIDE = re.compile(r"tensor<((?:\d+x)*(?:f64|u?i64))>")
_BITS = re.compile(r"\d+$")
_FREE = (
    "constant",
    "get_tuple_element",
    "tuple",
    "optimization_barrier",
    "return",
    "iota",
    "case",
    "while",
    "if",
)


_MOVES = (*_FREE, "reshape", "broadcast_in_dim", "slice", "concatenate", "transpose", "dynamic_slice", "pad")


def count(text: str) -> dict[str, int]:
    """Counts the work of one call of `main`.

    Returns:
      matrix_flops: 2 per multiply-add of convolutions and matrix products, without products with padding or with the
        zeros of a dilation, as in XLA's analysis. bytes_unfused: operands and results of every operation, an upper
        bound of what a compiled program moves. convolutions, products: their numbers. in_loops: how many of them are
        in while loops, whose bodies count once.
    """
    # Some are never called: TensorFlow leaves copies of loop bodies behind.
    functions = dict(_FUNCTION.findall(text))
    return dict(
        zip(
            ("matrix_flops", "bytes_unfused", "convolutions", "products", "in_loops"),
            _totals("main", functions),
        )
    )


def exchanges(text: str) -> list[dict[str, int | str]]:
    """Lists a program's collectives, those alike together.

    Returns:
      Of each kind: operation, groups and their size (of a permutation the pairs, and 2), count, bytes that a replica
      gives to all of them together. In loops they count once.
    """
    found: dict[tuple, list[int]] = {}
    for operation, attributes, operands in _EXCHANGE.findall(text):
        groups, size = (int(n) for n in _GROUPS.search(attributes).groups()[1:])
        totals = found.setdefault((operation, groups, size), [0, 0])
        totals[0] += 1
        totals[1] += sum(_bytes(*operand) for operand in _TYPE.findall(operands))
    return [
        {"operation": operation, "groups": groups, "size": size, "count": count, "bytes": moved}
        for (operation, groups, size), (count, moved) in sorted(found.items())
    ]


def wide(text: str) -> dict[str, int]:
    """Counts the operations of a program in 64-bit numbers, which a TPU emulates, by "operation type".

    Constants, and operations that only move numbers, do not count.
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        match, line = _OPERATION.search(line), line.partition(" loc(")[0]
        # The line that opens a sum names only its groups; the addition within it counts.
        if not match or match.group(1) in _MOVES or line.endswith("({"):
            continue
        kinds = _WIDE.findall(line.rpartition(" : ")[2])
        if kinds:
            name = f"{match.group(1)} {kinds[-1]}"
            found[name] = found.get(name, 0) + 1
    return found


def _totals(name: str, functions: Mapping[str, str]) -> list[int]:
    """Returns the counts, in the order of `count`, of one function and those that it calls."""
    flops, moved, convolutions, products, in_loops = 0, 0, 0, 0, 0
    loop = -1  # Indentation of the outermost loop around the line; -1 outside loops.
    for line in functions[name].splitlines():
        indentation = len(line) - len(line.lstrip())
        if loop >= 0 and indentation <= loop and not line.lstrip().startswith(("}", "cond {")):
            loop = -1
        called = _CALL.search(line)
        if called:
            inner = _totals(called.group(1), functions)
            flops, moved = flops + inner[0], moved + inner[1]
            convolutions, products = convolutions + inner[2], products + inner[3]
            in_loops += inner[2] + inner[3] if loop >= 0 else inner[4]
            continue
        match = _OPERATION.search(line)
        if not match:
            continue
        kind = match.group(1)
        if kind == "while" and loop < 0:
            loop = indentation
        if kind == "convolution":
            flops, convolutions = flops + 2 * _convolution(line), convolutions + 1
        elif kind in ("dot", "dot_general"):
            flops, products = flops + 2 * _product(line), products + 1
        in_loops += loop >= 0 and kind in ("convolution", "dot", "dot_general")
        if kind not in _FREE:
            moved += sum(_bytes(*found) for found in _TYPE.findall(line.rpartition(" : ")[2]))
    return [flops, moved, convolutions, products, in_loops]


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split("x") if size]


def _bytes(sizes: str, dtype: str) -> int:
    bits = int(_BITS.search(dtype).group())
    return math.prod(_sizes(sizes)) * max(bits, 8) // 8


def _operands(line: str) -> list[list[int]]:
    """Returns the shapes of the operands and of the result."""
    return [_sizes(sizes) for sizes, _ in _TYPE.findall(line.rpartition(" : ")[2])]


def _product(line: str) -> int:
    left, right, out = _operands(line)
    match = re.search(r"contracting_dims = \[([\d, ]*)\] x", line)
    axes = [int(axis) for axis in match.group(1).split(",") if axis.strip()] if match else [len(left) - 1]
    return math.prod(out) * math.prod(left[axis] for axis in axes)


def _convolution(line: str) -> int:
    """Counts multiply-adds with elements of the input: neither padding nor a zero of a dilated input or kernel."""
    inputs, kernel, out = _operands(line)
    labels = re.search(r"dim_numbers = \[(.*?)\]x\[(.*?)\]->\[(.*?)\]", line).groups()
    inputs_at, kernel_at, out_at = ([part.strip() for part in label.split(",")] for label in labels)
    rank = len(inputs) - 2
    window = re.search(r"window = \{(.*?)\}(?: \{|$| :)", line).group(1)

    def field(name: str) -> list[int]:
        match = re.search(name + r" = \[([-\d, ]*)\]", window)
        return [int(value) for value in match.group(1).split(",")] if match else [1] * rank

    pads = re.search(r"pad = \[(\[.*?\])\]", window)
    lows = (
        [int(pair.split(",")[0]) for pair in re.findall(r"\[([-\d, ]+)\]", pads.group(1))]
        if pads
        else [0] * rank
    )
    stride, input_dilation, kernel_dilation = field("stride"), field("lhs_dilate"), field("rhs_dilate")
    count = out[out_at.index("b")] * out[out_at.index("f")] * kernel[kernel_at.index("i")]
    for axis in range(rank):
        size, taps = inputs[inputs_at.index(str(axis))], kernel[kernel_at.index(str(axis))]
        places = out[out_at.index(str(axis))]
        dilations = input_dilation[axis], kernel_dilation[axis]
        count *= _pairs(size, taps, places, lows[axis], stride[axis], *dilations)
    return count


def _pairs(
    size: int, taps: int, places: int, low: int, stride: int, input_dilation: int, kernel_dilation: int
) -> int:
    """Counts the (place of the result, tap of the kernel) pairs that meet an element of the input, along one axis."""
    end = (size - 1) * input_dilation
    total = 0
    for tap in range(taps):
        for place in range(places):
            at = place * stride + tap * kernel_dilation - low
            total += 0 <= at <= end and at % input_dilation == 0
    return total
