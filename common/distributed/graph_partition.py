"""Graph partitioning: independent parts of a network on different replicas of a group, as the second stage of Mask
R-CNN on up to four cores in the TPU-v3 paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from common.distributed.replicas.base import Groups, Replicas, placement
from common.errors import UserError

Branch = Callable[[], Any]


def branches(replicas: Replicas, functions: Sequence[Branch], groups: Groups) -> list[Any]:
    """The results of all functions on every replica, each function having run on one replica of the group only.

    Function i runs on position i modulo the size of the group. What it reads must be equal on all replicas of the
    group; then results are equal to those of running every function everywhere, and so is the sum over the group of
    the gradients of each variable and of each input: the replica that ran a function gets the upstream gradients of
    the whole group.

    The graph holds a conditional of which a replica runs one case, also where its number is known while tracing: so
    every replica's results depend on what any function reads, and all of them take part in the backward exchange.

    Args:
      replicas: the backend; call this inside `run`, on every replica.
      functions: without arguments; each returns a nest of tensors of static shape, and holds no collective (that of
        a batch norm over several replicas, for one), for the others would wait for it. Their variables exist.
      groups: of replicas that share their examples.

    Returns:
      What each function returned, in order.

    Raises:
      UserError: a result of unknown shape, or groups that do not partition the replicas.
    """
    size = len(groups[0])
    if size == 1 or len(functions) == 1:
        return [function() for function in functions]
    positions = [position for _, position in placement(groups, replicas.num_replicas)]
    signatures = [_signature(function, i) for i, function in enumerate(functions)]
    kinds = sorted({spec.dtype for s in signatures for spec in tf.nest.flatten(s)}, key=lambda d: d.name)
    packing = _Packing(signatures, size)

    def case(position: int) -> Callable[[], list[tf.Tensor]]:
        return lambda: packing.pack([function() for function in functions[position::size]], position, kinds)

    mine = tf.gather(tf.constant(positions), replicas.replica_id())
    # Eagerly, a conditional would leave no trace of the cases that do not run.
    run = tf.function(lambda: tf.switch_case(mine, [case(p) for p in range(size)]), autograph=False)
    gathered = [replicas.all_gather(x[None], axis=0, groups=groups) for x in run()]
    return packing.unpack(gathered, kinds)


def _signature(function: Branch, number: int) -> Any:
    """The nest of tf.TensorSpec that `function` returns, from tracing it without running it."""
    outputs = tf.function(function, autograph=False).get_concrete_function().structured_outputs
    specs = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), outputs)
    if not all(spec.shape.is_fully_defined() for spec in tf.nest.flatten(specs)):
        raise UserError(
            f"branch {number}: results of unknown shape ({specs}); give it inputs of static shape"
        )
    return specs


class _Packing:
    """Results of the functions of a position as one vector per dtype, equally long on all positions."""

    def __init__(self, signatures: Sequence[Any], size: int):
        self._signatures, self._size = signatures, size

    def _length(self, position: int, kind: tf.DType) -> int:
        specs = tf.nest.flatten(self._signatures[position :: self._size])
        return sum(math.prod(spec.shape) for spec in specs if spec.dtype == kind)

    def pack(self, results: Sequence[Any], position: int, kinds: Sequence[tf.DType]) -> list[tf.Tensor]:
        vectors = []
        for kind in kinds:
            longest = max(self._length(p, kind) for p in range(self._size))
            parts = [tf.reshape(x, [-1]) for x in tf.nest.flatten(results) if x.dtype == kind]
            padding = tf.zeros([longest - self._length(position, kind)], kind)
            vectors.append(tf.ensure_shape(tf.concat([*parts, padding], axis=0), [longest]))
        return vectors

    def unpack(self, gathered: Sequence[tf.Tensor], kinds: Sequence[tf.DType]) -> list[Any]:
        """From [size, longest] of each kind."""
        used = {(position, kind): 0 for position in range(self._size) for kind in kinds}
        rows = dict(zip(kinds, gathered))

        def take(position: int, spec: tf.TensorSpec) -> tf.Tensor:
            start, count = used[position, spec.dtype], math.prod(spec.shape)
            used[position, spec.dtype] = start + count
            return tf.reshape(rows[spec.dtype][position, start : start + count], spec.shape)

        return [
            tf.nest.map_structure(lambda spec, p=number % self._size: take(p, spec), signature)
            for number, signature in enumerate(self._signatures)
        ]
