"""Counts what a GPU program launches and moves: kernels, bytes read and written, copies, and each loop's body.

A kernel is a scheduled instruction that computes or copies; a library call counts as one kernel, whatever it launches.
If a fusion only slices an operand, only the slices count. If a result is written in place, only the written part
counts. Kernels in a loop's body are counted once per iteration if the number is known.
"""

from __future__ import annotations

import math
import re
from typing import Any

from common.hlo.sizes import element_bytes
from systems.compile.hlo import Instruction, Program

_FREE = (
    "parameter", "get-tuple-element", "tuple", "constant", "bitcast", "after-all", "partition-id",
    "replica-id",
)  # fmt: skip
_CONTROL = ("while", "conditional", "call", "opt-barrier")
_SLICES = ("dynamic-slice", "slice", "gather")


def launches(program: Program) -> dict[str, Any]:
    """Returns what one call of a GPU program launches and moves.

    Returns:
      kernels, loop_kernels: number launched in total, and in loops. bytes_read, bytes_written. copies: {"count",
        "bytes"} of copies and transpositions. loops: the outermost loops in order, [{"name", "turns" (iterations; 0:
        unknown), "kernels" per iteration, "kinds": {kind: number}}].
    """
    total = {"kernels": 0, "loop_kernels": 0, "bytes_read": 0, "bytes_written": 0}
    copies = {"count": 0, "bytes": 0}
    for one, times in program.scheduled():
        if not is_kernel(one):
            continue
        read, bytes_written = moved(program, one)
        total["kernels"] += times
        total["bytes_read"] += times * read
        total["bytes_written"] += times * bytes_written
        if program.kind(one) == "copy":
            copies["count"] += times
            copies["bytes"] += times * bytes_written
    loops = [_loop(program, one) for one in program.computations[program.entry] if one.opcode == "while"]
    total["loop_kernels"] = sum(max(1, loop["turns"]) * loop["kernels"] for loop in loops)
    return {**total, "copies": copies, "loops": loops}


def _loop(program: Program, loop: Instruction) -> dict[str, Any]:
    kinds: dict[str, int] = {}
    for one, times in program.scheduled(loop.attribute(r"body=%?([\w.\-]+)")):
        if is_kernel(one):
            kind = program.kind(one)
            kinds[kind] = kinds.get(kind, 0) + times
    name = loop.attribute(r'op_name="([^"]*)"')
    return {"name": name, "turns": program.trips(loop), "kernels": sum(kinds.values()), "kinds": kinds}


def is_kernel(one: Instruction) -> bool:
    """Whether the instruction launches something; in a start/done pair, the start does."""
    return one.opcode not in (*_FREE, *_CONTROL) and not one.opcode.endswith("-done")


def moved(program: Program, one: Instruction) -> tuple[int, int]:
    """Bytes that a kernel reads and writes."""
    if one.opcode == "fusion":
        body = program.computations.get(one.attribute(r"calls=%?([\w.\-]+)"), [])
        if body:
            return _moved_by_fusion(body)
    sizes = [_bytes(program.by_name[name]) if name in program.by_name else 0 for name in one.operands]
    if one.opcode == "dynamic-update-slice":
        return sizes[1], sizes[1]
    if one.opcode in _SLICES:
        return one.nbytes + sum(sizes[1:]), one.nbytes
    return sum(sizes), _without_workspace(one)


def _moved_by_fusion(body: list[Instruction]) -> tuple[int, int]:
    at, root = {one.name: one for one in body}, body[-1]
    # The fraction of each instruction's elements that the results depend on, from the last instruction to the first.
    shares = dict.fromkeys(at, 0.0) | {root.name: 1.0}
    for one in reversed(body):
        for place, name in enumerate(dict.fromkeys(one.operands)):
            if name in shares:
                shares[name] = min(1.0, shares[name] + shares[one.name] * _used(one, place, at[name]))
    read = sum(shares[one.name] * one.nbytes for one in body if one.opcode == "parameter")
    roots = [at[name] for name in root.operands if name in at] if root.opcode == "tuple" else [root]
    return round(read), sum(_bytes_written(one, at) for one in roots)


def _used(user: Instruction, place: int, operand: Instruction) -> float:
    """The fraction of an operand's elements that `user` reads."""
    if place or user.opcode not in (*_SLICES, "dynamic-update-slice"):
        return 1.0
    if user.opcode == "dynamic-update-slice":
        return 0.0
    return min(1.0, user.nbytes / max(1, operand.nbytes))


def _bytes_written(one: Instruction, at: dict[str, Instruction]) -> int:
    """Bytes written for a result; for an in-place result, the bytes of the update."""
    while one.opcode == "bitcast" and one.operands[0] in at:
        one = at[one.operands[0]]
    if one.opcode == "dynamic-update-slice" and one.operands[1] in at:
        return at[one.operands[1]].nbytes
    return one.nbytes


def _without_workspace(one: Instruction) -> int:
    """Bytes of the result; for a library call without its scratch memory, which comes last in the tuple, as bytes."""
    if one.opcode == "custom-call":
        scratch = re.search(r"u8\[(\d+)\](?:\{0\})?\)$", one.result)
        return one.nbytes - (int(scratch[1]) if scratch else 0)
    return one.nbytes


def _bytes(one: Instruction) -> int:
    """Bytes of a result; for a tuple, the sum over its parts."""
    return sum(element_bytes(kind) * math.prod(sides) for kind, sides in one.shapes)


def lines(counts: dict[str, Any]) -> list[str]:
    """Formats `launches`'s result as report lines; loops with equal iterations and kernels share a line."""
    mega = 1e6
    report = [
        f"  launches    {counts['kernels']} kernels, {counts['loop_kernels']} of them in loops; reads "
        f"{counts['bytes_read'] / mega:.0f} MB, writes {counts['bytes_written'] / mega:.0f} MB; "
        f"{counts['copies']['count']} copies of {counts['copies']['bytes'] / mega:.0f} MB"
    ]
    alike: dict[tuple, int] = {}
    for loop in counts["loops"]:
        kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(loop["kinds"].items()))
        key = loop["turns"], loop["kernels"], kinds
        alike[key] = alike.get(key, 0) + 1
    for (turns, kernels, kinds), count in alike.items():
        report.append(f"  loop        {count} x {turns or 'unknown'} turns of {kernels} kernels ({kinds})")
    return report
