"""Parses HLO text, before or after XLA's optimization: computations, instructions, loops, products."""

import dataclasses
import functools
import math
import re

from common.hlo.sizes import element_bytes, sides

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{\s*$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)$")
_COMMENT = re.compile(r"/\*.*?\*/")  # "/*index=5*/" in long tuples.
_SHAPE = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\]")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_NAME = re.compile(r"%([\w.\-]+)")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation: `name = result opcode(operands), attributes`.

    Attributes:
      name, opcode: as written.
      result: text of the result's shape.
      rest: text after the opcode's opening bracket: operands and attributes.
      root: whether it is the computation's result.
    """

    name: str
    opcode: str
    result: str
    rest: str
    root: bool = False

    def attribute(self, pattern: str) -> str:
        """The first group of `pattern` in the line; '' if it does not match."""
        match = re.search(pattern, self.rest)
        return match[1] if match else ""

    @functools.cached_property
    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """(type, dimensions) of the result, or of each part of a tuple."""
        return [(kind, sides(text)) for kind, text in _SHAPE.findall(self.result)]

    @property
    def dtype(self) -> str:
        """The element type of the result or its first part, in HLO's notation."""
        return self.shapes[0][0] if self.shapes else "token"

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions of the result or its first part."""
        return self.shapes[0][1] if self.shapes else ()

    @property
    def size(self) -> int:
        """Number of elements of the result or its first part."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the result; of the pair that a -start instruction returns, only the second part counts."""
        shapes = self.shapes
        if self.opcode.endswith("-start") and len(shapes) > 1:
            shapes = shapes[len(shapes) // 2 :]
        return sum(element_bytes(kind) * math.prod(sides) for kind, sides in shapes)

    @functools.cached_property
    def cycles(self) -> int | None:
        """The TPU scheduler's estimate in cycles; None if there is none."""
        match = _CYCLES.search(self.rest)
        return int(match[1]) if match else None

    @functools.cached_property
    def _end(self) -> int:
        """Index of the operands' closing bracket in `rest`."""
        depth = 1
        for place, letter in enumerate(self.rest):
            depth += (letter == "(") - (letter == ")")
            if not depth:
                return place
        return len(self.rest)

    @property
    def operands(self) -> list[str]:
        """The names of the operands."""
        return _NAME.findall(self.rest[: self._end])

    @property
    def attributes(self) -> str:
        """The text after the operands."""
        return self.rest[self._end + 1 :]

    @property
    def layer(self) -> str:
        """The layer's name from TensorFlow; a layer's forward and backward pass share it."""
        path = [p for p in self.attribute(r'op_name="([^"]*)"').split("/") if p != "gradient_tape"]
        return "/".join(path[:2]) if len(path) > 1 else "other"

    @property
    def base(self) -> str:
        """The opcode without an asynchronous operation's "-start" or "-done"."""
        return self.opcode.removesuffix("-start").removesuffix("-done")


class Program:
    """A parsed program.

    Attributes:
      computations: {name: its instructions}.
      entry: the name of the entry computation.
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
                match = _INSTRUCTION.match(_COMMENT.sub("", line))
                if match:
                    root, name, result, opcode, rest = match.groups()
                    self.computations[current].append(Instruction(name, opcode, result, rest, bool(root)))

    def called(self, one: Instruction, by: str) -> str:
        """The computation that an instruction calls through attribute `by` ("body", "calls", "to_apply"); or ''."""
        name = one.attribute(rf"\b{by}=%?([\w.\-]+)")
        return name if name in self.computations else ""

    def trips(self, loop: Instruction) -> int:
        """How often a loop runs; 0 if unknown.

        Unoptimized programs and programs from the TPU compiler do not state trip counts. For these, it is the bound in
        the loop's condition, if that condition only compares a counter with a constant. TensorFlow's counters start at
        0 and grow by one.
        """
        count = loop.attribute(r'"known_trip_count":\{"n":"(\d+)"\}')
        if count:
            return int(count)
        condition = self.computations.get(self.called(loop, "condition"), [])
        bounds = [i.attribute(r"^(\d+)\)") for i in condition if i.opcode == "constant"]
        done = [i for i in condition if i.opcode not in ("constant", "parameter", "get-tuple-element")]
        counts = len(done) == 1 and done[0].opcode == "compare" and "direction=LT" in done[0].rest
        return int(bounds[0]) if counts and len(bounds) == 1 and bounds[0] else 0
