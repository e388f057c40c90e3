"""Names the variables of a run's state as in a checkpoint, and fits saved arrays to them.

Optimizer slots are saved for whole weights: if replicas hold parts, saving gathers them and restoring splits them.
Batch-norm moments, and state that layers carry from step to step, are kept per replica. If the number of replicas or
groups changes, moments are merged by the law of total variance.
"""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from common.distributed import fully_sharded
from common.errors import UserError
from common.layers import batch_norm
from common.train import names
from common.train.checkpoint_file import SLOTS, WEIGHTS, merged
from common.train.state import Network, State


class Slot(NamedTuple):
    """An optimizer slot of trainable variable number `weight`, as for the whole variable."""

    weight: int
    name: str
    shape: tuple[int, ...]


def weights(network: Network) -> dict[str, tf.Variable]:
    """Returns the variables whose value replicas share: equal on all, or in parts; by their names in the file."""
    per_replica = {id(v) for v in moving(network).values()}
    called = names.of_variables(network.model)
    return {WEIGHTS + called[id(v)]: v for v in network.model.variables if id(v) not in per_replica}


def entries(state: State) -> dict[str, tf.Variable | Slot]:
    """Returns the variables and slots whose value replicas share, by their names in the file."""
    by_name: dict[str, tf.Variable | Slot] = {**weights(state)}
    called = names.of_variables(state.model)
    for i, weight in enumerate(state.model.trainable_variables):
        slots = state.update.slot_shapes[i].items()
        by_name |= {f"{SLOTS}{called[id(weight)]}/{name}": Slot(i, name, shape) for name, shape in slots}
    return by_name | {names.stem(v): v for v in (state.step, state.evaluated)}


def values(state: State) -> Iterator[tuple[str, np.ndarray]]:
    """Yields name and value of each entry and per-replica variable; every process must exhaust it."""
    slots = {}
    for name, entry in entries(state).items():
        if isinstance(entry, Slot):
            slots[entry.weight, entry.name] = name
        else:
            yield name, fully_sharded.read(state.replicas, entry)
    for weight, slot, value in state.update.each_slot():
        yield slots[weight, slot], value
    for name, variable in moving(state).items():
        yield name, state.replicas.all_values(variable)


def shapes(state: State) -> dict[str, tuple[int, ...]]:
    return {name: fully_sharded.shape_of(entry) for name, entry in entries(state).items()}


def moving(state: Network) -> dict[str, tf.Variable]:
    """Returns per-replica variables by name: batch-norm moments, and the state that layers carry for each example."""
    return moments(state) | _carried(state)


def moments(state: Network) -> dict[str, tf.Variable]:
    layers = batch_norm.span_layers(state.model)
    return {
        f"moments/{path}/{moment}": getattr(layer, f"moving_{moment}")
        for path, layer in zip(_paths(state, layers), layers)
        for moment in ("mean", "variance")
    }


def _carried(state: Network) -> dict[str, tf.Variable]:
    layers = [m for m in state.model.submodules if hasattr(m, "carried")]
    return {
        f"carried/{path}/{name}": getattr(layer, name)
        for path, layer in zip(_paths(state, layers), layers)
        for name in layer.carried
    }


def _paths(state: Network, layers: Sequence[Any]) -> list[str]:
    """Returns the layers' names; a module outside the network's layers gets its index in `layers`."""
    paths = names.of_layers(state.model)
    return [paths.get(id(layer), f"{i:03d}") for i, layer in enumerate(layers)]


def fitted(
    state: Network, arrays: Mapping[str, np.ndarray], variables: dict[str, tf.Variable], path: pathlib.Path
) -> dict[str, np.ndarray]:
    """Returns the saved values of per-replica variables, one for each replica of the state.

    Raises UserError if a variable is missing, or its shape does not fit; nothing was assigned.
    """
    replicas, fitted = state.replicas.num_replicas, {}
    for name, variable in variables.items():
        try:
            fitted[name] = _fit(arrays, name, replicas, variable.shape)
        except (KeyError, ValueError) as error:
            saved = list(arrays[name].shape) if name in arrays else "none"
            raise UserError(
                f"{path}: {name} is {saved} there, {[replicas, *variable.shape]} here; "
                "give the --config flags of the run that saved"
            ) from error
    return fitted


def _fit(arrays: Mapping[str, np.ndarray], name: str, replicas: int, shape: tf.TensorShape) -> np.ndarray:
    """Fits saved moments [R, G, C] to [replicas, *shape]: unchanged if they fit, otherwise merged over R and G.

    Raises:
      KeyError: the variable is missing.
      ValueError: the shapes do not fit.
    """
    saved = arrays[name]
    if saved.shape == (replicas, *shape):
        return saved
    if name.startswith("carried/"):  # Rows of the global batch, in replica order.
        return saved.reshape(replicas, *shape)
    return np.broadcast_to(merged(arrays, name), (replicas, *shape))
