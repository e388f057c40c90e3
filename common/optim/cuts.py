"""Cuts weights into stacks of equal matrices, for the rules that work on matrices; pads with zeros where need be.

A kernel [..., inputs, outputs] is folded into one matrix [everything else, outputs]: Muon folds a convolution so
(github.com/KellerJordan/Muon, which stores outputs first), and a recurrent or dense kernel is one already. Shampoo and
SOAP cut that matrix further into blocks of at most `block` rows and columns, each a problem of its own (section 5.2 of
"Scalable Second Order Optimization for Deep Learning").
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Cut:
    """How a variable is cut into a stack of matrices.

    Attributes:
      shape: shape of the variable.
      rows, columns: shape of each matrix.
      down, across: number of matrices along the folded variable's rows and columns; their product is `count`.
    """

    shape: tuple[int, ...]
    rows: int
    columns: int
    down: int = 1
    across: int = 1

    @property
    def count(self) -> int:
        return self.down * self.across

    @property
    def folded(self) -> tuple[int, int]:
        return math.prod(self.shape[:-1]), self.shape[-1]

    @property
    def matrices(self) -> tuple[int, int, int]:
        """Shape of the stack."""
        return self.count, self.rows, self.columns

    def stack(self, x: Any, xp: Any) -> Any:
        """Returns the stack [count, rows, columns] of a variable; `xp` is tensorflow or numpy, whichever `x` is of."""
        rows, columns = self.folded
        below, right = self.down * self.rows - rows, self.across * self.columns - columns
        x = xp.reshape(x, (rows, columns))
        if below or right:
            x = xp.pad(x, [[0, below], [0, right]])
        if self.count == 1:
            return xp.reshape(x, self.matrices)
        x = xp.reshape(x, (self.down, self.rows, self.across, self.columns))
        return xp.reshape(xp.transpose(x, (0, 2, 1, 3)), self.matrices)

    def join(self, x: Any, xp: Any) -> Any:
        """Returns the variable from its stack; the inverse of `stack`."""
        if self.count > 1:
            x = xp.transpose(xp.reshape(x, (self.down, self.across, self.rows, self.columns)), (0, 2, 1, 3))
        x = xp.reshape(x, (self.down * self.rows, self.across * self.columns))
        rows, columns = self.folded
        return xp.reshape(x[:rows, :columns], self.shape)


def folded(shape: tuple[int, ...]) -> Cut:
    """Returns the cut into one matrix."""
    return Cut(shape, math.prod(shape[:-1]), shape[-1])


def kernel_blocks(most: int) -> Callable[[tuple[int, ...], Any], Cut | None]:
    """Returns the function (shape, `rule.Whole`) -> `blocks` of a kernel; None for other variables."""

    def cut(shape: tuple[int, ...], whole: Any) -> Cut | None:
        return blocks(shape, most) if whole.kind == "kernel" and len(shape) > 1 else None

    return cut


def blocks(shape: tuple[int, ...], most: int) -> Cut:
    """Returns the cut into blocks of at most `most` rows and columns, as equal as their number allows."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    down, across = -(-rows // most), -(-columns // most)
    return Cut(shape, -(-rows // down), -(-columns // across), down, across)
