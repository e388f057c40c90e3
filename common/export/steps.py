"""Builds the steps to export: the loop's own training and evaluation step on one replica, and their state."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from common.config.clock import Clock
from common.config.schema import RunConfig
from common.distributed.replicas.single import Single
from common.errors import UserError
from common.export import rules
from common.layers.precision import precision
from common.optim import schedules
from common.train.step import State, make_eval_step, make_train_step

# Bytes. A batch's array is stored if it takes at most MAX_STORED compressed; a larger one is replaced by noise.
# A tensor that a step closes over takes at most MAX_CONSTANT.
MAX_STORED = 1 << 18
MAX_CONSTANT = 1 << 24


@dataclasses.dataclass(frozen=True)
class Argument:
    """A variable of the state, or a component of a batch.

    Attributes:
      name: unique within the export.
      role: "input", "weight", "statistic", "slot", "counter", "constant".
      value: at the start of the exported run.
      rule: how to make the value, see rules.py.
    """

    name: str
    role: str
    value: np.ndarray
    rule: rules.Rule


class Steps:
    """The steps of a task on one replica.

    Attributes:
      train, evaluate: (batch) -> what the step returns; compiled tf.functions.
      variables: name -> variable of the state.
      state: name -> Argument; the variables hold these values after `reset()`.
      constants: name -> Argument: tensors that a step closes over, in the order in which `name_of` met them.
    """

    def __init__(self, task: Any, config: RunConfig):
        """Builds the network.

        Args:
          task: the benchmark's, for the configuration `config.single_replica()`.
          config: the whole run's, whose clock gives the learning rates.
        """
        policy = precision(task.config.precision, task.config.loss_scale)
        self.task, self._clock = task, Clock.of(config)
        self._state = state = State(task, Single(), policy)
        train_step = make_train_step(task, state, policy, self._clock)

        def train(batch: Any) -> tf.Tensor:
            """One turn of the loop (common/train/loop.py); the step's number is a variable."""
            loss = train_step(batch, state.step.read_value())
            with tf.control_dependencies([loss]):
                state.step.assign_add(1)
            return loss

        self.train, self.evaluate = compiled(train), compiled(make_eval_step(task, state))
        self.variables = self._named()
        self.state = {
            name: self._argument(name, variable, i)
            for i, (name, variable) in enumerate(self.variables.items())
        }
        self.constants: dict[str, Argument] = {}
        self._captured: dict[int, tuple[tf.Tensor, str]] = {}
        self.reset()

    def reset(self) -> None:
        """Sets all variables to the start of the exported run."""
        for name, variable in self.variables.items():
            variable.assign(self.state[name].value)

    def name_of(self, captured: tf.Tensor) -> str:
        """Returns the name of a variable or a constant that a step closes over.

        Raises:
          UserError: the constant is too large to store.
        """
        for name, variable in self.variables.items():
            if variable.handle is captured:
                return name
        if id(captured) not in self._captured:
            name, value = f"constant/{len(self.constants)}", captured.numpy()
            if value.nbytes > MAX_CONSTANT:
                raise UserError(
                    f"--export: the step closes over a tensor of {value.nbytes / 1e6:.0f} MB, {value.shape}; compute "
                    "it in the step, or make it a variable"
                )
            self.constants[name] = Argument(name, "constant", value, {"rule": "stored", "name": name})
            self._captured[id(captured)] = captured, name
        return self._captured[id(captured)][1]

    @property
    def model(self) -> tf_keras.Model:
        return self._state.model

    def batches(self, training: bool) -> list[dict[str, Argument]]:
        """Returns a batch of each shape: the task's synthetic one, with noise of the same range for large arrays."""
        task, config = self.task, self.task.config
        make = task.synthetic_input if training else task.synthetic_eval_input
        count = max(1, len(task.batch_shapes if training else task.eval_batch_shapes))
        size = config.global_batch_size if training else config.eval_batch_size
        prefix = "train" if training else "eval"
        return [
            {
                key: _component(
                    f"{prefix}/{i}/{key}" if count > 1 else f"{prefix}/{key}", value.numpy(), config.seed
                )
                for key, value in batch.items()
            }
            for i, batch in enumerate(make(size).take(count))
        ]

    def _named(self) -> dict[str, tf.Variable]:
        named: dict[str, tf.Variable] = {}
        for variable in self._state.variables():
            name = variable.name.partition(":")[0]
            copies = sum(taken == name or taken.startswith(f"{name}#") for taken in named)
            named[f"{name}#{copies}" if copies else name] = variable
        return named

    def _argument(self, name: str, variable: tf.Variable, index: int) -> Argument:
        state = self._state
        weights = {id(v) for v in state.model.trainable_variables}
        slots = {id(v) for slots in state.update.slots for v in slots.values()}
        if variable is state.step:
            start = self._start_step()
            return Argument(name, "counter", np.int64(start), {"rule": "constant", "value": start})
        counter = variable is state.evaluated
        role = "weight" if id(variable) in weights else "slot" if id(variable) in slots else "statistic"
        value = variable.numpy()
        rule = _rule(name, value, [self.task.config.seed, index])
        stored = {name: value} if rule["rule"] == "stored" else {}
        made = rules.make(rule, value.shape, value.dtype.name, stored)
        return Argument(name, "counter" if counter else role, made, rule)

    def _start_step(self) -> int:
        """Returns step 0, or one a tenth into the warmup where step 0 has learning rate 0 and would change nothing."""
        config = self.task.config
        rate = schedules.learning_rate(
            config.schedule,
            config.optimizer.base_learning_rate,
            self._clock.steps_per_epoch,
            self._clock.train_steps,
        )
        if float(rate(tf.constant(0, tf.int64))) > 0:
            return 0
        return max(1, round(config.schedule.warmup_length(self._clock.steps_per_epoch) / 10))


def compiled(function: Callable) -> Callable:
    """Compiles with XLA, as `Replicas.compile` does."""
    return tf.function(function, jit_compile=True, autograph=False)


def _rule(name: str, value: np.ndarray, key: list[int]) -> rules.Rule:
    """Returns a rule for an array like `value`, a variable as the network's initialisers left it."""
    if value.size and (value == value.flat[0]).all():
        return {"rule": "constant", "value": value.flat[0].item()}
    if value.dtype.kind != "f":
        return {"rule": "stored", "name": name}
    # Uniform, of the same mean and variance.
    mean, reach = float(value.mean(dtype=np.float64)), float(value.std(dtype=np.float64)) * 3**0.5
    return {"rule": "uniform", "low": mean - reach, "high": mean + reach, "key": key}


def _component(name: str, value: np.ndarray, seed: int) -> Argument:
    """Returns a batch's component: stored if that is small, else noise of the same range."""
    key = [seed, rules.key_of(name)]
    if len(zlib.compress(np.ascontiguousarray(value).tobytes(), 1)) <= MAX_STORED:
        return Argument(name, "input", value, {"rule": "stored", "name": name})
    low, high = value.min().item(), value.max().item()
    if value.dtype.kind == "f":
        rule = {"rule": "uniform", "low": low, "high": high, "key": key}
    else:
        rule = {"rule": "integers", "low": low, "high": high + 1, "key": key}
    return Argument(name, "input", rules.make(rule, value.shape, value.dtype.name, {}), rule)


def batch_of(arguments: Mapping[str, Argument]) -> dict[str, tf.Tensor]:
    """Returns the batch as the steps take it."""
    return {key: tf.constant(argument.value) for key, argument in arguments.items()}
