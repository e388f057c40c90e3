"""Precision policies: the dtypes of a network's computations and variables, passed to it explicitly.

Matrix products and convolutions run in `compute`. Variables, batch-norm statistics, logits, loss and reductions use
`variable` (section 2 of the pods paper: "all non-convolutional operations use 32-bit floating point numbers").
"""

import dataclasses

import tensorflow as tf
import tf_keras

from common.errors import UserError


@dataclasses.dataclass(frozen=True)
class Precision:
    """A policy; make one with `precision(name)`.

    Attributes:
      name: "fp32", "bf16", "fp16" or "fp64".
      compute: dtype of convolutions and matrix products.
      variable: dtype of variables, statistics, logits, loss and reductions.
    """

    name: str
    compute: tf.DType
    variable: tf.DType

    @property
    def layer(self) -> tf_keras.mixed_precision.Policy:
        """`dtype=` of a tf_keras layer that computes in `compute` and keeps its variables in `variable`."""
        names = {"bf16": "mixed_bfloat16", "fp16": "mixed_float16", "fp32": "float32", "fp64": "float64"}
        return tf_keras.mixed_precision.Policy(names[self.name])

    @property
    def full(self) -> tf_keras.mixed_precision.Policy:
        """`dtype=` of a tf_keras layer that must not lose precision, such as the logits."""
        return tf_keras.mixed_precision.Policy(self.variable.name)


def precision(name: str) -> Precision:
    """Returns the policy `name`.

    Raises UserError if the name is unknown.
    """
    dtypes = {
        "fp32": (tf.float32, tf.float32),
        "bf16": (tf.bfloat16, tf.float32),
        "fp16": (tf.float16, tf.float32),
        "fp64": (tf.float64, tf.float64),
    }
    if name not in dtypes:
        raise UserError(f"config.precision={name!r}: unknown; known: {', '.join(dtypes)}")
    compute, variable = dtypes[name]
    return Precision(name, compute, variable)
