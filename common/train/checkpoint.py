"""Saves and restores checkpoints for any number of replicas: one array per variable, batch-norm moments per replica.

A checkpoint is one .npz file, written under another name, flushed and renamed, so that a file with the final name is
whole. Optimizer slots are saved for whole weights: where replicas hold parts, `save` gathers them and a restore splits
them again. Batch-norm moments are kept per replica (a resumed run is bitwise the same) and merged by the law of total
variance when the number of replicas or groups changes. The step is the input position too: inputs are functions of it.

Variables have their layers' names (names.py). The file also has what is needed to use the network without its data: the
benchmark, the configuration, the labels' names and the task's assets, such as a vocabulary. Files of earlier versions,
whose variables are numbered (`0000.kernel`), restore as well.

Every process calls `save` and `restore_latest`, which exchange data between processes. Process 0 writes and all
processes read, so the folder must be one that all hosts share.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import zipfile
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from common.config.digest import digest, to_dict
from common.config.schema import Communication
from common.distributed.weight_update import SlotValues
from common.errors import UserError
from common.files import NPZ_DAMAGE, left_behind, whole
from common.layers import batch_norm
from common.train import names
from common.train.loop import Loop
from common.train.step import State

KEEP = 2
BEST = "best.npz"  # Points to the checkpoint with the best quality (common/run/best.py).
FORMAT = 2  # 1, which says nothing of its format, numbered the variables.
# What the names in the file begin with; slots, moments and carried state have prefixes of their own.
ASSETS, WEIGHTS = "assets/", "weights/"
# Fields that may differ between the run that saved and the one that resumes.
FREE_FIELDS = (
    "replicas",
    "num_replicas",
    "partitions",
    "system",
    "hardware",
    "source",
    "accumulation_steps",
    "checkpoint_blocks",
    "compile",
    "init",
)


def save(
    loop: Loop, folder: str | os.PathLike, keep: int = KEEP, protect: Collection[int] = ()
) -> pathlib.Path:
    """Writes `folder`/checkpoint_<step>.npz and drops all but the last `keep` and those of the steps `protect`.

    Raises:
      UserError: the folder cannot be written, or the disk is full.
    """
    folder, replicas = pathlib.Path(folder), loop.state.replicas
    state, task = loop.state, loop.task
    step = int(state.step)
    path = folder / f"checkpoint_{step:08d}.npz"
    arrays = _values(state) | {name: replicas.all_values(v) for name, v in _moving(state).items()}
    error = None
    if replicas.main:
        meta = {"step": step, "digest": _digest(loop), "config": to_dict(loop.config), "format": FORMAT}
        meta |= {"benchmark": loop.config.benchmark, "labels": list(task.labels())}
        arrays |= {ASSETS + name: np.frombuffer(data, np.uint8) for name, data in task.assets().items()}
        arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
        try:
            _write(path, arrays, keep, protect)
        except OSError as caught:
            error = caught
    # Every process waits here until the file is written.
    if replicas.agree(int(error is not None)):
        reason = error.strerror if error else "process 0 says why"
        raise UserError(
            f"--checkpoint_dir={folder}: cannot write a checkpoint: {reason}; free space there"
        ) from error
    return path


def _write(
    path: pathlib.Path, arrays: dict[str, np.ndarray], keep: int, protect: Collection[int] = ()
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_partial(path.parent)
    with whole(path) as made, open(made, "wb") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    # The new name is on the disk before an older checkpoint goes.
    _flush_folder(path.parent)
    for old in checkpoints(path.parent)[:-keep]:
        if step_of(old) not in protect:
            old.unlink(missing_ok=True)


def _remove_partial(folder: pathlib.Path) -> None:
    """Removes the files of saves that were killed; only process 0 writes, so none of them is in use."""
    for path in left_behind(folder, "checkpoint_*.npz"):
        shutil.rmtree(path, ignore_errors=True)
    for path in _named(folder, "partial"):  # As earlier versions named them.
        with contextlib.suppress(OSError):
            path.unlink()


def _flush_folder(folder: pathlib.Path) -> None:
    # Some network file systems cannot flush a folder; the checkpoint is there nonetheless.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def restore_latest(loop: Loop, folder: str | os.PathLike) -> int | None:
    """Restores the newest checkpoint of `folder` into the loop's state.

    Returns:
      Its step, or None where there is no checkpoint.

    Raises:
      UserError: the file is damaged, belongs to another configuration, or is not what the other processes found.
    """
    replicas, error, arrays, step = loop.state.replicas, None, {}, -1
    try:
        found = checkpoints(pathlib.Path(folder))
        if found:
            arrays, step = _load(loop, found[-1])
    except UserError as caught:
        error = caught
    # Exchanged before any process raises, so that none waits for one that has.
    failed, newest, oldest = (
        replicas.agree(int(error is not None)),
        replicas.agree(step),
        -replicas.agree(-step),
    )
    if error:
        raise error
    if failed or newest != oldest:
        raise UserError(
            f"--checkpoint_dir={folder}: process {replicas.process_index} found step {step}, another one did not; "
            "use a folder that all hosts share"
        )
    if step < 0:
        return None
    _assign(loop.state, arrays)
    return step


def restore_weights(state: State, path: pathlib.Path) -> None:
    """Restores only weights and moments, for an evaluation; the run may have had other batches, not another network.

    State that layers carry from step to step is left out: it belongs to the rows of a batch, and an evaluation begins
    without it.

    Raises:
      UserError: the file is damaged, or belongs to another network.
    """
    arrays = read(path).named(state)
    weights = {name: entry for name, entry in _entries(state).items() if name.startswith(WEIGHTS)}
    if any(name not in arrays or arrays[name].shape != tuple(w.shape) for name, w in weights.items()):
        raise UserError(f"{path}: its variables are not those of this network; give the run's --config flags")
    moments = _moments(state)
    fitted = _fitted(state, arrays, moments, path)
    for name, weight in weights.items():
        for component in state.replicas.local_results(weight):
            component.assign(arrays[name])
    _assign_per_replica(state, moments, fitted)


def _load(loop: Loop, path: pathlib.Path) -> tuple[dict[str, np.ndarray], int]:
    """Returns the arrays of a file that fits the loop, per-replica ones for its number of replicas, and the step."""
    file = read(path)
    if file.meta["digest"] != _digest(loop):
        raise UserError(
            f"{path}: written by another configuration ({_difference(file.meta['config'], loop)}); use its own"
        )
    arrays, shapes, moving = file.named(loop.state), _shapes(loop.state), _moving(loop.state)
    same = sorted(arrays) == sorted([*shapes, *moving])
    if not same or any(arrays[name].shape != shape for name, shape in shapes.items()):
        raise UserError(f"{path}: its variables are not those of this model; written by another version?")
    return arrays | _fitted(loop.state, arrays, moving, path), int(file.meta["step"])


def _assign(state: State, arrays: dict[str, np.ndarray]) -> None:
    replicas = state.replicas
    slots: SlotValues = [{} for _ in state.model.trainable_variables]
    for name, entry in _entries(state).items():
        if isinstance(entry, Slot):
            slots[entry.weight][entry.name] = arrays[name]
        else:
            for component in replicas.local_results(entry):
                component.assign(arrays[name])
    state.update.write_slots(slots)
    _assign_per_replica(state, _moving(state), arrays)


def _assign_per_replica(
    state: State, variables: dict[str, tf.Variable], arrays: dict[str, np.ndarray]
) -> None:
    replicas = state.replicas
    for name, variable in variables.items():
        local = replicas.local_results(variable)
        first = replicas.process_index * len(local)
        for component, value in zip(local, arrays[name][first : first + len(local)], strict=True):
            component.assign(value)


@dataclasses.dataclass(frozen=True)
class File:
    """A checkpoint as read.

    Attributes:
      path: of the file.
      arrays: by the names in the file.
      meta: "step", "digest", "config" (plain values), "format"; from format 2 on "benchmark" and "labels" too.
      assets: {file name: content} of what the trained network needs beside its weights.
    """

    path: pathlib.Path
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]
    assets: dict[str, bytes]

    def named(self, state: State) -> dict[str, np.ndarray]:
        """Returns the arrays by the names of `state`'s variables: those of format 1 are numbered in their order."""
        if self.meta["format"] > 1:
            return self.arrays
        news = {f"{i:04d}": name for i, name in enumerate(_entries(state))}
        for kind, layers in (("moments", batch_norm.span_layers(state.model)), ("carried", _carriers(state))):
            paths = _paths(state, layers)
            news |= {f"{kind}/{i:03d}": f"{kind}/{path}" for i, path in enumerate(paths)}
        found = {}
        for old, array in self.arrays.items():
            stem, _, last = old.rpartition("/")
            name = f"{news[stem]}/{last}" if stem in news else news.get(old.partition(".")[0], old)
            found[name] = array
        return found


def read(path: pathlib.Path) -> File:
    """Reads a checkpoint.

    Raises:
      UserError: the file is damaged, or no checkpoint.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                raise ValueError("a checksum is wrong")
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        meta = {"format": 1, **json.loads(arrays.pop("meta").tobytes())}
        if not {"step", "digest", "config"} <= meta.keys():
            raise KeyError("meta")
        assets = {
            name.removeprefix(ASSETS): arrays.pop(name).tobytes()
            for name in list(arrays)
            if name.startswith(ASSETS)
        }
        return File(path, arrays, meta, assets)
    except NPZ_DAMAGE as error:
        raise UserError(
            f"{path}: not a whole checkpoint ({error}); delete it to resume from the one before"
        ) from error


def is_checkpoint(path: pathlib.Path) -> bool:
    """Whether a file is a checkpoint of this project, not another .npz file; a damaged one counts as one."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "meta.npy" in archive.namelist()
    except FileNotFoundError:
        return False
    except NPZ_DAMAGE:
        return True


def checkpoints(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the checkpoints of a folder, the newest last."""
    return sorted(_named(folder, "npz"))


def step_of(path: pathlib.Path) -> int:
    """Returns the step in a checkpoint's name, checkpoint_00000120.npz."""
    return int(path.stem.rpartition("_")[2])


def _named(folder: pathlib.Path, suffix: str) -> list[pathlib.Path]:
    pattern = re.compile(rf"checkpoint_\d{{8,}}\.{suffix}")
    return [p for p in folder.glob(f"checkpoint_*.{suffix}") if pattern.fullmatch(p.name)]


def _moving(state: State) -> dict[str, tf.Variable]:
    """Returns per-replica variables by name: batch-norm moments, and the state that layers carry for each example."""
    return _moments(state) | _carried(state)


def _moments(state: State) -> dict[str, tf.Variable]:
    layers = batch_norm.span_layers(state.model)
    return {
        f"moments/{path}/{moment}": getattr(layer, f"moving_{moment}")
        for path, layer in zip(_paths(state, layers), layers)
        for moment in ("mean", "variance")
    }


def _carried(state: State) -> dict[str, tf.Variable]:
    layers = _carriers(state)
    return {
        f"carried/{path}/{name}": getattr(layer, name)
        for path, layer in zip(_paths(state, layers), layers)
        for name in layer.carried
    }


def _carriers(state: State) -> list[Any]:
    return [m for m in state.model.submodules if hasattr(m, "carried")]


def _paths(state: State, layers: Sequence[Any]) -> list[str]:
    """Returns the layers' names; a module that is no layer of the network has its place among `layers`."""
    paths = names.of_layers(state.model)
    return [paths.get(id(layer), f"{i:03d}") for i, layer in enumerate(layers)]


class Slot(NamedTuple):
    """An optimizer slot of trainable variable number `weight`, in the shape of that variable."""

    weight: int
    name: str


def _entries(state: State) -> dict[str, tf.Variable | Slot]:
    """Returns the variables and slots that are equal on every replica, by their name in the file."""
    moving = {id(v) for v in _moving(state).values()}
    called = names.of_variables(state.model)
    found: dict[str, tf.Variable | Slot] = {
        WEIGHTS + called[id(v)]: v for v in state.model.variables if id(v) not in moving
    }
    for i, weight in enumerate(state.model.trainable_variables):
        found |= {f"slots/{called[id(weight)]}/{name}": Slot(i, name) for name in state.update.rule.slots}
    counters = (*state.loss_scale.variables, state.step, state.evaluated)
    return found | {names.stem(v): v for v in counters}


def _values(state: State) -> dict[str, np.ndarray]:
    """Returns the values of all entries; every process must call it."""
    slots = state.update.read_slots()
    return {
        name: slots[entry.weight][entry.name]
        if isinstance(entry, Slot)
        else state.replicas.local_results(entry)[0].numpy()
        for name, entry in _entries(state).items()
    }


def _shapes(state: State) -> dict[str, tuple[int, ...]]:
    weights = state.model.trainable_variables
    return {
        name: tuple((weights[entry.weight] if isinstance(entry, Slot) else entry).shape)
        for name, entry in _entries(state).items()
    }


def _fitted(
    state: State, arrays: dict[str, np.ndarray], variables: dict[str, tf.Variable], path: pathlib.Path
) -> dict[str, np.ndarray]:
    """Returns the saved values of per-replica variables, one for each replica of the state.

    Raises:
      UserError: a variable is missing, or does not fit this shape; nothing was assigned.
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


def _fit(arrays: dict[str, np.ndarray], name: str, replicas: int, shape: tf.TensorShape) -> np.ndarray:
    """Returns the saved moments [R, G, C] as [replicas, *shape]: unchanged where that fits, else merged over R and G.

    Raises:
      KeyError: the variable is missing.
      ValueError: the shapes do not fit.
    """
    saved = arrays[name]
    if saved.shape == (replicas, *shape):
        return saved
    if name.startswith("carried/"):  # Rows of the global batch, in the order of the replicas.
        return saved.reshape(replicas, *shape)
    return np.broadcast_to(merged(arrays, name), (replicas, *shape))


def merged(arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
    """Returns the saved moment `name`, "moments/LAYER/mean" or ".../variance", [R, G, C], merged over R and G: [C]."""
    stem = name.rpartition("/")[0]
    means, variances = (arrays[f"{stem}/{moment}"].astype(np.float64) for moment in ("mean", "variance"))
    mean = means.mean((0, 1))
    found = mean if name.endswith("/mean") else (variances + means**2).mean((0, 1)) - mean**2
    return found.astype(arrays[name].dtype)


def _digest(loop: Loop) -> str:
    neutral = {name: getattr(type(loop.config)(), name) for name in FREE_FIELDS}
    # Only `wire` changes the gradient sums by more than their rounding.
    neutral["communication"] = Communication(wire=loop.config.communication.wire)
    return digest(dataclasses.replace(loop.config, **neutral))


def _difference(saved: dict, loop: Loop) -> str:
    here = json.loads(json.dumps(to_dict(loop.config)))
    default = json.loads(json.dumps(to_dict(type(loop.config)())))
    both = [{**default, **values} for values in (saved, here)]
    for values in both:
        values["communication.wire"] = values.pop("communication", {}).get("wire")
    there, here = both
    names = [n for n in sorted({*there, *here}) if n not in FREE_FIELDS and there.get(n) != here.get(n)]
    return (
        ", ".join(f"config.{n}: {there.get(n)} there, {here.get(n)} here" for n in names[:3])
        or "another version"
    )
