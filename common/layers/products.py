"""Matrix products at full float32 precision, for what iterates or inverts.

By default, XLA rounds the operands of a float32 product: a TPU to bfloat16 (7 bits), a GPU to TF32 (10 bits), and so
does a GPU's library outside XLA. An iteration that needs more asks for it here.
"""

import tensorflow as tf

from common.distributed.tensorflow_private import GraphOrParentsInXlaContext, xla, xla_data_pb2

_HIGHEST = xla_data_pb2.PrecisionConfig(operand_precision=[xla_data_pb2.PrecisionConfig.HIGHEST] * 2)
_UPPER_BITS = -(1 << 13)  # Mask of a float32's sign, exponent and first 10 bits, which TF32 keeps.


def under_xla() -> bool:
    """Whether XLA compiles the graph under construction or one around it."""
    return bool(GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def exact(a: tf.Tensor, b: tf.Tensor, transpose_a: bool = False, transpose_b: bool = False) -> tf.Tensor:
    """Returns tf.matmul of stacks of matrices [k, m, n], with operands of full precision on every device.

    XLA's program says so (`precision = HIGHEST`). Outside XLA, where a GPU would round, each operand is the sum of two
    that TF32 holds; the product of the two lower parts is below float32's rounding.
    """
    if a.dtype != tf.float32:
        return tf.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    if under_xla():
        dimensions = xla_data_pb2.DotDimensionNumbers(
            lhs_batch_dimensions=[0],
            rhs_batch_dimensions=[0],
            lhs_contracting_dimensions=[1 if transpose_a else 2],
            rhs_contracting_dimensions=[2 if transpose_b else 1],
        )
        return xla.dot_general(a, b, dimensions, _HIGHEST)

    def product(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return tf.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)

    if not rounds():
        return product(a, b)
    (upper_a, lower_a), (upper_b, lower_b) = _halves(a), _halves(b)
    return product(upper_a, upper_b) + (product(upper_a, lower_b) + product(lower_a, upper_b))


def rounds() -> bool:
    """Whether this process's devices round the operands of float32 products outside XLA."""
    return bool(
        tf.config.list_logical_devices("GPU") and tf.config.experimental.tensor_float_32_execution_enabled()
    )


def _halves(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    upper = tf.bitcast(tf.bitwise.bitwise_and(tf.bitcast(x, tf.int32), _UPPER_BITS), tf.float32)
    return upper, x - upper
