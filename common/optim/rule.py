"""The interface of an optimizer rule, what a rule learns about its weight, and the formulas that rules share.

A rule does not know whether it updates a whole variable or a shard. A `Segments` object gives it the norms, the
elements that decay and the rows that have a gradient.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import tensorflow as tf

from common.config.optimizer import Optimizer

Slots = dict[str, tf.Tensor]


class Segments(Protocol):
    """Tells a rule about the tensor that it updates.

    Attributes:
      adapts: whether weight decay and the trust ratio of LARS and LAMB apply; a boolean tensor of the weight's shape if
        the weight holds several variables or parts of them.
      regularized: whether `l2_in_loss` applies; same form.
    """

    adapts: bool | tf.Tensor
    regularized: bool | tf.Tensor

    def norms(self, weight: tf.Tensor, other: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the L2 norms of each variable and of `other`, the rule's `measured`, in shapes that broadcast."""

    def touched(self, gradient: tf.Tensor) -> bool | tf.Tensor:
        """Returns which elements LazyAdam updates: True for all, or booleans that broadcast to the weight's shape."""


@dataclasses.dataclass(frozen=True)
class Whole:
    """The segments of one whole variable.

    Attributes:
      kind: "kernel", "bias", "norm" or "embedding", from the layer that owns the variable.
      skip_kinds: kinds without weight decay and without the trust ratio.
    """

    kind: str
    skip_kinds: tuple[str, ...] = ("norm", "bias")

    @property
    def adapts(self) -> bool:
        return self.kind not in self.skip_kinds

    @property
    def regularized(self) -> bool:
        """True except for batch norm; biases are included, as in the loss of G6 resnet_main.py."""
        return self.kind != "norm"

    def norms(self, weight: tf.Tensor, other: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.norm(weight), tf.norm(other)

    def touched(self, gradient: tf.Tensor) -> bool | tf.Tensor:
        """Returns a mask of an embedding's rows that have a gradient; True for other variables.

        Gradients are dense, not IndexedSlices: the sum over replicas makes them dense (a bucket is one tensor), and so
        does a softmax that shares the table. A row with a gradient of exactly zero counts as not looked up.
        """
        return rows_with_gradient(gradient) if self.kind == "embedding" else True


class WeightState(NamedTuple):
    """A weight at a step, and what its update depends on.

    Attributes:
      weight, gradient: tensors of one shape and one floating dtype.
      slots: the rule's tensors, {name: tensor} of the same dtype.
      learning_rate: a scalar of the same dtype.
      step: an integer scalar, 0 at the first update.
      segments: what the rule learns about the weight.
    """

    weight: tf.Tensor
    gradient: tf.Tensor
    slots: Slots
    learning_rate: tf.Tensor
    step: tf.Tensor
    segments: Segments


class Rule(NamedTuple):
    """An optimizer over tensors.

    Attributes:
      slots: names of the tensors that it keeps per weight.
      init: (weight) -> its slots. A slot has the weight's shape, or is a scalar that is equal for all weights. Its
        values may not depend on the weight's: a sharded update makes slots before it has its part of the weights.
      update: the weight's state -> (new weight, new slots).
      adapts_by_norms: whether `update` needs norms of the weights that adapt and of `measured`.
      measured: a function from the weight's state to a tensor. `segments.norms` gives `update` the norm of the weight
        and the norm of this tensor. None: the tensor is `raw_gradient`.
    """

    slots: tuple[str, ...]
    init: Callable[[tf.Tensor], Slots]
    update: Callable[[WeightState], tuple[tf.Tensor, Slots]]
    adapts_by_norms: bool = False
    measured: Callable[[WeightState], tf.Tensor] | None = None


def zeros(*names: str) -> Callable[[tf.Tensor], Slots]:
    """Returns an `init` function for slots that have the weight's shape and start at 0."""
    return lambda weight: {name: tf.zeros_like(weight) for name in names}


def raw_gradient(config: Optimizer, state: WeightState) -> tf.Tensor:
    """Returns the gradient plus the L2 term's gradient; rules take norms of this sum."""
    return _add(state.gradient, config.l2_in_loss, state.weight, state.segments.regularized)


def with_decay(config: Optimizer, state: WeightState, direction: tf.Tensor) -> tf.Tensor:
    """Returns `direction`, such as the raw gradient, plus the weight decay: the direction in which a rule moves."""
    return _add(direction, config.weight_decay, state.weight, state.segments.adapts)


def rows_with_gradient(gradient: tf.Tensor) -> tf.Tensor:
    """Returns booleans [rows, 1, ...]: whether the row has a nonzero element."""
    return tf.reduce_any(gradient != 0, axis=list(range(1, gradient.shape.rank)), keepdims=True)


def bias(beta: float, count: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns 1 - beta^(count + 1) by expm1: TPUs lack float64, and in plain float32 step 0 loses 4 of 7 digits."""
    decay = math.log(beta) if beta else -math.inf
    return -tf.math.expm1((tf.cast(count, dtype) + 1) * decay)


def average(decay: float, old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
    """Returns the moving average after `new`."""
    return decay * old + (1 - decay) * new


def _add(gradient: tf.Tensor, coefficient: float, weight: tf.Tensor, where: bool | tf.Tensor) -> tf.Tensor:
    """Returns gradient + coefficient * weight where `where` is true, and the gradient elsewhere."""
    if coefficient == 0 or where is False:
        return gradient
    term = coefficient * weight
    return gradient + (term if where is True else tf.where(where, term, tf.zeros_like(term)))
