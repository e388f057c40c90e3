"""Builds the steps to export: one replica's training and evaluation steps from the loop, and their state."""

from __future__ import annotations

import contextlib
import dataclasses
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from common.config.run_length import RunLength
from common.config.schema import RunConfig
from common.config.validation import LARGEST_SEED
from common.distributed import blank
from common.distributed.replicas.xla import Xla
from common.errors import UserError
from common.export import rules
from common.layers.precision import precision
from common.optim import schedules
from common.train.state import State
from common.train.step import make_eval_step, make_train_step

# Bytes. A batch's array is stored if it compresses to at most MAX_STORED; a larger one is replaced by noise.
# A tensor that a step closes over may have at most MAX_CONSTANT.
MAX_STORED = 1 << 18
MAX_CONSTANT = 1 << 24
# Number of replica groups whose batches are stored; group g uses the batch of group g modulo SHARES.
SHARES = 8


def to_export(config: RunConfig) -> RunConfig:
    """Returns the exported replica's configuration: one of the run's replicas, or one alone for backend `single`."""
    if config.replicas == "single" or config.num_replicas == 1:
        return config.single_replica()
    return dataclasses.replace(config, compile="on")


@dataclasses.dataclass(frozen=True)
class Argument:
    """A variable of the state, or a component of a batch.

    Attributes:
      name: unique name within the export.
      role: "input", "weight", "statistic", "slot", "counter", "constant", "replica".
      value: value at the start of the exported run, on replica 0.
      rule: how to make the value, see rules.py.
      stored: the array in arrays.npz if the rule is "stored": `value`, or the values of several replica groups.
      per_replica: whether each replica has its own value, which may differ after a step.
    """

    name: str
    role: str
    value: np.ndarray
    rule: rules.Rule
    stored: np.ndarray | None = None
    per_replica: bool = False

    def of_group(self, group: int) -> np.ndarray:
        """Returns the value for a group of replicas that share examples."""
        stored = {self.name: self.stored}
        return rules.make(self.rule, self.value.shape, self.value.dtype.name, stored, group=group)


class Steps:
    """A task's steps on one replica, with its exchanges with the other replicas.

    Attributes:
      train, evaluate: compiled tf.functions (batch) -> the step's outputs.
      replicas: the backend.
      run_length: of the whole run.
      variables: {name: variable} of the state; with several replicas, includes the replica's number.
      state: {name: Argument}; the variables hold these values after `reset()`.
      values: whether arguments have a run's initial values instead of zeros.
      constants: {name: Argument} of tensors that a step closes over, in the order in which `name_of` finds them.
    """

    def __init__(self, task: Any, config: RunConfig, values: bool = True, platform: str = ""):
        """Builds the network.

        Args:
          task: the benchmark's task, for the configuration `to_export(config)`.
          config: the whole run's configuration; its length determines the learning rates.
          values: False skips initial values: every argument is zero.
          platform: the devices' kind, as in `Replicas.platform`.
        """
        self.values = values
        policy = precision(task.config.precision)
        self.task, self.run_length = task, RunLength.of(config)
        self.replicas = Xla(task.config.num_replicas)
        self.replicas.platform = platform
        with contextlib.nullcontext() if values else blank.scope():
            self._state = state = State(task, self.replicas, policy)
        train_step = make_train_step(task, state, self.run_length)

        def train(batch: Any) -> tf.Tensor:
            """One iteration of the loop (common/train/loop.py); the step's number is a variable."""
            loss = train_step(batch, state.step.read_value())
            with tf.control_dependencies([loss]):
                state.step.assign_add(1)
            return loss

        self.train, self.evaluate = compiled(train), compiled(make_eval_step(task, state))
        self.variables = self._by_name()
        self.state = {
            name: self._argument(name, variable, i)
            for i, (name, variable) in enumerate(self.variables.items())
        }
        self.constants: dict[str, Argument] = {}
        self._captured: dict[int, tuple[tf.Tensor, str]] = {}
        if values:
            self.reset()

    def reset(self) -> None:
        """Resets all variables to their values at the start of the exported run."""
        for name, variable in self.variables.items():
            variable.assign(self.state[name].value)

    def name_of(self, captured: tf.Tensor) -> str:
        """Returns the name of a variable or a constant that a step closes over.

        Raises UserError if the constant is too large to store.
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
            rule = {"rule": "stored", "name": name}
            self.constants[name] = Argument(name, "constant", value, rule, stored=value)
            self._captured[id(captured)] = captured, name
        return self._captured[id(captured)][1]

    @property
    def model(self) -> tf_keras.Model:
        return self._state.model

    def batches(self, training: bool) -> list[dict[str, Argument]]:
        """Returns the task's synthetic batch for each shape, with large arrays replaced by noise of the same range.

        If there are several replica groups, each has its own noise, or one of several synthetic batches with different
        seeds.
        """
        task, config = self.task, self.task.config
        count = max(1, len(task.batch_shapes if training else task.eval_batch_shapes))
        size = (config.global_batch_size if training else config.eval_batch_size) // config.num_groups
        prefix = "train" if training else "eval"
        number = min(config.num_groups, SHARES) if self.values else 1
        shares = [_synthetic(self._seeded(share), training, size, count) for share in range(number)]
        places = [f"{prefix}/{i}" for i in range(count)] if count > 1 else [prefix]
        return [
            {
                key: self._component(f"{place}/{key}", [share[i][key] for share in shares])
                for key in shares[0][i]
            }
            for i, place in enumerate(places)
        ]

    def _component(self, name: str, shares: Sequence[np.ndarray]) -> Argument:
        config = self.task.config
        if not self.values:
            return _zeros(name, "input", shares[0], config.num_groups > 1)
        return _component(name, shares, config.seed)

    def _seeded(self, share: int) -> Any:
        """Returns the task with a different seed, for a replica group's examples."""
        config = self.task.config
        seed = (config.seed + share) % LARGEST_SEED
        return type(self.task)(dataclasses.replace(config, seed=seed), None) if share else self.task

    def _by_name(self) -> dict[str, tf.Variable]:
        by_name: dict[str, tf.Variable] = {}
        number = [self.replicas.number] if self.replicas.num_replicas > 1 else []
        for variable in [*self._state.variables(), *number]:
            name = variable.name.partition(":")[0]
            copies = sum(other == name or other.startswith(f"{name}#") for other in by_name)
            by_name[f"{name}#{copies}" if copies else name] = variable
        return by_name

    def _argument(self, name: str, variable: tf.Variable, index: int) -> Argument:
        state = self._state
        weights = {id(v) for v in state.model.trainable_variables}
        slots = {id(v) for slots in state.update.slots for v in slots.values()}
        per_replica = any(variable is v for v in self.replicas.local_variables)
        if variable is self.replicas.number:
            return Argument(name, "replica", np.int32(0), {"rule": "replica"}, per_replica=True)
        if variable is state.step:
            start = self._start_step()
            value = np.asarray(start, variable.dtype.as_numpy_dtype)
            return Argument(name, "counter", value, {"rule": "constant", "value": start})
        counter = variable is state.evaluated
        role = "weight" if id(variable) in weights else "slot" if id(variable) in slots else "statistic"
        role = "counter" if counter else role
        if not self.values:
            return _zeros(name, role, np.empty(variable.shape, variable.dtype.as_numpy_dtype), per_replica)
        value = variable.numpy()
        rule = _rule(name, value, [self.task.config.seed, index])
        stored = {name: value} if rule["rule"] == "stored" else {}
        array = rules.make(rule, value.shape, value.dtype.name, stored)
        return Argument(name, role, array, rule, stored.get(name), per_replica)

    def _start_step(self) -> int:
        """Returns step 0, or a step a tenth into the warmup if step 0 has learning rate 0 and would change nothing."""
        config = self.task.config
        rate = schedules.run_learning_rate(config, self.run_length)
        if float(rate(tf.constant(0, tf.int64))) > 0:
            return 0
        return max(1, round(config.schedule.warmup_length(self.run_length.steps_per_epoch) / 10))


def compiled(function: Callable) -> Callable:
    """Compiles with XLA, like `Replicas.compile`."""
    return tf.function(function, jit_compile=True, autograph=False)


def _rule(name: str, value: np.ndarray, key: list[int]) -> rules.Rule:
    """Returns a rule for an array like `value`, a variable's initial value."""
    if value.size and (value == value.flat[0]).all():
        return {"rule": "constant", "value": value.flat[0].item()}
    if value.dtype.kind != "f":
        return {"rule": "stored", "name": name}
    # Uniform numbers with the same mean and variance.
    mean, reach = float(value.mean(dtype=np.float64)), float(value.std(dtype=np.float64)) * 3**0.5
    return {"rule": "uniform", "low": mean - reach, "high": mean + reach, "key": key}


def _zeros(name: str, role: str, like: np.ndarray, per_replica: bool) -> Argument:
    """Returns a zero argument with the shape and dtype of `like`, for callers that need no values."""
    value, rule = np.zeros(like.shape, like.dtype), {"rule": "constant", "value": 0}
    return Argument(name, role, value, rule, None, per_replica)


def _synthetic(task: Any, training: bool, size: int, count: int) -> list[dict[str, np.ndarray]]:
    """Returns `count` of the task's synthetic batches of `size`."""
    make = task.synthetic_input if training else task.synthetic_eval_input
    return [{key: value.numpy() for key, value in batch.items()} for batch in make(size).take(count)]


def _component(name: str, shares: Sequence[np.ndarray], seed: int) -> Argument:
    """Returns a batch's component from several groups' `shares`: stored if small, else noise of the same range."""
    key, value = [seed, rules.key_of(name)], shares[0]
    sharing = {"shared": False} if len(shares) > 1 else {}
    if len(zlib.compress(np.ascontiguousarray(value).tobytes(), 1)) <= MAX_STORED:
        stored = np.stack(shares) if sharing else value
        return Argument(
            name, "input", value, {"rule": "stored", "name": name, **sharing}, stored, bool(sharing)
        )
    low, high = value.min().item(), value.max().item()
    if value.dtype.kind == "f":
        rule = {"rule": "uniform", "low": low, "high": high, "key": key, **sharing}
    else:
        rule = {"rule": "integers", "low": low, "high": high + 1, "key": key, **sharing}
    array = rules.make(rule, value.shape, value.dtype.name, {})
    return Argument(name, "input", array, rule, per_replica=bool(sharing))


def batch_of(arguments: Mapping[str, Argument]) -> dict[str, tf.Tensor]:
    """Returns the first replica group's batch in the form that the steps take."""
    return {key: tf.constant(argument.of_group(0)) for key, argument in arguments.items()}
