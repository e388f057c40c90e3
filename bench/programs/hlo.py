"""FLOPs and bytes of a traced step, kernel by kernel, read from its HLO before XLA optimises it.

TensorFlow hands out the program but not XLA's cost analysis, which this follows: a convolution or product counts the
multiply-adds whose inputs exist (neither padding nor holes of a dilation). Bytes need a guess at fusion, since no
accelerator writes every intermediate: element-wise operations are computed where they are read, unless writing the
result once moves fewer bytes, or a kernel that cannot fuse its inputs (a product, a pool, a gather) needs it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator

SIZES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f64": 8, "s64": 8, "u64": 8}
# Looked through: layout, types, and what is generated in place.
_FREE = frozenset(
    [
        "broadcast",
        "reshape",
        "convert",
        "bitcast",
        "constant",
        "iota",
        "get-tuple-element",
        "tuple",
        "set-dimension-size",
        "copy",
        "slice",
        "transpose",
        "reverse",
        "pad",
        "parameter",
        "bitcast-convert",
        "rng-get-and-update-state",
        "get-dimension-size",
        "after-all",
        "optimization-barrier",
    ]
)
_MATRIX = frozenset(("convolution", "dot"))
_HEAVY = frozenset(
    [
        "reduce-window",
        "select-and-scatter",
        "gather",
        "scatter",
        "sort",
        "concatenate",
        "dynamic-slice",
        "dynamic-update-slice",
        "rng",
        "rng-bit-generator",
        "custom-call",
        "triangular-solve",
        "cholesky",
        "fft",
        "reduce",
        "batch-norm-training",
        "batch-norm-grad",
    ]
)
# Of these, what computes its inputs as it reads them.
_FUSIBLE = frozenset(("reduce", "batch-norm-training", "batch-norm-grad"))
_KINDS = {"convolution": "convolution", "dot": "product", "gather": "gather", "scatter": "gather"}
_KINDS |= {"batch-norm-training": "norm", "batch-norm-grad": "norm", "reduce": "reduction"}
_KINDS |= {"reduce-window": "pool", "select-and-scatter": "pool"}

_SMALL = 4096  # Bytes: what touches no more works on scalars and shapes, and is left out.

_LINE = re.compile(r"^\s*(ROOT )?%(\S+) = (\((?:[^()]|\([^()]*\))*\)|\S+) ([\w-]+)\((.*)$")
_SHAPE = re.compile(r"(\w+)\[([\d,<=]*)\]")


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One launch: `groups` products [m, k] x [k, n] or, without `m`, what moves `bytes` only.

    `wide` of the bytes are of four-byte types whatever the precision.
    """

    kind: str
    bytes: float
    wide: float
    flops: float = 0.0
    m: float = 0.0
    n: float = 0.0
    k: float = 0.0
    groups: float = 1.0


@dataclasses.dataclass
class _Instruction:
    name: str
    dtype: str
    shape: tuple[int, ...]
    opcode: str
    operands: list[str]
    attributes: str
    root: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Choices:
    """What was decided by comparing sizes, in order: to make the same choices for the same program of another batch."""

    def __init__(self) -> None:
        self._made: list[bool] = []
        self._again: list[bool] | None = None

    def __call__(self, value: bool) -> bool:
        if self._again is not None:
            return self._again.pop(0)
        self._made.append(value)
        return value

    def replay(self) -> Choices:
        """The same object, which from now on repeats its choices from the first on."""
        self._again = list(self._made)
        return self


def kernels(text: str, choices: Choices | None = None) -> list[Kernel]:
    """The kernels of a program's entry computation, calls inlined, loops with a known number of turns multiplied."""
    computations = dict(_computations(text))
    entry = re.search(r"^ENTRY %(\S+)", text, re.M)[1]
    return _Fusion(computations, computations[entry], choices or Choices()).kernels()


def _computations(text: str) -> Iterator[tuple[str, list[_Instruction]]]:
    name, body = None, []
    for line in text.splitlines():
        if line.endswith("{") and line.startswith(("%", "ENTRY")):
            name, body = line.removeprefix("ENTRY ").split()[0].lstrip("%"), []
        elif line.startswith("}") and name:
            yield name, body
            name = None
        elif name and (match := _LINE.match(line)):
            body.append(_instruction(match))


def _instruction(match: re.Match) -> _Instruction:
    root, name, kind, opcode, rest = match.groups()
    end = _closing(rest)
    dtype, dims = _SHAPE.search(kind).groups() if _SHAPE.search(kind) else ("token", "")
    shape = tuple(int(d.strip("<=")) for d in dims.split(",") if d)
    operands = re.findall(r"%([\w.\-]+)", rest[:end])
    return _Instruction(name, dtype, shape, opcode, operands, rest[end + 1 :], bool(root))


def _closing(text: str) -> int:
    """Where the bracket that `text` begins inside of is closed."""
    depth = 1
    for place, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if not depth:
            return place
    return len(text)


def _alive(body: list[_Instruction]) -> Iterator[_Instruction]:
    """The instructions that the result depends on, in order: a gradient that nobody asks for is never computed."""
    needed = {one.name for one in body if one.root}
    for one in reversed(body):
        if one.name in needed:
            needed.update(one.operands)
    return (one for one in body if one.name in needed)


class _Fusion:
    """Which tensors of a computation are written to memory, and what each kernel reads."""

    def __init__(
        self,
        computations: dict[str, list[_Instruction]],
        body: list[_Instruction],
        choices: Choices,
    ):
        self.computations, self.body, self.choose = computations, list(_alive(body)), choices
        self.at = {i.name: i for i in self.body}
        self.users: dict[str, int] = {}
        self.stored: dict[str, int] = {}  # name -> bytes of an element in memory
        self.leaves: dict[str, dict[str, float]] = {}
        self.out: list[Kernel] = []
        self._find_stored()

    def _find_stored(self) -> None:
        for one in self.body:
            for operand in one.operands if one.opcode not in _FREE or one.root else ():
                source, size = self._source(operand)
                self.users[source] = self.users.get(source, 0) + 1
                if one.root or one.opcode in _MATRIX or one.opcode in _HEAVY - _FUSIBLE:
                    self.stored[source] = min(size, self.stored.get(source, 8))
            if one.opcode == "parameter" or one.opcode in _MATRIX or one.opcode in _HEAVY:
                self.stored.setdefault(one.name, _bytes(one.dtype))

    def _source(self, name: str) -> tuple[str, int]:
        """The instruction behind what is only looked through, and the narrowest type on the way."""
        size = _bytes(self.at[name].dtype)
        while self.at[name].opcode in _FREE and self.at[name].operands:
            inner = self.at[name].operands[0]
            if self.at[inner].opcode.startswith("batch-norm"):
                return name, size
            name = inner
            if self.at[name].dtype in ("f32", "bf16", "f16", "f64"):
                size = min(size, _bytes(self.at[name].dtype))
        return name, size

    def kernels(self) -> list[Kernel]:
        for one in self.body:
            self._visit(one)
        return self.out

    def _visit(self, one: _Instruction) -> None:
        if one.opcode in ("call", "while", "conditional"):
            self._nested(one)
            self.leaves[one.name] = {one.name: one.size * _bytes(one.dtype)}
            return
        reads: dict[str, float] = {}
        for operand in one.operands:
            reads |= self.leaves.get(operand, {})
        if one.opcode == "parameter":
            self.leaves[one.name] = {one.name: one.size * _bytes(one.dtype)}
        elif one.opcode in _FREE:
            self._free(one, reads)
        elif one.opcode in _MATRIX or one.opcode in _HEAVY:
            self._kernel(one, reads)
        else:
            self._elementwise(one, reads)

    def _free(self, one: _Instruction, reads: dict[str, float]) -> None:
        source = one.operands and self.at[one.operands[0]]
        if source and source.opcode.startswith("batch-norm") and one.size == self.at[source.operands[0]].size:
            # The normalised tensor, or the gradient of what was normalised: element-wise, of what the kernel read.
            inputs: dict[str, float] = {}
            for operand in source.operands:
                inputs |= self.leaves.get(operand, {})
            self._elementwise(one, inputs)
        elif one.opcode == "broadcast" or one.opcode == "slice":
            # A slice reads what it keeps.
            self.leaves[one.name] = {n: min(b, one.size * 4.0) for n, b in reads.items()}
        else:
            self.leaves[one.name] = reads

    def _elementwise(self, one: _Instruction, reads: dict[str, float]) -> None:
        users = self.users.get(one.name, 0)
        mine = one.size * _bytes(one.dtype)
        size = self.stored.get(one.name)
        total = sum(reads.values())
        if size is None and users > 1 and self.choose(users * total > total + (1 + users) * mine):
            size = _bytes(one.dtype)
        if size is None:
            self.leaves[one.name] = reads
            return
        written = one.size * size
        self._emit("elementwise", one, reads, written, size)
        self.leaves[one.name] = {one.name: float(written)}

    def _kernel(self, one: _Instruction, reads: dict[str, float]) -> None:
        size = self.stored[one.name]
        written = 0.0 if one.opcode.startswith("batch-norm") else float(one.size * size)
        if one.opcode in _MATRIX:
            reads = {}
            for operand in one.operands:
                source, width = self._source(operand)
                reads[source] = float(min(self.at[source].size, self.at[operand].size) * width)
        elif one.opcode in ("gather", "dynamic-slice"):
            reads = {one.name: written}
        elif one.opcode in ("scatter", "dynamic-update-slice"):
            reads = {one.operands[-1]: float(self.at[one.operands[-1]].size * 4)}
        self._emit(_KINDS.get(one.opcode, "other"), one, reads, written, size)
        self.leaves[one.name] = {one.name: written}

    def _emit(self, kind: str, one: _Instruction, reads: dict[str, float], written: float, size: int) -> None:
        total = sum(reads.values()) + written
        if one.opcode not in _MATRIX and self.choose(max((written, *reads.values()), default=0) < _SMALL):
            return
        wide = written if size >= 4 else 0.0
        wide += sum(b for n, b in reads.items() if self._wide(n))
        matrix = _matrix(one, self.at) if one.opcode in _MATRIX else {}
        self.out.append(Kernel(kind, total, wide, **matrix))

    def _wide(self, name: str) -> bool:
        return self.stored.get(name, _bytes(self.at[name].dtype)) >= 4

    def _nested(self, one: _Instruction) -> None:
        for attribute, turns in (("to_apply", 1), ("body", _turns(one, self.computations))):
            if match := re.search(rf"{attribute}=%?([\w.\-]+)", one.attributes):
                inner = _Fusion(self.computations, self.computations[match[1]], self.choose).kernels()
                self.out += inner * turns


def _bytes(dtype: str) -> int:
    return SIZES.get(dtype, 4)


def _turns(one: _Instruction, computations: dict[str, list[_Instruction]]) -> int:
    """Turns of a loop that counts to a constant."""
    match = re.search(r"condition=%?([\w.\-]+)", one.attributes)
    if not match:
        return 1
    for inner in computations[match[1]]:
        if inner.opcode == "constant" and inner.dtype in ("s32", "s64", "u32"):
            return int(re.match(r".*?(\d+)", inner.attributes or "0")[1]) if inner.attributes else 1
    return 1


def _matrix(one: _Instruction, at: dict[str, _Instruction]) -> dict[str, float]:
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


def _dims(one: _Instruction, attribute: str) -> list[int]:
    match = re.search(rf"{attribute}={{([\d,]*)}}", one.attributes)
    return [int(d) for d in match[1].split(",") if d] if match else []


def _windows(one: _Instruction, dimensions: int) -> list[dict[str, int]]:
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
