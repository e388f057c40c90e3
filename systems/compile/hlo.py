"""Extracts an optimized program's costs: time by kind and by layer, collectives, copies, kernels by library.

The TPU compiler writes "estimated_cycles", its scheduler's estimate, into most instructions. Collectives, custom calls
and scalar operations have none. A loop's body is counted once per iteration if the number is known.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

from common.hlo import hlo_text
from common.hlo.hlo_text import Instruction
from common.hlo.sizes import element_bytes

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
COPIES = ("copy", "transpose")


class Program(hlo_text.Program):
    """An optimized program: which instructions run, how often, and the kind of work they do."""

    def __init__(self, text: str):
        super().__init__(text)
        self.by_name = {one.name: one for instructions in self.computations.values() for one in instructions}

    def scheduled(self, name: str = "", times: int = 1) -> Iterator[tuple[Instruction, int]]:
        """Yields (instruction, times it runs) for the entry computation and the loops and calls inside it."""
        for one in self.computations.get(name or self.entry, []):
            yield one, times
            if one.opcode == "while":
                yield from self._inside(self.called(one, "body"), times * (self.trips(one) or 1))
            elif one.opcode in ("call", "async-start"):
                yield from self._inside(self.called(one, "(?:to_apply|calls)"), times)
            elif one.opcode == "conditional":
                yield from self._dearest(one, times)

    def _inside(self, name: str, times: int) -> Iterator[tuple[Instruction, int]]:
        return self.scheduled(name, times) if name else iter(())

    def _dearest(self, one: Instruction, times: int) -> Iterator[tuple[Instruction, int]]:
        branches = one.attribute(r"branch_computations=\{([^}]*)\}").split(",") + [
            one.attribute(r"true_computation=%?([\w.\-]+)"),
            one.attribute(r"false_computation=%?([\w.\-]+)"),
        ]
        names = [name for name in (b.strip().lstrip("%") for b in branches) if name in self.computations]
        costs = {name: sum((i.cycles or 0) * n for i, n in self.scheduled(name)) for name in names}
        if costs:
            yield from self.scheduled(max(costs, key=costs.__getitem__), times)

    def kind(self, one: Instruction) -> str:
        """ "matrix", "collective", "copy", "loop", "random" or "other"; a fusion has the kind of its contents."""
        base = one.base
        if base in COLLECTIVES:
            return "collective"
        if base in COPIES:
            return "copy"
        if base.startswith("rng"):
            return "random"
        if base == "while":
            return "loop"
        inside = {base}
        if base == "fusion":
            inside |= {i.opcode for i in self.fused(one)}
        if inside & {"convolution", "dot"}:
            return "matrix"
        if base == "fusion" and not inside - {
            "fusion",
            "parameter",
            "copy",
            "transpose",
            "bitcast",
            "reshape",
        }:
            return "copy"
        return "random" if any(name.startswith("rng") for name in inside) else "other"

    def fused(self, one: Instruction) -> list[Instruction]:
        """The instructions inside a fusion."""
        return self.computations.get(self.called(one, "calls"), [])

    def matrices(self, one: Instruction) -> list[Instruction]:
        """The convolutions and products of an instruction: itself, or those inside a fusion."""
        if one.opcode == "fusion":
            return [matrix for i in self.fused(one) for matrix in self.matrices(i)]
        target = one.attribute(r'custom_call_target="([^"]+)"') if one.opcode == "custom-call" else ""
        called = re.search("conv|gemm|matmul", target, re.IGNORECASE)
        return [one] if called or one.opcode in ("convolution", "dot") else []

    def operand_type(self, one: Instruction) -> str:
        """The wider type of a convolution's or product's first two operands, such as "f16"."""
        kinds = [self.by_name.get(name, one).dtype for name in one.operands[:2]]
        return max(kinds or ["f32"], key=element_bytes)


def cycles(program: Program) -> dict:
    """A step's estimated cycles: {"total", "by_kind", "by_layer", "loops_of_unknown_length", "without": opcodes}."""
    by_kind: Counter[str] = Counter()
    by_layer: Counter[str] = Counter()
    without: Counter[str] = Counter()
    unknown = 0
    for one, times in program.scheduled():
        if one.opcode == "while":
            unknown += not program.trips(one)
            continue
        if one.cycles is None:
            without[one.opcode] += times
            continue
        by_kind[program.kind(one)] += one.cycles * times
        by_layer[one.layer] += one.cycles * times
    free = ("parameter", "get-tuple-element", "tuple", "constant", "bitcast")
    return {
        "total": sum(by_kind.values()),
        "by_kind": dict(by_kind.most_common()),
        "by_layer": dict(by_layer.most_common(40)),
        "loops_of_unknown_length": unknown,
        "without": {name: n for name, n in without.most_common(20) if name not in free},
    }


def collectives(program: Program) -> list[dict]:
    """A step's collectives: opcode, groups, replicas per group, strategy; and the number and bytes of each such sum.

    A permutation also has "distances", from the sending replica to the receiving one.
    """
    sums: dict[tuple, list[int]] = {}
    for one, times in program.scheduled():
        base = one.opcode.removesuffix("-start")
        if base not in COLLECTIVES:
            continue
        number, size = groups(one)
        strategy = one.attribute(r'"strategy":"?([^",}]+(?:\{[^}]*\})?)') or one.attribute(
            r"(StrategyND\{[^}]*\})"
        )
        entry = sums.setdefault((base, number, size, strategy, distances(one)), [0, 0])
        entry[0] += times
        entry[1] += times * one.nbytes
    rows = [
        {"operation": op, "groups": n, "group_size": size, "strategy": s, "count": count, "bytes": nbytes}
        | ({"distances": list(moves)} if moves else {})
        for (op, n, size, s, moves), (count, nbytes) in sums.items()
    ]
    return sorted(rows, key=lambda row: -row["bytes"])


def groups(one: Instruction) -> tuple[int, int]:
    """A collective's (number of groups, replicas per group); (pairs, 2) for a permutation; (1, 0): all replicas."""
    pairs = one.attribute(r"source_target_pairs=\{(\{.*?\})\}")
    if pairs:
        return pairs.count("{"), 2
    short = re.search(r"replica_groups=\[(\d+),(\d+)\]<=", one.rest)
    if short:
        return int(short[1]), int(short[2])
    listed = one.attribute(r"replica_groups=\{(\{[\d,{}]*\})\}")
    if listed:
        first = listed[1 : listed.index("}")]
        return listed.count("{"), first.count(",") + 1
    return 1, 0


def distances(one: Instruction) -> tuple[int, ...]:
    """Differences between receiving and sending replicas of a permutation; () for other operations."""
    pairs = re.findall(r"\{(\d+),(\d+)\}", one.attribute(r"source_target_pairs=\{(\{.*?\})\}"))
    return tuple(sorted({int(target) - int(source) for source, target in pairs}))


def loop_products(program: Program) -> dict[str, int]:
    """Convolutions and products in loop bodies, by result shape; each counts once."""
    counts: Counter[str] = Counter()
    bodies = [
        program.called(one, "body")
        for instructions in program.computations.values()
        for one in instructions
        if one.opcode == "while"
    ]
    for body in bodies:
        inside = program.computations.get(body, [])
        for one in [*inside, *(fused for i in inside for fused in program.fused(i))]:
            if one.opcode in ("convolution", "dot"):
                counts[f"{one.dtype}[{','.join(map(str, one.shape))}]"] += 1
    return dict(counts.most_common())


def shared_branches(program: Program) -> list[int]:
    """The number of cases of each conditional that has more than two; a replica runs one case."""
    counts = []
    for instructions in program.computations.values():
        for one in instructions:
            cases = one.attribute(r"branch_computations=\{([^}]*)\}").count(",") + 1
            if one.opcode == "conditional" and cases > 2:
                counts.append(cases)
    return counts


def copies(program: Program) -> dict:
    """Remaining copies and transpositions: {"count", "bytes", "cycles"}."""
    instructions = [(one, times) for one, times in program.scheduled() if program.kind(one) == "copy"]
    return {
        "count": sum(times for _, times in instructions),
        "bytes": sum(one.nbytes * times for one, times in instructions),
        "cycles": sum((one.cycles or 0) * times for one, times in instructions),
    }


def kernels(program: Program) -> dict:
    """A GPU program's kernels: calls by library, and convolutions and products by type.

    Returns:
      calls: {library name: number}. matrix_types: {operand type: number} for convolutions and products, including those
        inside fusions. wide_matrices: {layer, or operation and shape: number} for those with operands of more than 16
        bits.
    """
    calls: Counter[str] = Counter()
    types: Counter[str] = Counter()
    wide: Counter[str] = Counter()
    for one, times in program.scheduled():
        if one.opcode == "custom-call":
            calls[one.attribute(r'custom_call_target="([^"]+)"')] += times
        for matrix in program.matrices(one):
            kind = program.operand_type(matrix)
            types[kind] += times
            if element_bytes(kind) > 2:
                wide[_layer_name(matrix)] += times
    return {
        "calls": dict(calls),
        "matrix_types": dict(types),
        "wide_matrices": dict(wide),
    }


def matrix_flops(program: Program) -> int:
    """FLOPs of a GPU program's products and of cuDNN's attention, each as often as it runs, 2 for a multiply-add.

    Attention is two products forward and five backward; a causal kernel computes half of each. Convolutions are left
    out, and so are products in cuBLAS's calls, which a compiler without a device does not choose.
    """
    total = 0
    for one, times in program.scheduled():
        for product in program.matrices(one):
            if product.opcode == "dot":
                dims = product.attribute(r"lhs_contracting_dims=\{([\d,]*)\}").split(",")
                shape = program.by_name[product.operands[0]].shape
                total += times * 2 * math.prod(product.shape) * math.prod(shape[int(d)] for d in dims if d)
        target = (
            one.attribute(r'custom_call_target="__cudnn\$fmha([^"]+)"') if one.opcode == "custom-call" else ""
        )
        if target:
            query, key = (program.by_name[name].shape for name in one.operands[:2])
            products = 5 if target.endswith("Backward") else 2
            half = 2 if "CAUSAL" in one.rest else 1
            total += times * products * 2 * math.prod(query) * key[1] // half
    return total


def _layer_name(one: Instruction) -> str:
    """Returns the layer of a convolution or product; without one, the operation's name and the result's shape."""
    if one.layer != "other":
        return one.layer
    shape = "x".join(map(str, one.shape))
    return (one.attribute(r'op_name="([^"]*)"').removeprefix("gradient_tape/") or one.opcode) + f" {shape}"


def wide_arithmetic(program: Program) -> dict[str, int]:
    """Remaining operations on 64-bit numbers, by opcode; a TPU emulates them."""
    counts: Counter[str] = Counter()
    for instructions in program.computations.values():
        for one in instructions:
            moves = one.opcode in ("parameter", "tuple", "get-tuple-element", "constant", "bitcast", "copy")
            if not moves and one.dtype in ("s64", "u64", "f64"):
                counts[one.opcode] += 1
            elif one.opcode == "custom-call" and "X64" in one.rest:
                counts[one.attribute(r'custom_call_target="([^"]+)"')] += 1
    return dict(counts)
