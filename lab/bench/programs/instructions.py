"""Instructions of a program in HLO's text form: shapes, what a loop's turns are, and the size of a product.

A convolution or product counts the multiply-adds whose inputs exist: neither padding nor holes of a dilation.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator

# Bytes of an element; of types that are not named here, 4.
SIZES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f64": 8, "s64": 8, "u64": 8}
_LINE = re.compile(r"^\s*(ROOT )?%(\S+) = (\((?:[^()]|\([^()]*\))*\)|\S+) ([\w-]+)\((.*)$")
_SHAPE = re.compile(r"(\w+)\[([\d,<=]*)\]")


@dataclasses.dataclass
class Instruction:
    """A line of a computation: `dtype[shape] opcode(operands), attributes`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    opcode: str
    operands: list[str]
    attributes: str
    root: bool = False

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)


def computations_of(text: str) -> Iterator[tuple[str, list[Instruction]]]:
    """Name and instructions of each computation of a program."""
    name, body = None, []
    for line in text.splitlines():
        if line.endswith("{") and line.startswith(("%", "ENTRY")):
            name, body = line.removeprefix("ENTRY ").split()[0].lstrip("%"), []
        elif line.startswith("}") and name:
            yield name, body
            name = None
        elif name and (match := _LINE.match(line)):
            body.append(_instruction(match))


def _instruction(match: re.Match) -> Instruction:
    root, name, kind, opcode, rest = match.groups()
    end = _closing(rest)
    dtype, dims = _SHAPE.search(kind).groups() if _SHAPE.search(kind) else ("token", "")
    shape = tuple(int(d.strip("<=")) for d in dims.split(",") if d)
    operands = re.findall(r"%([\w.\-]+)", rest[:end])
    return Instruction(name, dtype, shape, opcode, operands, rest[end + 1 :], bool(root))


def _closing(text: str) -> int:
    """Where the bracket that `text` begins inside of is closed."""
    depth = 1
    for place, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if not depth:
            return place
    return len(text)


def alive(body: list[Instruction]) -> Iterator[Instruction]:
    """The instructions that the result depends on, in order: a gradient that nobody asks for is never computed."""
    needed = {one.name for one in body if one.root}
    for one in reversed(body):
        if one.name in needed:
            needed.update(one.operands)
    return (one for one in body if one.name in needed)


def bytes_of(dtype: str) -> int:
    """Of an element."""
    return SIZES.get(dtype, 4)


def turns_of(one: Instruction, computations: dict[str, list[Instruction]]) -> int:
    """Turns of a loop that counts to a constant."""
    match = re.search(r"condition=%?([\w.\-]+)", one.attributes)
    if not match:
        return 1
    for inner in computations[match[1]]:
        if inner.opcode == "constant" and inner.dtype in ("s32", "s64", "u32"):
            return int(re.match(r".*?(\d+)", inner.attributes or "0")[1]) if inner.attributes else 1
    return 1


def matrix_of(one: Instruction, at: dict[str, Instruction]) -> dict[str, float]:
    """FLOPs of a convolution or product, and m, n, k (and groups) of the products [m, k] x [k, n] that it is."""
    left, right = (at[name].shape for name in one.operands[:2])
    if one.opcode == "dot":
        batch, contracted = _dims(one, "lhs_batch_dims"), _dims(one, "lhs_contracting_dims")
        groups = math.prod(left[d] for d in batch)
        k = math.prod(left[d] for d in contracted)
        m = math.prod(left) // (groups * k)
        n = math.prod(right) // (groups * k)
        return {"flops": 2.0 * groups * m * n * k, "m": m, "n": n, "k": k, "groups": groups}
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", one.attributes)
    kernel, output = labels[2], labels[3]
    n = one.shape[output.index("f")]
    m = one.size // n
    spatial = 1
    for number, window in enumerate(_windows(one, len(output) - 2)):
        spatial *= _valid(left[labels[1].index(str(number))], one.shape[output.index(str(number))], **window)
    inputs = right[kernel.index("i")]
    flops = 2.0 * one.shape[output.index("b")] * n * spatial * inputs
    return {"flops": flops, "m": m, "n": n, "k": flops / (2.0 * m * n)}


def _dims(one: Instruction, attribute: str) -> list[int]:
    match = re.search(rf"{attribute}={{([\d,]*)}}", one.attributes)
    return [int(d) for d in match[1].split(",") if d] if match else []


def _windows(one: Instruction, dimensions: int) -> list[dict[str, int]]:
    inside = re.search(r"window={([^}]*)}", one.attributes)
    fields = dict(f.split("=") for f in inside[1].split()) if inside else {}
    result = []
    for d in range(dimensions):

        def of(name: str, default: str, d: int = d) -> str:
            return fields[name].split("x")[d] if name in fields else default

        result.append(
            {
                "size": int(of("size", "1")),
                "stride": int(of("stride", "1")),
                "low": int(of("pad", "0_0").split("_")[0]),
                "base": int(of("lhs_dilate", "1")),
                "hole": int(of("rhs_dilate", "1")),
            }
        )
    return result


def _valid(length: int, outputs: int, size: int, stride: int, low: int, base: int, hole: int) -> int:
    """Pairs of an output and a place in the window that lies on an element, in one dimension."""
    count = 0
    for place in range(size):
        for output in range(outputs):
            position = output * stride + place * hole - low
            count += position % base == 0 and 0 <= position // base < length
    return count
