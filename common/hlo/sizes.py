"""Counts bytes of elements and multiply-adds; shared by the HLO and StableHLO parsers."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_BITS = re.compile(r"\d+")
_NO_DATA = ("token", "opaque")


def element_bytes(kind: str) -> int:
    """Bytes per element of a type in HLO's or MLIR's notation: 2 for "bf16", 8 for "ui64", 1 for "pred" and "i1"."""
    if kind in _NO_DATA:
        return 0
    bits = _BITS.search(kind)
    return max(1, int(bits[0]) // 8) if bits else 1


def sides(text: str, separator: str = ",") -> tuple[int, ...]:
    """Parses a shape's dimensions: "8,4" gives (8, 4); a bound "<=8" counts as 8."""
    return tuple(int(side.strip().removeprefix("<=")) for side in text.split(separator) if side.strip())


class Window(NamedTuple):
    """One axis of a convolution.

    Attributes:
      inputs, taps, outputs: sizes of the input, the kernel and the result.
      stride, low: stride of the window, and padding before the input.
      input_dilation, kernel_dilation: 1 means no holes.
    """

    inputs: int
    taps: int
    outputs: int
    stride: int = 1
    low: int = 0
    input_dilation: int = 1
    kernel_dilation: int = 1

    def pairs(self) -> int:
        """Number of (output, tap) pairs that read a real input element, not padding or a dilation's hole."""
        end = (self.inputs - 1) * self.input_dilation
        total = 0
        for tap in range(self.taps):
            for output in range(self.outputs):
                at = output * self.stride + tap * self.kernel_dilation - self.low
                total += 0 <= at <= end and at % self.input_dilation == 0
        return total


def convolution_macs(windows: Iterable[Window], examples: int, channels: int, outputs: int) -> int:
    """Counts the multiply-adds of a convolution.

    Args:
      windows: one for each axis.
      examples, outputs: batch size and output channels of the result.
      channels: input channels of the kernel, which are those of one group.
    """
    return examples * outputs * channels * math.prod(window.pairs() for window in windows)


def product_macs(out: Sequence[int], contracted: Iterable[int]) -> int:
    """Counts the multiply-adds of a matrix product: each result element sums over the contracted dimensions."""
    return math.prod(out) * math.prod(contracted)
