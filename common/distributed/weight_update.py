"""Updates all weights on every replica, from the gradients summed over the replicas.

In the other form, `common/distributed/sharded_update.py`, each replica updates its part of the weights.
"""

import abc
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from common.config.run_length import RunLength
from common.config.schema import RunConfig
from common.distributed import gradient_sum
from common.distributed.replicas.base import Replicas
from common.optim import fused_kernels, optimizers
from common.optim.optimizers import WeightState


def rate_of(config: RunConfig, is_bias: bool, rate: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """Returns the rate of biases or of other weights; they differ with `one_warmup_delta` only."""
    optimizer = config.optimizer
    if not (is_bias and optimizer.one_warmup_delta):
        return rate
    factor = optimizer.bias_gradient_factor
    length = config.schedule.warmup_length(RunLength.of(config).steps_per_epoch) - config.schedule.first_step
    warming = tf.cast(step, tf.float32) < length
    return tf.where(warming, rate + (factor - 1) * optimizer.base_learning_rate, factor * rate)


class WeightUpdate(abc.ABC):
    """Sums the replicas' gradients and updates weights and slots.

    tests/common/distributed/test_update_contract.py holds every form to this interface.

    Attributes:
      rule: the optimizer.
      slots: the optimizer's variables, {name: variable} for each weight, or for each shard of a form that cuts weights.
    """

    def __init__(
        self,
        weights: Sequence[tf.Variable],
        kinds: Mapping[Hashable, str],
        replicas: Replicas,
        config: RunConfig,
    ):
        """Creates the slots; called in the replicas' scope.

        Args:
          kinds: "kernel", "bias", "norm" or "embedding", by a weight's `ref()`.
          config: of the run; `optimizer`, `communication` and, for the biases' rate, `schedule` are read.
        """
        self._weights, self._replicas, self._config = list(weights), replicas, config
        self.rule = optimizers.rule(config.optimizer)
        skip = config.optimizer.skip_kinds
        self._segments = [optimizers.Whole(kinds[w.ref()], skip) for w in weights]
        self._like_slots = functools.cache(self._like_slots)
        self.slots = self._make_slots()

    @abc.abstractmethod
    def _make_slots(self) -> list[dict[str, tf.Variable]]: ...

    def _like_slots(self, shape: tf.TensorShape, dtype: tf.DType) -> dict[str, tf.TensorSpec]:
        """Shape and dtype of a weight's slots."""
        traced = tf.function(self.rule.init, autograph=False).get_concrete_function(
            tf.TensorSpec(shape, dtype)
        )
        return {name: tf.TensorSpec(x.shape, x.dtype) for name, x in traced.structured_outputs.items()}

    def _slots_of(
        self, shape: Sequence[int], dtype: tf.DType, owner: str, make: Callable[..., tf.Variable]
    ) -> dict[str, tf.Variable]:
        """Makes the slots of such a weight; functions give their values, so that a backend may ask for them later.

        `make` takes a variable's initial value, name, shape and dtype.
        """

        def initial(name: str) -> Callable[[], tf.Tensor]:
            return lambda: self.rule.init(tf.zeros(shape, dtype))[name]

        return {
            name: make(initial(name), name=f"{owner}/{name}", shape=like.shape, dtype=like.dtype)
            for name, like in self._like_slots(tf.TensorShape(shape), dtype).items()
        }

    @abc.abstractmethod
    def apply(
        self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, step: tf.Tensor
    ) -> list[tf.Tensor | tf.Operation]:
        """Inside `run`: updates weights and slots from this replica's gradients, not yet summed.

        Returns the written tensors, or the operations that wrote them; the update is done after all of them.
        """

    def compile(self) -> None:
        """Compiles the update, between the gradients' sum and the writing, into one XLA program."""
        self._updated = tf.function(self._updated, jit_compile=True, autograph=False)

    @property
    @abc.abstractmethod
    def slot_shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """{name: shape} of each weight's slots, as for whole weights."""

    @abc.abstractmethod
    def each_slot(self) -> Iterator[tuple[int, str, np.ndarray]]:
        """Outside `run`: yields (weight's number, slot's name, value) of each slot, as for whole weights.

        Every process must exhaust it.
        """

    @abc.abstractmethod
    def write_slots(self, saved: Callable[[int, str], np.ndarray]) -> None:
        """Outside `run`: writes values of `each_slot` (from any number of replicas) to the local replicas.

        `saved` returns the value for a weight's number and a slot's name.
        """


class WholeUpdate(WeightUpdate):
    """Every replica updates all weights from the summed gradients."""

    def _make_slots(self) -> list[dict[str, tf.Variable]]:
        self._in_place = [
            self._replicas.updates_in_place and fused_kernels.has_kernel(self._config.optimizer, s)
            for s in self._segments
        ]
        make = functools.partial(tf.Variable, trainable=False)
        return [self._slots_of(w.shape, w.dtype, w.name.split(":")[0], make) for w in self._weights]

    def apply(
        self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, step: tf.Tensor
    ) -> list[tf.Tensor | tf.Operation]:
        gradients = gradient_sum.sum_gradients(self._replicas, gradients, self._config.communication)
        optimizer = self._config.optimizer
        gradients = optimizers.clipped(gradients, optimizer.clip_norm, epsilon=optimizer.clip_epsilon)
        updated = [
            fused_kernels.apply(
                optimizer,
                WeightState(weight, gradient, slots, self._rate(i, rate, step), step, segments),
            )
            for i, (weight, slots, segments, in_place, gradient) in enumerate(
                zip(self._weights, self.slots, self._segments, self._in_place, gradients, strict=True)
            )
            if in_place
        ]
        rest = [i for i, in_place in enumerate(self._in_place) if not in_place]
        values = self._updated([gradients[i] for i in rest], rate, step)
        variables = [v for i in rest for v in (self._weights[i], *self.slots[i].values())]
        self._replicas.assign(variables, values)
        return [*updated, *values]

    def _updated(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, step: tf.Tensor) -> list[tf.Tensor]:
        """Returns the new value of each weight that no kernel updates, each followed by its slots' values."""
        values, rest = [], [i for i, in_place in enumerate(self._in_place) if not in_place]
        for i, gradient in zip(rest, gradients, strict=True):
            old = self._weights[i].read_value()
            before = {name: slot.read_value() for name, slot in self.slots[i].items()}
            state = WeightState(old, gradient, before, self._rate(i, rate, step), step, self._segments[i])
            new, after = self.rule.update(state)
            values += [new, *(after[name] for name in before)]
        return values

    def _rate(self, i: int, rate: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        value = rate_of(self._config, self._segments[i].kind == "bias", rate, step)
        return tf.cast(value, self._weights[i].dtype)

    @property
    def slot_shapes(self) -> list[dict[str, tuple[int, ...]]]:
        return [{name: tuple(slot.shape) for name, slot in slots.items()} for slots in self.slots]

    def each_slot(self) -> Iterator[tuple[int, str, np.ndarray]]:
        for i, slots in enumerate(self.slots):
            for name, slot in slots.items():
                yield i, name, self._replicas.local_results(slot)[0].numpy()

    def write_slots(self, saved: Callable[[int, str], np.ndarray]) -> None:
        for i, slots in enumerate(self.slots):
            for name, slot in slots.items():
                value = saved(i, name)
                for copy in self._replicas.local_results(slot):
                    copy.assign(value)
