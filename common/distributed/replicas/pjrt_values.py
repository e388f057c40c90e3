"""Values on a PJRT client's devices: results of programs, variables' state, and copies of either for TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from common.distributed import pjrt_program


class Value:
    """A tensor on the devices, with a separate value for each replica.

    Attributes:
      array: an array of `pjrt_program.Placement`.
    """

    def __init__(self, array: Any):
        self.array = array

    @property
    def kind(self) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and dtype of a replica's value."""
        return self.array.shape[1:], self.array.dtype

    def local(self) -> list[np.ndarray]:
        """Returns copies of the values of this process's replicas; waits for them."""
        return [np.array(x) for x in pjrt_program.parts(self.array)]

    def first(self) -> np.ndarray:
        """Returns a copy of the value of this process's first replica; waits for it."""
        return np.array(pjrt_program.first(self.array))


class DeviceState:
    """A variable's values on the devices; the first access makes the initial value and copies it there."""

    def __init__(
        self,
        variable: tf.Variable | None,
        placement: pjrt_program.Placement,
        initial: Callable[[], Sequence[Any]],
    ):
        """`initial` returns the initial value of each of this process's replicas."""
        self._placement = placement
        self._variable, self._initial = variable, initial

    # A plain attribute after the first access: every call of a program reads and sets it for hundreds of variables.
    @functools.cached_property
    def array(self) -> Any:
        """The values, an array of `pjrt_program.Placement`."""
        return self._placement.place(self._initial())

    @property
    def untouched(self) -> bool:
        """Whether no device has the value yet."""
        return "array" not in self.__dict__

    def renew(self) -> None:
        """Puts the initial value on the devices again."""
        self.__dict__.pop("array", None)  # First, so that the devices never hold both.
        _ = self.array

    def read(self, index: int) -> np.ndarray:
        """Returns a copy of the value of this process's replica `index`."""
        # Copy, because the devices write the next value into this memory.
        return np.array(pjrt_program.pieces(self.array)[index])[0]

    def refresh(self) -> None:
        """Sets TensorFlow's variable to the value of this process's first replica."""
        self._variable.assign(self.read(0))

    def write(self, index: int, value: Any) -> None:
        """Writes a value to the device of this process's replica `index`. Raises ValueError if its shape differs."""
        shape, dtype = tuple(self._variable.shape), self._variable.dtype.as_numpy_dtype
        value = np.asarray(value).astype(dtype, copy=True)
        if value.shape != shape:
            raise ValueError(f"{self._variable.name} is {list(shape)}, the value {list(value.shape)}")
        pieces = list(pjrt_program.pieces(self.array))
        pieces[index] = self._placement.piece(value, index)
        self.array = self._placement.joined(pieces)


class Copy:
    """One replica's copy of a variable (readable and writable) or of a result of `run` (read-only)."""

    def __init__(self, read: Callable[[], np.ndarray], write: Callable[[Any], None] | None = None):
        self._read, self._write = read, write

    def numpy(self) -> np.ndarray:
        return self._read()

    def assign(self, value: Any) -> None:
        self._write(value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._read().astype(dtype) if dtype else self._read()

    def __float__(self) -> float:
        return float(self._read())


tf.register_tensor_conversion_function(
    Copy, lambda copy, dtype=None, name=None, as_ref=False: tf.constant(copy.numpy(), dtype)
)
