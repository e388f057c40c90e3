"""Counts a StableHLO program's FLOPs and bytes from its text, as XLA's cost analysis does for an unfused program."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from common.hlo import stablehlo_text
from common.hlo.sizes import element_bytes
from common.hlo.stablehlo_text import Operation, Type

_PRODUCTS = ("dot", "dot_general")
_WIDE = ("f64", "i64", "ui64")
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
    return dict(
        zip(
            ("matrix_flops", "bytes_unfused", "convolutions", "products", "in_loops"),
            _totals("main", stablehlo_text.functions(text)),
        )
    )


def exchanges(text: str) -> list[dict[str, int | str]]:
    """Lists a program's collectives, those alike together.

    Returns:
      Of each kind: operation, groups and their size (of a permutation the pairs, and 2), count, bytes that a replica
      gives to all of them together. In loops they count once.
    """
    found: dict[tuple, list[int]] = {}
    for one in stablehlo_text.exchanges(text):
        totals = found.setdefault((one.operation, one.groups, one.size), [0, 0])
        totals[0] += 1
        totals[1] += sum(map(_bytes, one.operands))
    return [
        {"operation": operation, "groups": groups, "size": size, "count": count, "bytes": moved}
        for (operation, groups, size), (count, moved) in sorted(found.items())
    ]


def wide(text: str) -> dict[str, int]:
    """Counts the operations of a program in 64-bit numbers, which a TPU emulates, by "operation type".

    Constants, and operations that only move numbers, do not count.
    """
    found: Counter[str] = Counter()
    for one in stablehlo_text.operations(text):
        # The line that opens a sum names only its groups; the addition within it counts.
        if one.name in _MOVES or one.opens:
            continue
        kinds = [(shape, kind) for shape, kind in one.types if kind in _WIDE]
        if kinds:
            shape, kind = kinds[-1]
            found[f"{one.name} {'x'.join((*map(str, shape), kind))}"] += 1
    return dict(found)


def _totals(name: str, functions: Mapping[str, Sequence[Operation]]) -> list[int]:
    """Returns the counts, in the order of `count`, of one function and those that it calls."""
    flops, moved, convolutions, products, in_loops = 0, 0, 0, 0, 0
    for one in functions[name]:
        if one.called:
            inner = _totals(one.called, functions)
            flops, moved = flops + inner[0], moved + inner[1]
            convolutions, products = convolutions + inner[2], products + inner[3]
            in_loops += inner[2] + inner[3] if one.in_loop else inner[4]
            continue
        flops += 2 * one.macs()
        convolutions += one.name == "convolution"
        products += one.name in _PRODUCTS
        in_loops += one.in_loop and one.name in ("convolution", *_PRODUCTS)
        if one.name not in _FREE:
            moved += sum(map(_bytes, one.types))
    return [flops, moved, convolutions, products, in_loops]


def _bytes(found: Type) -> int:
    shape, kind = found
    return math.prod(shape) * element_bytes(kind)
