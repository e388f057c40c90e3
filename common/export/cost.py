"""FLOPs and bytes of a StableHLO program, counted from its text as XLA's cost analysis counts an unfused program."""

from __future__ import annotations

import math
import re

_TYPE = re.compile(r"tensor<([0-9x]*?)([a-z]+\d+)>")
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


def count(text: str) -> dict[str, float]:
    """Counts of one call of `main`.

    Returns:
      matrix_flops: 2 per multiply-add of convolutions and matrix products; products with padding and with the zeros
        of a dilation are not counted, as in XLA's analysis. bytes_unfused: operands and results of every operation,
        an upper bound of what a compiler's program moves. convolutions, products: how many. loops: while loops, whose
        body is counted once.
    """
    flops, moved = 0, 0
    kinds = {"convolution": 0, "dot": 0, "while": 0}
    for line in text.splitlines():
        match = re.search(r'= "?stablehlo\.(\w+)', line)
        if not match:
            continue
        kind = match.group(1)
        kind = "dot" if kind in ("dot", "dot_general") else kind
        if kind in kinds:
            kinds[kind] += 1
        if kind == "convolution":
            flops += 2 * _convolution(line)
        elif kind == "dot":
            flops += 2 * _product(line)
        if kind not in _FREE:
            signature = line.rpartition(" : ")[2]
            moved += sum(_bytes(*found) for found in _TYPE.findall(signature))
    return {
        "matrix_flops": flops,
        "bytes_unfused": moved,
        "convolutions": kinds["convolution"],
        "products": kinds["dot"],
        "loops": kinds["while"],
    }


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split("x") if size]


def _bytes(sizes: str, dtype: str) -> int:
    bits = int(_BITS.search(dtype).group())
    return math.prod(_sizes(sizes)) * max(bits, 8) // 8


def _operands(line: str) -> list[list[int]]:
    """Shapes of the operands and of the result."""
    return [_sizes(sizes) for sizes, _ in _TYPE.findall(line.rpartition(" : ")[2])]


def _product(line: str) -> int:
    left, right, out = _operands(line)
    match = re.search(r"contracting_dims = \[([\d, ]*)\] x", line)
    axes = [int(axis) for axis in match.group(1).split(",") if axis.strip()] if match else [len(left) - 1]
    return math.prod(out) * math.prod(left[axis] for axis in axes)


def _convolution(line: str) -> int:
    """Multiply-adds whose input is an element: neither padding nor a hole of a dilated input or kernel."""
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
    stride, dilated, spread = field("stride"), field("lhs_dilate"), field("rhs_dilate")
    count = out[out_at.index("b")] * out[out_at.index("f")] * kernel[kernel_at.index("i")]
    for axis in range(rank):
        size, taps = inputs[inputs_at.index(str(axis))], kernel[kernel_at.index(str(axis))]
        places = out[out_at.index(str(axis))]
        count *= _pairs(size, taps, places, lows[axis], stride[axis], dilated[axis], spread[axis])
    return count


def _pairs(size: int, taps: int, places: int, low: int, stride: int, dilated: int, spread: int) -> int:
    """(place of the result, tap of the kernel) pairs that meet an element of the input, along one axis."""
    end = (size - 1) * dilated
    total = 0
    for tap in range(taps):
        for place in range(places):
            at = place * stride + tap * spread - low
            total += 0 <= at <= end and at % dilated == 0
    return total
