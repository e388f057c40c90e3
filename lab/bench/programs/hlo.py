"""FLOPs and bytes of a traced step, kernel by kernel, from its HLO before XLA optimizes it.

TensorFlow gives access to the program but not to XLA's cost analysis, which this module follows: a convolution or
product counts the multiply-adds whose inputs exist (neither padding nor the holes of a dilation). Bytes need an
assumption about fusion, because no accelerator writes every intermediate result. Element-wise operations and
concatenations are computed where they are read, as XLA fuses them (`IsExpensive` in
openxla/xla/xla/service/instruction_fusion.cc). Exceptions: writing the result once moves fewer bytes, or a kernel
that cannot fuse its inputs (a product, a pool, a gather) needs it.
"""

from __future__ import annotations

import dataclasses

from common.hlo.hlo_text import Instruction, Program, alive, product_of
from common.hlo.sizes import element_bytes

# Costs nothing: layout, types, and values that are generated in place.
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
# The ones that compute their inputs as they read them.
_FUSIBLE = frozenset(("reduce", "batch-norm-training", "batch-norm-grad"))
_KINDS = {"convolution": "convolution", "dot": "product", "gather": "gather", "scatter": "gather"}
_KINDS |= {"batch-norm-training": "norm", "batch-norm-grad": "norm", "reduce": "reduction"}
_KINDS |= {"reduce-window": "pool", "select-and-scatter": "pool"}

_SMALL = 4096  # Bytes: an operation that touches no more works on scalars and shapes, and is left out.


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One launch: `groups` products [m, k] x [k, n], or without `m` a kernel that only moves `bytes`.

    `wide` is the part of the bytes whose types have four bytes in every precision.
    """

    kind: str
    bytes: float
    wide: float
    flops: float = 0.0
    m: float = 0.0
    n: float = 0.0
    k: float = 0.0
    groups: float = 1.0


class Choices:
    """Records decisions from comparing sizes, in order, so that another batch's program gets the same decisions."""

    def __init__(self) -> None:
        self._made: list[bool] = []
        self._again: list[bool] | None = None

    def __call__(self, value: bool) -> bool:
        if self._again is not None:
            return self._again.pop(0)
        self._made.append(value)
        return value

    def replay(self) -> Choices:
        """Returns this object, which now repeats its decisions from the first on."""
        self._again = list(self._made)
        return self


def kernels(text: str, choices: Choices | None = None) -> list[Kernel]:
    """Returns the kernels of a program's entry computation: inlines calls, multiplies loops of known trip count."""
    program = Program(text)
    return _Fusion(program, program.computations[program.entry], choices or Choices()).kernels()


class _Fusion:
    """Decides which tensors of a computation are written to memory, and what each kernel reads."""

    def __init__(
        self,
        program: Program,
        body: list[Instruction],
        choices: Choices,
    ):
        self.program, self.body, self.choose = program, list(alive(body)), choices
        self.at = {i.name: i for i in self.body}
        self.users: dict[str, int] = {}
        self.stored: dict[str, int] = {}  # name -> bytes per element in memory
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
                self.stored.setdefault(one.name, element_bytes(one.dtype))

    def _source(self, name: str) -> tuple[str, int]:
        """Returns the instruction behind those that cost nothing, and the narrowest type on the way."""
        size = element_bytes(self.at[name].dtype)
        while self.at[name].opcode in _FREE and self.at[name].operands:
            inner = self.at[name].operands[0]
            if self.at[inner].opcode.startswith("batch-norm"):
                return name, size
            name = inner
            if self.at[name].dtype in ("f32", "bf16", "f16", "f64"):
                size = min(size, element_bytes(self.at[name].dtype))
        return name, size

    def kernels(self) -> list[Kernel]:
        """Returns the kernels in program order."""
        for one in self.body:
            self._visit(one)
        return self.out

    def _visit(self, one: Instruction) -> None:
        if one.opcode in ("call", "while", "conditional"):
            self._nested(one)
            self.leaves[one.name] = {one.name: one.size * element_bytes(one.dtype)}
            return
        reads: dict[str, float] = {}
        for operand in one.operands:
            reads |= self.leaves.get(operand, {})
        if one.opcode == "parameter":
            self.leaves[one.name] = {one.name: one.size * element_bytes(one.dtype)}
        elif one.opcode in _FREE:
            self._free(one, reads)
        elif one.opcode in _MATRIX or one.opcode in _HEAVY:
            self._kernel(one, reads)
        else:
            self._elementwise(one, reads)

    def _free(self, one: Instruction, reads: dict[str, float]) -> None:
        source = one.operands and self.at[one.operands[0]]
        if source and source.opcode.startswith("batch-norm") and one.size == self.at[source.operands[0]].size:
            # The normalized tensor, or the gradient of its input: element-wise on what the kernel read.
            inputs: dict[str, float] = {}
            for operand in source.operands:
                inputs |= self.leaves.get(operand, {})
            self._elementwise(one, inputs)
        elif one.opcode == "broadcast" or one.opcode == "slice":
            # A slice reads only what it keeps.
            self.leaves[one.name] = {n: min(b, one.size * 4.0) for n, b in reads.items()}
        else:
            self.leaves[one.name] = reads

    def _elementwise(self, one: Instruction, reads: dict[str, float]) -> None:
        users = self.users.get(one.name, 0)
        mine = one.size * element_bytes(one.dtype)
        size = self.stored.get(one.name)
        total = sum(reads.values())
        if size is None and users > 1 and self.choose(users * total > total + (1 + users) * mine):
            size = element_bytes(one.dtype)
        if size is None:
            self.leaves[one.name] = reads
            return
        written = one.size * size
        self._emit("elementwise", one, reads, written, size)
        self.leaves[one.name] = {one.name: float(written)}

    def _kernel(self, one: Instruction, reads: dict[str, float]) -> None:
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

    def _emit(self, kind: str, one: Instruction, reads: dict[str, float], written: float, size: int) -> None:
        total = sum(reads.values()) + written
        if one.opcode not in _MATRIX and self.choose(max((written, *reads.values()), default=0) < _SMALL):
            return
        wide = written if size >= 4 else 0.0
        wide += sum(b for n, b in reads.items() if self._wide(n))
        matrix = product_of(one, self.at) if one.opcode in _MATRIX else {}
        self.out.append(Kernel(kind, total, wide, **matrix))

    def _wide(self, name: str) -> bool:
        return self.stored.get(name, element_bytes(self.at[name].dtype)) >= 4

    def _nested(self, one: Instruction) -> None:
        for attribute, turns in (("to_apply", 1), ("body", self.program.trips(one) or 1)):
            if name := self.program.called(one, attribute):
                inner = _Fusion(self.program, self.program.computations[name], self.choose).kernels()
                self.out += inner * turns
