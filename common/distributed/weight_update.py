"""Updates all weights on every replica, from the gradients summed over the replicas.

In the other form, `common/distributed/sharded_update.py`, each replica updates its part of the weights.
"""

import abc
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from common.config.clock import Clock
from common.config.optimizer import Optimizer
from common.config.schema import RunConfig
from common.distributed import gradient_sum
from common.distributed.replicas.base import Replicas
from common.optim import fused_kernels, optimizers, schedule_free, shampoo
from common.optim.cuts import Cut
from common.optim.optimizers import WeightState

# Slots of every weight in the order of the weights, {name: array of the shape that the rule's `init` gives it}.
SlotValues = list[dict[str, np.ndarray]]
# (whether the summed gradients are finite) -> the tensors it wrote; if they are not, the update changes nothing else.
Tell = Callable[[tf.Tensor], list[tf.Tensor]]


def all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns whether every element of every tensor is a finite number."""
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(x)) for x in tensors])


def unless_skipped(finite: tf.Tensor | None, new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
    """Returns `new`, or `old` if the update is skipped; with `finite` None it never is."""
    return new if finite is None else tf.where(finite, new, old)


def rate_of(config: RunConfig, is_bias: bool, rate: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """Returns the rate of biases or of other weights; they differ with `one_warmup_delta` only."""
    optimizer = config.optimizer
    if not (is_bias and optimizer.one_warmup_delta):
        return rate
    factor = optimizer.bias_gradient_factor
    length = config.schedule.warmup_length(Clock.of(config).steps_per_epoch) - config.schedule.first_step
    warming = tf.cast(step, tf.float32) < length
    return tf.where(warming, rate + (factor - 1) * optimizer.base_learning_rate, factor * rate)


class Averages:
    """Puts the averages of the weights in their place for a while, for a rule that averages weights.

    Variables that no checkpoint holds keep the weights meanwhile, because computing them back from the averages would
    round. Another rule has no such variables.
    """

    def __init__(self, weights: Sequence[tf.Variable], replicas: Replicas, config: Optimizer):
        """Creates the variables; called in the replicas' scope. `weights`: the trainable variables."""
        self._weights, self._replicas, self._config = list(weights), replicas, config
        self._kept = [
            tf.Variable(tf.zeros(w.shape, w.dtype), trainable=False, name=f"{w.name.split(':')[0]}/kept")
            for w in (weights if config.averaged_by else ())
        ]

    def keep(self) -> list[tf.Tensor]:
        """Inside `run`: copies the weights, before the averages take their place; returns the written tensors."""
        values = [w.read_value() for w in self._weights]
        self._replicas.assign(self._kept, values)
        return values

    def of(self, weight: tf.Tensor, slots: Mapping[str, tf.Variable]) -> tf.Tensor:
        """Inside `run`: returns the average of a weight or of a part; the weight itself before the first update."""
        z, begun = slots["z"].read_value(), slots["weight_sum"].read_value() > 0
        return tf.where(begun, schedule_free.averaged(self._config, weight, z), weight)

    def put_back(self) -> list[tf.Tensor]:
        """Inside `run`: writes the kept weights, bit for bit; returns the written tensors."""
        values = [kept.read_value() for kept in self._kept]
        self._replicas.assign(self._weights, values)
        return values


class WeightUpdate(abc.ABC):
    """Sums the replicas' gradients and updates weights and slots.

    tests/common/distributed/test_update_contract.py holds every form to this interface.

    Attributes:
      rule: the optimizer.
      slots: the optimizer's variables, {name: variable} for each weight, or for each piece of a form that cuts weights.
    """

    def __init__(
        self,
        weights: Sequence[tf.Variable],
        kinds: Mapping[Hashable, str],
        replicas: Replicas,
        config: RunConfig,
        outputs: Collection[Hashable] = (),
    ):
        """Creates the slots; called in the replicas' scope.

        Args:
          kinds: "kernel", "bias", "norm" or "embedding", by a weight's `ref()`.
          config: of the run; `optimizer`, `communication` and, for the biases' rate, `schedule` are read.
          outputs: `ref()` of the kernels of output layers.
        """
        self._weights, self._replicas, self._config = list(weights), replicas, config
        self.rule = optimizers.rule(config.optimizer)
        skip = config.optimizer.skip_kinds
        self._segments = [optimizers.Whole(kinds[w.ref()], skip, w.ref() in outputs) for w in weights]
        both = zip(self._weights, self._segments, strict=True)
        self._cuts = [self.rule.cut(tuple(w.shape), s) for w, s in both]
        self.slots = self._make_slots()
        self._averages = Averages(weights, replicas, config.optimizer)

    @abc.abstractmethod
    def _make_slots(self) -> list[dict[str, tf.Variable]]: ...

    @abc.abstractmethod
    def apply(
        self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, step: tf.Tensor, tell: Tell | None = None
    ) -> list[tf.Tensor | tf.Operation]:
        """Inside `run`: updates weights and slots from this replica's gradients, not yet summed.

        With `tell`, the update is skipped if a summed gradient is not finite, and `tell` learns whether it was. Returns
        the written tensors, or the operations that wrote them; the update is done after all of them.
        """

    def compile(self) -> None:
        """Compiles the update, between the gradients' sum and the writing, into one XLA program."""
        self._updated = tf.function(self._updated, jit_compile=True, autograph=False)

    def swap(self, to_average: bool) -> list[tf.Tensor]:
        """Inside `run`: puts the average of the weights in their place, for an evaluation, or takes it away again.

        Only for a rule that averages weights. Before the first update nothing changes. The weights come back bit for
        bit. Returns the written tensors.
        """
        if not to_average:
            return self._averages.put_back()
        own = zip(self._own_weights(), self.slots, strict=True)
        averages = [self._averages.of(weight, slots) for weight, slots in own]
        return [*self._averages.keep(), *self._gathered(averages)]

    @abc.abstractmethod
    def _own_weights(self) -> list[tf.Tensor]:
        """Inside `run`: returns the weights that this replica updates, one tensor for each element of `slots`."""

    @abc.abstractmethod
    def _gathered(self, new: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Inside `run`: writes every weight, from all replicas' new `_own_weights`; returns the written tensors."""

    @property
    @abc.abstractmethod
    def slot_shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """{name: shape} of each weight's slots, as `read_slots` gives them."""

    def report(self) -> dict[str, float]:
        """Outside `run`, called by every process: returns what a log reports about the optimizer after a block.

        Returns {"kept_roots": number of roots that did not converge so far}, or {} for a rule without roots.
        """
        name = shampoo.KEPT_ROOTS
        counts = [np.sum(self._values(slots[name])) for slots in self.slots if name in slots]
        return {name: int(sum(counts))} if counts else {}

    @abc.abstractmethod
    def _values(self, slot: tf.Variable) -> np.ndarray:
        """Outside `run`, called by every process: returns a slot's values on all replicas that own a part of it."""

    @abc.abstractmethod
    def read_slots(self) -> SlotValues:
        """Outside `run`, called by every process: returns the slots of every weight, as for whole weights."""

    @abc.abstractmethod
    def write_slots(self, values: SlotValues) -> None:
        """Outside `run`: writes the values of `read_slots` (from any number of replicas) to the local replicas."""


class WholeUpdate(WeightUpdate):
    """Every replica updates all weights from the summed gradients."""

    def _make_slots(self) -> list[dict[str, tf.Variable]]:
        self._in_place = [
            self._replicas.updates_in_place
            and not self._config.loss_scale_growth_steps  # A kernel cannot skip an update.
            and fused_kernels.has_kernel(self._config.optimizer, s)
            for s in self._segments
        ]
        return [
            {
                name: tf.Variable(value, trainable=False, name=f"{w.name.split(':')[0]}/{name}")
                for name, value in self._initial_slots(i).items()
            }
            for i, w in enumerate(self._weights)
        ]

    def _initial_slots(self, i: int) -> optimizers.Slots:
        cut, value = self._cuts[i], tf.convert_to_tensor(self._replicas.local_results(self._weights[i])[0])
        return self.rule.matrices.rule.init(cut.stack(value, tf)) if cut else self.rule.init(value)

    def apply(
        self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, step: tf.Tensor, tell: Tell | None = None
    ) -> list[tf.Tensor | tf.Operation]:
        gradients = gradient_sum.sum_gradients(self._replicas, gradients, self._config.communication)
        finite = all_finite(gradients) if tell else None
        gradients = optimizers.clipped(gradients, self._config.optimizer.clip_norm)
        written = [
            fused_kernels.apply(
                self._config.optimizer,
                WeightState(weight, gradient, slots, self._rate(i, rate, step), step, segments),
            )
            for i, (weight, slots, segments, in_place, gradient) in enumerate(
                zip(self._weights, self.slots, self._segments, self._in_place, gradients, strict=True)
            )
            if in_place
        ]
        rest = [i for i, in_place in enumerate(self._in_place) if not in_place]
        values = self._updated([gradients[i] for i in rest], rate, step, finite)
        variables = [v for i in rest for v in (self._weights[i], *self.slots[i].values())]
        self._replicas.assign(variables, values)
        return [*written, *values, *(tell(finite) if tell else ())]

    def _updated(
        self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, step: tf.Tensor, finite: tf.Tensor | None
    ) -> list[tf.Tensor]:
        """Returns the new value of each weight that no kernel updates, each followed by its slots' values."""
        values, rest = [], [i for i, in_place in enumerate(self._in_place) if not in_place]
        for i, gradient in zip(rest, gradients, strict=True):
            old = self._weights[i].read_value()
            before = {name: slot.read_value() for name, slot in self.slots[i].items()}
            state = WeightState(old, gradient, before, self._rate(i, rate, step), step, self._segments[i])
            new, after = self._new(self._cuts[i], state)
            values.append(unless_skipped(finite, new, old))
            values += [unless_skipped(finite, after[name], before[name]) for name in before]
        return values

    def _rate(self, i: int, rate: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        own = rate_of(self._config, self._segments[i].kind == "bias", rate, step)
        return tf.cast(own, self._weights[i].dtype)

    def _new(self, cut: Cut | None, state: WeightState) -> tuple[tf.Tensor, optimizers.Slots]:
        """Returns a weight and its slots after the rule's update."""
        if cut is None:
            return self.rule.update(state)
        weight, gradient = cut.stack(state.weight, tf), cut.stack(state.gradient, tf)
        new, after = self.rule.matrices.rule.update(state._replace(weight=weight, gradient=gradient))
        return cut.join(new, tf), after

    def _own_weights(self) -> list[tf.Tensor]:
        return [w.read_value() for w in self._weights]

    def _gathered(self, new: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        self._replicas.assign(self._weights, new)
        return list(new)

    @property
    def slot_shapes(self) -> list[dict[str, tuple[int, ...]]]:
        return [{name: tuple(slot.shape) for name, slot in slots.items()} for slots in self.slots]

    def _values(self, slot: tf.Variable) -> np.ndarray:
        return self._replicas.local_results(slot)[0].numpy()

    def read_slots(self) -> SlotValues:
        return [{name: self._values(slot) for name, slot in slots.items()} for slots in self.slots]

    def write_slots(self, values: SlotValues) -> None:
        for slots, arrays in zip(self.slots, values, strict=True):
            for name, slot in slots.items():
                for copy in self._replicas.local_results(slot):
                    copy.assign(arrays[name])
