"""Bytes of elements, and multiply-adds of convolutions: what both forms of text count alike."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_BITS = re.compile(r"\d+")
_NO_DATA = ("token", "opaque")


def element_bytes(kind: str) -> int:
    """Bytes of an element of a type as HLO and MLIR write it: 2 of "bf16", 8 of "ui64", 1 of "pred" and "i1"."""
    if kind in _NO_DATA:
        return 0
    bits = _BITS.search(kind)
    return max(1, int(bits[0]) // 8) if bits else 1


def sides(text: str, separator: str = ",") -> tuple[int, ...]:
    """The sides of a shape: (8, 4) of "8,4"; a bound "<=8" counts as its size."""
    return tuple(int(side.strip().removeprefix("<=")) for side in text.split(separator) if side.strip())


class Window(NamedTuple):
    """One axis of a convolution.

    Attributes:
      inputs, taps, outputs: sizes of the input, the kernel and the result.
      stride, low: of the window, and the padding before the input.
      input_dilation, kernel_dilation: 1 without holes.
    """

    inputs: int
    taps: int
    outputs: int
    stride: int = 1
    low: int = 0
    input_dilation: int = 1
    kernel_dilation: int = 1

    def pairs(self) -> int:
        """Pairs of an output and a tap that meet an element of the input: neither padding nor a hole of a dilation."""
        end = (self.inputs - 1) * self.input_dilation
        total = 0
        for tap in range(self.taps):
            for output in range(self.outputs):
                at = output * self.stride + tap * self.kernel_dilation - self.low
                total += 0 <= at <= end and at % self.input_dilation == 0
        return total


def convolution_macs(windows: Iterable[Window], examples: int, channels: int, outputs: int) -> int:
    """Multiply-adds of a convolution.

    Args:
      windows: one for each axis.
      examples, outputs: of the result; `channels` of the kernel, which are those of one group.
    """
    return examples * outputs * channels * math.prod(window.pairs() for window in windows)


def product_macs(out: Sequence[int], contracted: Iterable[int]) -> int:
    """Multiply-adds of a matrix product: every element of the result sums over the contracted sides."""
    return math.prod(out) * math.prod(contracted)
