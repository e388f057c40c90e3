"""Starts training from another network's weights: sets every variable whose name and shape fit, the rest start anew.

`config.init` names a checkpoint of this project (a file or a folder), or a file that common/layers/weight_files.py
reads. A classifier for another number of classes has another shape, so its head starts anew. The optimizer and the
step counter start at zero.
"""

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from common.distributed import fully_sharded
from common.errors import UserError
from common.layers import batch_norm, weight_files
from common.train import checkpoint_file, names
from common.train.state import State

_MOMENTS = {"moving_mean": "mean", "moving_variance": "variance"}
SHOWN = 12  # Rows of a table's part; the others are only counted.


@dataclasses.dataclass(frozen=True)
class Match:
    """What a network took from a file.

    Attributes:
      path: path of the file.
      matched: names of the variables that were set.
      new: {name: why} for the network's variables that start anew.
      left: names of the file's arrays that the network does not use.
    """

    path: str
    matched: list[str]
    new: dict[str, str]
    left: list[str]

    def table(self) -> str:
        """Returns a table for people: matched, new and left layers."""
        lines = [
            f"weights  {self.path}: {len(self.matched)} matched, {len(self.new)} new, {len(self.left)} left"
        ]
        rows = [("new", f"{name} ({why})") for name, why in self.new.items()]
        rows += [("left", name) for name in self.left]
        for kind in ("new", "left"):
            some = [text for k, text in rows if k == kind]
            lines += [f"  {kind:5} {text}" for text in some[:SHOWN]]
            lines += [f"  {kind:5} and {len(some) - SHOWN} more"] if len(some) > SHOWN else []
        return "\n".join(lines)


def variables(model: tf.Module) -> dict[str, tf.Variable]:
    """Returns an inference's variables by name, without counters, carried state and replicas' own moments.

    Batch norm's merged moments are named `moving_mean` and `moving_variance`, as in Keras and torchvision.
    """
    called, layers = names.of_variables(model), batch_norm.span_layers(model)
    excluded = {id(getattr(layer, name)) for layer in layers for name in _MOMENTS}
    excluded |= {id(getattr(m, n)) for m in model.submodules if hasattr(m, "carried") for n in m.carried}
    candidates = [v for v in model.variables if v.dtype.is_floating and id(v) not in excluded]
    return {called[id(v)].replace("/merged_", "/moving_"): v for v in candidates}


def read(path: str | os.PathLike, state: State, task: Any) -> dict[str, np.ndarray]:
    """Returns {name: array} of a checkpoint of this project, or of another program's file.

    Raises UserError if the file is missing, damaged or of an unknown kind.
    """
    path = pathlib.Path(path)
    if path.is_dir() and not (path / "saved_model.pb").is_file():
        files = checkpoint_file.checkpoints(path)
        if not files:
            raise UserError(f"{path}: neither a checkpoint nor a SavedModel in it; name a file of weights")
        path = files[-1]
    if path.suffix != ".npz" or not checkpoint_file.is_checkpoint(path):
        return weight_files.read(path)
    file = checkpoint_file.read(path, training=False)
    prefix = checkpoint_file.WEIGHTS
    by_name = {n.removeprefix(prefix): a for n, a in file.arrays.items() if n.startswith(prefix)}
    weights = {n: a for n, a in by_name.items() if "/merged_" not in n and a.dtype.kind == "f"}
    for layer in {n.rpartition("/")[0] for n in file.arrays if n.startswith("moments/")}:
        for name, moment in _MOMENTS.items():
            merged = checkpoint_file.merged(file.arrays, f"{layer}/{moment}")
            weights[f"{layer.removeprefix('moments/')}/{name}"] = merged
    return weights


def start(state: State, task: Any, path: str | os.PathLike) -> Match:
    """Sets the variables of `state` whose names and shapes fit; every process must call it.

    Raises UserError if the file cannot be read, or nothing in it fits; nothing was assigned.
    """
    arrays, targets = read(path, state, task), variables(state.model)
    fitted, new = {}, {}
    for name, variable in targets.items():
        if name not in arrays:
            new[name] = "not in the file"
            continue
        shape = fully_sharded.shape_of(variable)
        array = task.fitted(arrays[name], shape)
        if array.shape != shape:
            new[name] = f"{_shape(arrays[name].shape)} there, {_shape(shape)} here"
        else:
            fitted[name] = array
    if not fitted:
        some, ours = sorted(arrays)[:2], list(targets)[:2]
        raise UserError(
            f"config.init={path}: nothing fits this network; it has {', '.join(some)}, the network {', '.join(ours)}"
        )
    for name, array in fitted.items():
        variable = targets[name]
        fully_sharded.write(state.replicas, variable, array.astype(variable.dtype.as_numpy_dtype))
    _set_moving(state, fitted)
    return Match(os.fspath(path), list(fitted), new, sorted(set(arrays) - set(targets)))


def _set_moving(state: State, fitted: Mapping[str, np.ndarray]) -> None:
    """Sets every replica's own moments, which an evaluation merges."""
    paths = names.of_layers(state.model)
    for layer in batch_norm.span_layers(state.model):
        for name in _MOMENTS:
            array = fitted.get(f"{paths.get(id(layer), '')}/{name}")
            if array is not None:
                for copy in state.replicas.local_results(getattr(layer, name)):
                    copy.assign(np.broadcast_to(array, copy.shape).astype(copy.dtype.as_numpy_dtype))


def _shape(shape: Any) -> str:
    return "x".join(map(str, shape)) or "scalar"
