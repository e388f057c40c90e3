"""Reads an optimised program's text: time by kind and by layer, collectives, copies, kernels by library.

The TPU compiler writes "estimated_cycles" into most instructions: its scheduler's own estimate. Collectives, custom
calls and scalar operations have none. A loop's body counts as often as the loop is known to run.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterator

_BYTES = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
}
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
COPIES = ("copy", "transpose")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (\([^=]*?\)|\S+) ([a-z][\w\-]*)\((.*)$")
_COMMENT = re.compile(r"/\*.*?\*/")  # "/*index=5*/" in long tuples.
_SHAPE = re.compile(r"\b(pred|[suf]\d+(?:e\d\w+)?|bf16|c64)\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
      name, opcode: as written.
      result: text of the result's shape.
      rest: what follows the opcode: operands and attributes.
      cycles: the compiler's estimate, None where it has none.
    """

    name: str
    opcode: str
    result: str
    rest: str
    cycles: int | None

    def attribute(self, pattern: str) -> str:
        """The first group of `pattern` in the line, '' where it does not match."""
        found = re.search(pattern, self.rest)
        return found[1] if found else ""

    @property
    def nbytes(self) -> int:
        """Bytes of the result; of a pair that a -start returns, those of its last part."""
        shapes = _SHAPE.findall(self.result)
        if self.opcode.endswith("-start") and len(shapes) > 1:
            shapes = shapes[len(shapes) // 2 :]
        return _bytes(shapes)

    @property
    def layer(self) -> str:
        """The layer that TensorFlow names: forward and backward of one layer share it."""
        path = [p for p in self.attribute(r'op_name="([^"]*)"').split("/") if p != "gradient_tape"]
        return "/".join(path[:2]) if len(path) > 1 else "other"


def bytes_of(result: str) -> int:
    """Bytes of a result's shape, a text; of a tuple, of all its parts."""
    return _bytes(_SHAPE.findall(result))


def _bytes(shapes: list[tuple[str, str]]) -> int:
    return sum(
        _BYTES.get(kind, 4) * math.prod(map(int, filter(None, sides.split(",")))) for kind, sides in shapes
    )


class Program:
    """An optimised program.

    Attributes:
      computations: {name: its instructions}.
      entry: the name of the computation that runs.
      results: {instruction: text of its result's shape}.
    """

    def __init__(self, text: str):
        self.computations: dict[str, list[Instruction]] = {}
        self.entry, current = "", ""
        for line in text.splitlines():
            head = None if line.startswith(" ") else _HEAD.match(line)
            if head:
                current = head[2]
                self.computations[current] = []
                self.entry = current if head[1] else self.entry
            elif line.startswith("}"):
                current = ""
            elif current:
                line = _COMMENT.sub("", line)
                found = _INSTRUCTION.match(line)
                if found:
                    cycles = re.search(r'"estimated_cycles":"(\d+)"', line)
                    self.computations[current].append(
                        Instruction(
                            found[1], found[3], found[2], found[4], int(cycles[1]) if cycles else None
                        )
                    )
        self.results = {one.name: one.result for found in self.computations.values() for one in found}

    def scheduled(self, name: str = "", times: int = 1) -> Iterator[tuple[Instruction, int]]:
        """Yields the instructions that run and how often: the entry's, and those of loops and calls inside it."""
        for one in self.computations.get(name or self.entry, []):
            yield one, times
            if one.opcode == "while":
                body = one.attribute(r"body=%?([\w.\-]+)")
                yield from self.scheduled(body, times * (self.trips(one) or 1))
            elif one.opcode in ("call", "async-start"):
                inner = one.attribute(r"(?:to_apply|calls)=%?([\w.\-]+)")
                yield from self.scheduled(inner, times) if inner in self.computations else ()
            elif one.opcode == "conditional":
                yield from self._dearest(one, times)

    def trips(self, loop: Instruction) -> int:
        """How often a loop runs; 0 where it is not known.

        The TPU compiler says it of no loop: then it is the bound of a condition that does nothing but compare a counter
        with a constant. TensorFlow's counters start at 0 and grow by one.
        """
        known = loop.attribute(r'"known_trip_count":\{"n":"(\d+)"\}')
        if known:
            return int(known)
        condition = self.computations.get(loop.attribute(r"condition=%?([\w.\-]+)"), [])
        bounds = [i.attribute(r"^(\d+)\)") for i in condition if i.opcode == "constant"]
        done = [i for i in condition if i.opcode not in ("constant", "parameter", "get-tuple-element")]
        counts = len(done) == 1 and done[0].opcode == "compare" and "direction=LT" in done[0].rest
        return int(bounds[0]) if counts and len(bounds) == 1 and bounds[0] else 0

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
        """ "matrix", "collective", "copy", "loop", "random" or "other": a fusion is what it holds."""
        base = one.opcode.removesuffix("-start").removesuffix("-done")
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
            called = one.attribute(r"calls=%?([\w.\-]+)")
            inside |= {i.opcode for i in self.computations.get(called, [])}
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

    def matrices(self, one: Instruction) -> list[Instruction]:
        """The convolutions and products of an instruction: itself, or what a fusion holds."""
        if one.opcode == "fusion":
            inside = self.computations.get(one.attribute(r"calls=%?([\w.\-]+)"), [])
            return [found for i in inside for found in self.matrices(i)]
        target = one.attribute(r'custom_call_target="([^"]+)"') if one.opcode == "custom-call" else ""
        called = re.search("conv|gemm|matmul", target, re.IGNORECASE)
        return [one] if called or one.opcode in ("convolution", "dot") else []

    def operand_type(self, one: Instruction) -> str:
        """The wider type of the first two operands of a convolution or product, "f16" or another."""
        operands = re.findall(r"%([\w.\-]+)", one.rest.partition(")")[0])[:2]
        kinds = [_SHAPE.findall(self.results.get(name, one.result))[0][0] for name in operands]
        return max(kinds or ["f32"], key=lambda kind: _BYTES.get(kind, 4))


def cycles(program: Program) -> dict:
    """Estimated cycles of a step: {"total", "by_kind", "by_layer", "loops_of_unknown_length", "without": opcodes}."""
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
    """What is exchanged in a step: opcode, groups, replicas in a group, strategy; number and bytes of each such sum.

    A permutation also has its "distances", from the replica that sends to the one that receives.
    """
    found: dict[tuple, list[int]] = {}
    for one, times in program.scheduled():
        base = one.opcode.removesuffix("-start")
        if base not in COLLECTIVES:
            continue
        number, size = groups(one)
        strategy = one.attribute(r'"strategy":"?([^",}]+(?:\{[^}]*\})?)') or one.attribute(
            r"(StrategyND\{[^}]*\})"
        )
        entry = found.setdefault((base, number, size, strategy, distances(one)), [0, 0])
        entry[0] += times
        entry[1] += times * one.nbytes
    rows = [
        {"operation": op, "groups": n, "group_size": size, "strategy": s, "count": count, "bytes": nbytes}
        | ({"distances": list(moves)} if moves else {})
        for (op, n, size, s, moves), (count, nbytes) in found.items()
    ]
    return sorted(rows, key=lambda row: -row["bytes"])


def groups(one: Instruction) -> tuple[int, int]:
    """(number of groups, replicas in each) of a collective; of a permutation (pairs, 2); (1, 0) is all replicas."""
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
    """Differences between the replicas that receive and send in a permutation; () of another operation."""
    pairs = re.findall(r"\{(\d+),(\d+)\}", one.attribute(r"source_target_pairs=\{(\{.*?\})\}"))
    return tuple(sorted({int(target) - int(source) for source, target in pairs}))


def loop_products(program: Program) -> dict[str, int]:
    """Convolutions and products in the bodies of loops, by the shape of their result; each counts once."""
    found: Counter[str] = Counter()
    bodies = [
        one.attribute(r"body=%?([\w.\-]+)")
        for instructions in program.computations.values()
        for one in instructions
        if one.opcode == "while"
    ]
    for body in bodies:
        for name in [body, *(i.attribute(r"calls=%?([\w.\-]+)") for i in program.computations.get(body, []))]:
            for one in program.computations.get(name, []):
                if one.opcode in ("convolution", "dot"):
                    kind, sides = _SHAPE.findall(one.result)[0]
                    found[f"{kind}[{sides}]"] += 1
    return dict(found.most_common())


def shared_branches(program: Program) -> list[int]:
    """The number of cases of each conditional of more than two, of which a replica runs one."""
    counts = []
    for instructions in program.computations.values():
        for one in instructions:
            cases = one.attribute(r"branch_computations=\{([^}]*)\}").count(",") + 1
            if one.opcode == "conditional" and cases > 2:
                counts.append(cases)
    return counts


def copies(program: Program) -> dict:
    """Copies and transpositions that are left: {"count", "bytes", "cycles"}."""
    found = [(one, times) for one, times in program.scheduled() if program.kind(one) == "copy"]
    return {
        "count": sum(times for _, times in found),
        "bytes": sum(one.nbytes * times for one, times in found),
        "cycles": sum((one.cycles or 0) * times for one, times in found),
    }


def kernels(program: Program) -> dict:
    """A GPU program's kernels: calls by library, fusions by kind, and convolutions and products by type.

    Returns:
      calls: {library's name: number}. fusions: {kind: number}. matrix_types: {type of the operands: number} of
      convolutions and products, those inside fusions among them. wide_matrices: {layer, or operation and shape:
      number} of those whose operands have more than 16 bits.
    """
    calls: Counter[str] = Counter()
    fusions: Counter[str] = Counter()
    types: Counter[str] = Counter()
    wide: Counter[str] = Counter()
    for one, times in program.scheduled():
        if one.opcode == "custom-call":
            calls[one.attribute(r'custom_call_target="([^"]+)"')] += times
        elif one.opcode == "fusion":
            fusions[one.attribute(r"kind=k(\w+)")] += times
        for matrix in program.matrices(one):
            kind = program.operand_type(matrix)
            types[kind] += times
            if _BYTES.get(kind, 4) > 2:
                wide[_named(matrix)] += times
    return {
        "calls": dict(calls),
        "fusions": dict(fusions),
        "matrix_types": dict(types),
        "wide_matrices": dict(wide),
    }


def _named(one: Instruction) -> str:
    """Returns the layer of a convolution or product; where it has none, its operation's name and the result's shape."""
    if one.layer != "other":
        return one.layer
    shape = _SHAPE.findall(one.result)[0][1].replace(",", "x")
    return (one.attribute(r'op_name="([^"]*)"').removeprefix("gradient_tape/") or one.opcode) + f" {shape}"


def wide_arithmetic(program: Program) -> dict[str, int]:
    """Operations on 64-bit numbers that are left, by opcode; a TPU emulates them."""
    found: Counter[str] = Counter()
    for instructions in program.computations.values():
        for one in instructions:
            moves = one.opcode in ("parameter", "tuple", "get-tuple-element", "constant", "bitcast", "copy")
            if (
                not moves
                and _SHAPE.findall(one.result)[:1]
                and _SHAPE.findall(one.result)[0][0] in ("s64", "u64", "f64")
            ):
                found[one.opcode] += 1
            elif one.opcode == "custom-call" and "X64" in one.rest:
                found[one.attribute(r'custom_call_target="([^"]+)"')] += 1
    return dict(found)
