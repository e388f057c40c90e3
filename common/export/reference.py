"""Runs the exported steps in TensorFlow to get the numbers that a replay must reproduce."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from common.distributed.replicas.mirrored import Mirrored
from common.errors import UserError
from common.export import rules
from common.export.steps import Argument, Steps, batch_of
from common.layers.precision import precision
from common.train.state import State
from common.train.step import make_eval_step, make_train_step

STEPS = 3
# Maximum number of replicas computed here.
MOST_REPLICAS = 8

Batch = Mapping[str, Argument]


class Alone:
    """A single replica: runs the exported steps with TensorFlow's XLA or with TensorFlow's own kernels.

    `computed_by` says how, for people.
    """

    def __init__(self, steps: Steps, kind: str):
        """`kind`: "compiled" or "uncompiled"."""
        self._steps = steps
        self.reset = steps.reset
        plain = kind == "uncompiled"
        self._train, self._evaluate = (
            tf.function(f.python_function, autograph=False) if plain else f
            for f in (steps.train, steps.evaluate)
        )
        device = "GPU" if tf.config.list_physical_devices("GPU") else f"CPU ({os.cpu_count()} cores)"
        self.computed_by = f"tensorflow, {kind}, {device}"

    def train(self, batch: Batch) -> float:
        """Takes a step; returns its loss, summed over the replicas."""
        return float(self._train(batch_of(batch)))

    def evaluate(self, batch: Batch) -> dict[str, np.ndarray]:
        """Returns an evaluation's outputs: sums over the replicas, and the replicas' arrays joined on axis 0."""
        return {name: value.numpy() for name, value in outputs_of(self._evaluate(batch_of(batch)))}

    def values(self) -> dict[str, np.ndarray]:
        """Returns the state by name; [N, ...] if each of N replicas has its own value."""
        return {name: variable.numpy() for name, variable in self._steps.variables.items()}


class OfSeveral:
    """As `Alone`: the export's replicas, on the backend `mirrored` with this process's devices."""

    def __init__(self, steps: Steps, replicas: Mirrored):
        """Builds the network again.

        Args:
          steps: the exported steps, with the same number of replicas.
          replicas: the backend.
        """
        self._steps, self._replicas = steps, replicas
        config = dataclasses.replace(steps.task.config, replicas="mirrored", compile="off")
        task = type(steps.task)(config, None)
        policy = precision(config.precision)
        self._state = State(task, replicas, policy)
        self._step = make_train_step(task, self._state, steps.run_length)
        self._eval_step = make_eval_step(task, self._state)
        names = [name for name, about in steps.state.items() if about.role != "replica"]
        self._variables = dict(zip(names, self._state.variables(), strict=True))
        self.computed_by = f"tensorflow, mirrored, CPU ({os.cpu_count()} cores)"
        self.reset()

    def reset(self) -> None:
        for name, variable in self._variables.items():
            for copy in self._replicas.local_results(variable):
                copy.assign(tf.cast(self._steps.state[name].value, variable.dtype))

    def train(self, batch: Batch) -> float:
        loss = self._replicas.run(self._step, (next(self._batches(batch)), self._state.step.read_value()))
        self._state.step.assign_add(1)
        return float(self._replicas.sum(loss))

    def evaluate(self, batch: Batch) -> dict[str, np.ndarray]:
        sums, arrays = self._replicas.run(self._eval_step, (next(self._batches(batch)),))
        outputs = outputs_of((self._replicas.sum(sums), self._replicas.gather(arrays)))
        return {name: value.numpy() for name, value in outputs}

    def values(self) -> dict[str, np.ndarray]:
        by_name = {}
        for name, variable in self._variables.items():
            copies = [copy.numpy() for copy in self._replicas.local_results(variable)]
            by_name[name] = np.stack(copies) if self._steps.state[name].per_replica else copies[0]
        return by_name

    def _batches(self, batch: Batch) -> Iterator[Any]:
        """Yields each replica's batch once; the replicas of a group share one batch."""
        count, partitions = self._replicas.num_replicas, self._steps.task.config.partitions
        splits = {
            key: np.stack([argument.of_group(r // partitions) for r in range(count)])
            for key, argument in batch.items()
        }
        return iter(self._replicas.dataset(lambda _: tf.data.Dataset.from_tensor_slices(splits)))


def prepared(num_replicas: int, kind: str, say: Callable[[str], None]) -> Mirrored | None:
    """Returns the backend for a reference with several replicas; call it before TensorFlow starts.

    TensorFlow would otherwise start with too few devices.
    """
    if kind == "none" or num_replicas == 1:
        return None
    if num_replicas > MOST_REPLICAS:
        say(f"no reference: {num_replicas} replicas, and at most {MOST_REPLICAS} are computed here")
        return None
    try:
        return Mirrored(num_replicas)
    except UserError as error:
        say(f"no reference: {error}")
        return None


def make(steps: Steps, kind: str, replicas: Mirrored | None) -> Alone | OfSeveral | None:
    """Returns the reference of `kind`, or None; `replicas` comes from `prepared`."""
    if kind == "none":
        return None
    if steps.replicas.num_replicas == 1:
        return Alone(steps, kind)
    return OfSeveral(steps, replicas) if replicas else None


def describe(
    reference: Alone | OfSeveral, steps: Steps, training: bool, batch: Batch, say: Callable[[str], None]
) -> dict[str, Any]:
    """Returns the numbers for the manifest.

    For training: the first losses, and digests of the state after the first step. For an evaluation: digests of its
    outputs.
    """
    description: dict[str, Any] = {"computed_by": reference.computed_by}
    reference.reset()
    if not training:
        outputs = reference.evaluate(batch)
        return {**description, "outputs": {n: rules.digest(x, rules.key_of(n)) for n, x in outputs.items()}}
    losses = []
    for i in range(STEPS):
        losses.append(reference.train(batch))
        say(f"step {i + 1}: loss {losses[-1]!r}")
        if i == 0:
            description["state"] = {n: _change(x, steps.state[n]) for n, x in reference.values().items()}
    reference.reset()
    return {**description, "losses": losses}


def _change(after: np.ndarray, about: Argument) -> dict[str, Any]:
    """Returns digests of a variable's value after a step and of its change."""
    after, key = after.astype(np.float64), rules.key_of(about.name)
    return {"after": rules.digest(after, key), "change": rules.digest(after - about.value, key)}


def outputs_of(returned: Any) -> list[tuple[str, Any]]:
    """Returns (name, tensor) for a step's outputs (a loss, or (sums, arrays)), in tf.nest's order."""
    if not isinstance(returned, (tuple, list)):
        return [("loss", returned)]
    parts = zip(("sums", "arrays"), returned)
    return [(f"{kind}/{key}", part[key]) for kind, part in parts for key in sorted(part)]
