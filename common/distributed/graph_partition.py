"""Runs independent parts of a network on different replicas of a group (graph partitioning).

The pods paper runs the second stage of Mask R-CNN in this way, on up to four cores.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from common.distributed.replicas.base import Groups, Replicas, placement
from common.errors import UserError

Branch = Callable[[], Any]


def branches(replicas: Replicas, functions: Sequence[Branch], groups: Groups) -> list[Any]:
    """Runs each function on one replica of the group and returns the results of all functions on every replica.

    Function i runs on position i modulo the size of the group. Its inputs must be equal on all replicas of the group.
    Then the results equal those of running every function everywhere. The gradients of each variable and input, summed
    over the group, are equal too: the replica that ran a function gets the upstream gradients of the whole group.

    The graph holds a conditional, and each replica runs one of its cases, even if the replica's number is known while
    tracing. Since every replica's graph holds all cases, its results depend on the inputs of all functions, and all
    replicas join the backward pass's collectives. Raises UserError if a result has an unknown shape, or the groups do
    not partition the replicas.

    Args:
      replicas: the backend; call this inside `run`, on every replica.
      functions: functions without arguments that return nests of tensors of static shape. They create no variables.
        They hold no collectives (such as a batch norm over several replicas), because the other replicas would wait
        for them.
      groups: groups of replicas that share their examples.

    Returns:
      Each function's results, in order.
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

    own_position = tf.gather(tf.constant(positions), replicas.replica_id())
    # tf.function: an eager conditional would not record the cases that do not run.
    run = tf.function(lambda: tf.switch_case(own_position, [case(p) for p in range(size)]), autograph=False)
    gathered = [replicas.all_gather(x[None], axis=0, groups=groups) for x in run()]
    return packing.unpack(gathered, kinds)


def _signature(function: Branch, number: int) -> Any:
    """Returns the nest of tf.TensorSpec of `function`'s results, by tracing it without running it."""
    outputs = tf.function(function, autograph=False).get_concrete_function().structured_outputs
    specs = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), outputs)
    if not all(spec.shape.is_fully_defined() for spec in tf.nest.flatten(specs)):
        fix = "give it inputs of static shape"
        raise UserError(f"branch {number}: results of unknown shape ({specs}); {fix}")
    return specs


class _Packing:
    """Packs the results of a position's functions into one vector per dtype, equally long at all positions."""

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
        """Returns the results of all functions from the gathered vectors, [size, longest] for each dtype."""
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
