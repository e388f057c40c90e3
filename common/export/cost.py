"""Counts a StableHLO program's FLOPs and bytes from its text, like XLA's cost analysis of an unfused program."""

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
    "constant", "get_tuple_element", "tuple", "optimization_barrier", "return", "iota", "case", "while", "if",
)  # fmt: skip
_MOVES = (*_FREE, "reshape", "broadcast_in_dim", "slice", "concatenate", "transpose", "dynamic_slice", "pad")


def count(text: str) -> dict[str, int]:
    """Counts the work of one call of `main`.

    Returns:
      matrix_flops: 2 per multiply-add in convolutions and matrix products, except multiply-adds with padding or a
        dilation's zeros, as in XLA's analysis. bytes_unfused: bytes of all operations' operands and results, an upper
        bound on what a compiled program moves. convolutions, products: their numbers. in_loops: the number of them
        inside while loops; a loop body counts once.
    """
    names = ("matrix_flops", "bytes_unfused", "convolutions", "products", "in_loops")
    return dict(zip(names, _totals("main", stablehlo_text.functions(text))))


def exchanges(text: str) -> list[dict[str, int | str]]:
    """Lists a program's collectives; identical ones share an entry.

    Returns:
      For each kind: operation, number of groups and group size (for a permutation, number of pairs and 2), count, and
      the total bytes that a replica contributes. Collectives in loops count once.
    """
    counts: dict[tuple, list[int]] = {}
    for one in stablehlo_text.exchanges(text):
        totals = counts.setdefault((one.operation, one.groups, one.size), [0, 0])
        totals[0] += 1
        totals[1] += sum(map(_bytes, one.operands))
    return [
        {"operation": operation, "groups": groups, "size": size, "count": count, "bytes": moved}
        for (operation, groups, size), (count, moved) in sorted(counts.items())
    ]


def wide(text: str) -> dict[str, int]:
    """Counts a program's 64-bit operations, which TPUs emulate; returns {"operation type": count}.

    Constants and operations that only move numbers do not count.
    """
    counts: Counter[str] = Counter()
    for one in stablehlo_text.operations(text):
        # The line that opens a reduction has only its groups; the addition inside it counts.
        if one.name in _MOVES or one.opens:
            continue
        kinds = [(shape, kind) for shape, kind in one.types if kind in _WIDE]
        if kinds:
            shape, kind = kinds[-1]
            counts[f"{one.name} {'x'.join((*map(str, shape), kind))}"] += 1
    return dict(counts)


def _totals(name: str, functions: Mapping[str, Sequence[Operation]]) -> list[int]:
    """Returns the counts of a function and the functions that it calls, in the order of `count`."""
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


def _bytes(tensor: Type) -> int:
    shape, kind = tensor
    return math.prod(shape) * element_bytes(kind)
