"""Backend of XLA's own collectives: one of N replicas' programs, for export; it never runs in TensorFlow.

A traced step holds StableHLO's collectives over groups of replicas: all-reduce, all-gather, reduce-scatter, all-to-all
and permutation. Its lowered form (common/export/) is the program that each of a PJRT client's N devices runs. The
replica's number is a variable, so that the program takes it as an argument: the lowering rejects TensorFlow's own
replica-number operation where it needs constants.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from common.distributed.replicas.base import (
    Groups,
    Initial,
    Replicas,
    Shard,
    UnsupportedError,
    all_groups,
    linear,
    placement,
)
from common.distributed.tensorflow_private import gen_xla_ops

# Version of the operation XlaCallModule that holds StableHLO without dynamic shapes; TensorFlow 2.20 reads versions 2
# to 10 (tensorflow/compiler/tf2xla/kernels/xla_call_module_loader.cc).
_MODULE_VERSION = 5
_ELEMENTS = {
    tf.float64: "f64", tf.float32: "f32", tf.bfloat16: "bf16", tf.float16: "f16", tf.int64: "i64",
    tf.int32: "i32", tf.uint64: "ui64", tf.uint32: "ui32", tf.uint8: "ui8", tf.int8: "i8", tf.bool: "i1",
}  # fmt: skip


class Xla(Replicas):
    """One of `num_replicas` replicas. Its collectives can be traced and lowered, not executed.

    Attributes:
      number: this replica's number, a scalar int32 variable.
      own: the variables that `per_replica_variable` made; their values differ between replicas.
    """

    name = "xla"
    loops_hold_collectives = True
    compiles_collectives = True
    narrow = True
    shards_weights = True
    has_random_words = True

    def __init__(self, num_replicas: int):
        self.num_replicas = num_replicas
        self.number = tf.Variable(0, trainable=False, name="replica", dtype=tf.int32)
        self.local_variables: list[tf.Variable] = []

    def replica_id(self) -> tf.Tensor | int:
        return self.number.read_value() if self.num_replicas > 1 else 0

    def per_replica_variable(self, initial: Initial, name: str, **kind: Any) -> tf.Variable:
        self.local_variables.append(super().per_replica_variable(initial, name, **kind))
        return self.local_variables[-1]

    def sharded_variable(
        self, parts: Callable[[], np.ndarray], size: int, dtype: tf.DType, name: str
    ) -> tf.Variable:
        self.local_variables.append(tf.Variable(lambda: parts()[0], shape=[size], dtype=dtype, name=name))
        return self.local_variables[-1]

    def cut(self, x: tf.Tensor, begin: Sequence[tf.Tensor | int], size: Sequence[int]) -> tf.Tensor:
        # tf.slice would fix the replica's number: TensorFlow compiles everything its start depends on as constants.
        start = tf.stack(begin)

        def sliced(x: tf.Tensor) -> tf.Tensor:
            return tf.ensure_shape(gen_xla_ops.xla_dynamic_slice(x, start, tf.constant(size)), size)

        def put_back(upstream: tf.Tensor) -> tf.Tensor:
            return gen_xla_ops.xla_dynamic_update_slice(tf.zeros(x.shape, x.dtype), upstream, start)

        return linear(x, sliced, put_back)

    def place(self, x: tf.Tensor, begin: Sequence[tf.Tensor | int], shape: Sequence[int]) -> tf.Tensor:
        return placed(x, begin, shape)

    def random_words(self, state: Sequence[tf.Tensor | int], shape: Sequence[int]) -> tf.Tensor:
        # TensorFlow has no operation for StableHLO's algorithm DEFAULT. A TPU takes its state as two 64-bit numbers.
        words = tf.reshape(tf.stack([tf.cast(word, tf.uint32) for word in state]), [2, 2])
        result = tensor_type(shape, tf.uint32)
        operations = (
            "  %s = stablehlo.bitcast_convert %x0 : (tensor<2x2xui32>) -> tensor<2xui64>\n"
            "  %t, %y = stablehlo.rng_bit_generator %s, algorithm = DEFAULT : "
            f"(tensor<2xui64>) -> (tensor<2xui64>, {result})\n"
        )
        return embedded([words], operations, ["%y"], [(shape, tf.uint32)])[0]

    def group(self, groups: Groups | None) -> _Groups:
        groups = all_groups(groups, self.num_replicas)
        list(placement(groups, self.num_replicas))  # Raises UserError unless they partition the replicas.
        return _Groups(groups)

    def sum_bucket(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        # The TPU and GPU compilers fuse sums that are ready together, without copying them into and out of a bucket.
        return [self.all_reduce(x) for x in tensors]

    # -- outside `run`: the host that runs the program does these --------------------------------------------------

    def sum(self, value: Any) -> Any:
        raise UnsupportedError(_HOST)

    def gather(self, value: Any) -> Any:
        raise UnsupportedError(_HOST)

    def dataset(self, make: Callable[[Shard], tf.data.Dataset]) -> Any:
        raise UnsupportedError(_HOST)


_HOST = "the backend xla makes programs to export and runs none; use --config.replicas=mirrored to train here"


def placed(x: tf.Tensor, begin: Sequence[tf.Tensor | int], shape: Sequence[int]) -> tf.Tensor:
    """`Replicas.place` for functions that XLA compiles: there, tf.pad requires constants."""
    whole = gen_xla_ops.xla_dynamic_update_slice(tf.zeros(shape, x.dtype), x, tf.stack(begin))
    return tf.ensure_shape(tf.stop_gradient(whole), shape)


@dataclasses.dataclass(frozen=True)
class _Groups:
    """StableHLO's collectives over groups of replicas: one program for all of them."""

    groups: list[list[int]]

    def sum(self, x: tf.Tensor) -> tf.Tensor:
        return self._called("all_reduce", "", x, list(x.shape), adds=True)

    def gather(self, x: tf.Tensor, axis: int) -> tf.Tensor:
        along, size = axis % x.shape.rank, len(self.groups[0])
        attributes = f"all_gather_dim = {along} : i64, "
        return self._called("all_gather", attributes, x, _resized(x, along, lambda n: n * size))

    def scatter(self, x: tf.Tensor, axis: int) -> tf.Tensor:
        along, size = axis % x.shape.rank, len(self.groups[0])
        attributes = f"scatter_dimension = {along} : i64, "
        return self._called(
            "reduce_scatter", attributes, x, _resized(x, along, lambda n: n // size), adds=True
        )

    def exchange(self, x: tf.Tensor, axis: int) -> tf.Tensor:
        along, size = f"{axis % x.shape.rank} : i64", f"{len(self.groups[0])} : i64"
        attributes = f"split_dimension = {along}, concat_dimension = {along}, split_count = {size}, "
        return self._called("all_to_all", attributes, x, list(x.shape))

    def _called(
        self, operation: str, attributes: str, x: tf.Tensor, shape: list[int], adds: bool = False
    ) -> tf.Tensor:
        if len(self.groups[0]) == 1:
            return tf.identity(x)
        return _called(operation, f"{attributes}replica_groups = {_dense(self.groups)}", x, shape, adds)

    def shift(self, x: tf.Tensor, distance: int) -> tf.Tensor:
        pairs = shifts(self.groups, distance)
        if not pairs or distance == 0:
            return tf.identity(x) if pairs else tf.zeros_like(x)
        # A replica without a source gets zeros.
        return _called("collective_permute", f"source_target_pairs = {_dense(pairs)}", x, list(x.shape))


def shifts(groups: Groups, distance: int) -> list[list[int]]:
    """Returns the pairs (source, target) of `Replicas.shift`."""
    return [
        [group[i - distance], replica]
        for group in groups
        for i, replica in enumerate(group)
        if 0 <= i - distance < len(group)
    ]


def _resized(x: tf.Tensor, axis: int, size: Callable[[int], int]) -> list[int]:
    return [size(n) if i == axis else n for i, n in enumerate(x.shape)]


def _dense(rows: Sequence[Sequence[int]]) -> str:
    return f"dense<{json.dumps(rows)}> : tensor<{len(rows)}x{len(rows[0])}xi64>"


def _called(operation: str, attributes: str, x: tf.Tensor, shape: list[int], adds: bool = False) -> tf.Tensor:
    """Returns a StableHLO operation on `x` with a result of `shape`; `adds`: the operation sums over replicas.

    TensorFlow has native operations only for sums, and these take no float64 (gen_xla_ops.xla_all_reduce).
    """
    operand, result, scalar = (tensor_type(sizes, x.dtype) for sizes in (x.shape, shape, []))
    region = (
        f" ({{\n  ^bb0(%a: {scalar}, %b: {scalar}):\n"
        f"    %c = stablehlo.add %a, %b : {scalar}\n"
        f'    "stablehlo.return"(%c) : ({scalar}) -> ()\n  }})'
    )
    called = f'  %y = "stablehlo.{operation}"(%x0){region if adds else ""} {{{attributes}}} : ({operand}) -> {result}\n'
    return embedded([x], called, ["%y"], [(shape, x.dtype)])[0]


def tensor_type(sizes: Sequence[int], dtype: tf.DType) -> str:
    """Returns StableHLO's name of a tensor's type."""
    return f"tensor<{'x'.join([*map(str, sizes), _ELEMENTS[dtype]])}>"


def embedded(
    operands: Sequence[tf.Tensor],
    operations: str,
    names: Sequence[str],
    results: Sequence[tuple[Sequence[int], tf.DType]],
) -> list[tf.Tensor]:
    """Returns values of StableHLO operations on %x0, %x1, ...: their `names`, and (shape, dtype) in `results`."""
    parameters = ", ".join(f"%x{i}: {tensor_type(x.shape, x.dtype)}" for i, x in enumerate(operands))
    kinds = ", ".join(tensor_type(*result) for result in results)
    text = (
        f"module {{ func.func @main({parameters}) -> ({kinds}) {{\n{operations}"
        f"  return {', '.join(names)} : {kinds}\n}} }}"
    )
    values = gen_xla_ops.xla_call_module(
        operands,
        version=_MODULE_VERSION,
        module=text.encode(),
        Tout=[dtype for _, dtype in results],
        Sout=[list(shape) for shape, _ in results],
        platforms=["CPU"],
        dim_args_spec=[],
        disabled_checks=[],
        function_list=[],
        has_token_input_output=False,
    )
    return [tf.ensure_shape(y, shape) for y, (shape, _) in zip(values, results)]
