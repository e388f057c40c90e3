"""Variables without values: their memory stays untouched, so a state larger than the host's memory can be described."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf

# Makes a variable of the arguments of tf.Variable.
Make = Callable[..., tf.Variable]


def zeros(shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
    """Returns zeros that take no memory until somebody writes to them: the system maps each page at its first write."""
    return tf.experimental.dlpack.from_dlpack(np.zeros(shape, dtype.as_numpy_dtype).__dlpack__())


def without_value(make: Make, arguments: dict[str, Any]) -> tf.Variable | None:
    """Makes a variable with untouched zeros in place of its initial value.

    Returns None, and makes nothing, if `arguments` do not state the shape and a function for the value.
    """
    shape, dtype = arguments.get("shape"), arguments.get("dtype")
    if not callable(arguments["initial_value"]) or shape is None or dtype is None:
        return None
    dtype = tf.as_dtype(dtype)
    if dtype == tf.bfloat16:  # numpy cannot hand it over.
        return None
    return make(**arguments | {"initial_value": zeros(tf.TensorShape(shape).as_list(), dtype)})


def scope() -> AbstractContextManager[Any]:
    """Context in which variables get no values, where `without_value` can: for programs only lowered."""

    def create(make: Make, **arguments: Any) -> tf.Variable:
        variable = without_value(make, arguments)
        return make(**arguments) if variable is None else variable

    return tf.variable_creator_scope(create)
