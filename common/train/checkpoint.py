"""Saves and restores checkpoints for any number of replicas: one array per variable, batch-norm moments per replica.

A resumed run is bitwise the same. The step also gives the input position, because inputs are functions of it.
checkpoint_file.py defines the file's contents; checkpoint_variables.py maps variables to arrays. Variables have their
layers' names (names.py).

Every process calls `save` and `restore_latest`, which exchange data between processes. Process 0 writes and all
processes read, so all hosts must share the folder.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Collection

import numpy as np
import tensorflow as tf

from common.config.digest import digest, to_dict
from common.config.schema import Communication
from common.distributed.weight_update import SlotValues
from common.errors import UserError
from common.files import write_fix
from common.train import checkpoint_file, checkpoint_variables
from common.train.loop import Loop
from common.train.step import Network, State

KEEP = 2
_SHOWN = 3  # Maximum number of settings in an error.
_NUMBERS = "biufV"  # Kinds of numpy's dtypes; numpy reads bfloat16 as V.
# Fields that may differ between the run that saved and the run that resumes.
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
    """Writes `folder`/checkpoint_<step>.npz; drops all checkpoints but the last `keep` and the steps in `protect`.

    Raises:
      UserError: the folder cannot be written, or the disk is full.
    """
    folder, replicas = pathlib.Path(folder), loop.state.replicas
    state, task = loop.state, loop.task
    step = int(state.step)
    path = folder / f"checkpoint_{step:08d}.npz"
    arrays = checkpoint_variables.values(state) | {
        name: replicas.all_values(v) for name, v in checkpoint_variables.moving(state).items()
    }
    error = None
    if replicas.main:
        meta = {"step": step, "digest": _digest(loop), "config": to_dict(loop.config)}
        meta |= {"benchmark": loop.config.benchmark, "labels": list(task.labels())}
        try:
            checkpoint_file.write(path, arrays, meta, task.assets(), keep, protect)
        except OSError as caught:
            error = caught
    # Every process waits here until the file is written.
    if replicas.agree(int(error is not None)):
        reason = f"{error.strerror}; {write_fix(error)}" if error else "process 0 says why"
        raise UserError(f"--checkpoint_dir={folder}: cannot write a checkpoint: {reason}") from error
    return path


def restore_latest(loop: Loop, folder: str | os.PathLike) -> int | None:
    """Restores the newest checkpoint of `folder` into the loop's state.

    Returns:
      Its step, or None if there is no checkpoint.

    Raises:
      UserError: the file is damaged, belongs to another configuration, or differs from what the other processes found.
    """
    replicas, error, arrays, step = loop.state.replicas, None, {}, -1
    try:
        found = checkpoint_file.checkpoints(pathlib.Path(folder))
        if found:
            arrays, step = _load(loop, found[-1])
    except UserError as caught:
        error = caught
    # Exchange before any process raises, so that no process waits for one that has raised.
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


def restore_weights(network: Network, path: pathlib.Path) -> None:
    """Restores only weights and moments, for an evaluation; the network must match, the batch size need not.

    It leaves out state that layers carry from step to step: that state belongs to a batch's rows, and an evaluation
    begins without it.

    Raises:
      UserError: the file is damaged, or belongs to another network.
    """
    restore_weights_of(network, checkpoint_file.read(path, training=False))


def restore_weights_of(network: Network, file: checkpoint_file.File) -> None:
    """As `restore_weights`, for a checkpoint that is already read.

    Raises:
      UserError: the checkpoint belongs to another network.
    """
    arrays, weights = file.arrays, checkpoint_variables.weights(network)
    for name, weight in weights.items():
        if (
            name not in arrays
            or arrays[name].shape != tuple(weight.shape)
            or arrays[name].dtype.kind not in _NUMBERS
        ):
            raise UserError(
                f"{file.path}: its variables are not those of this network; give the run's --config flags"
            )
    moments = checkpoint_variables.moments(network)
    fitted = checkpoint_variables.fitted(network, arrays, moments, file.path)
    for name, weight in weights.items():
        for component in network.replicas.local_results(weight):
            component.assign(arrays[name])
    _assign_per_replica(network, moments, fitted)


def _load(loop: Loop, path: pathlib.Path) -> tuple[dict[str, np.ndarray], int]:
    """Returns (arrays, step) of a file that fits the loop; fits per-replica arrays to the loop's replicas."""
    file = checkpoint_file.read(path)
    if file.meta["digest"] != _digest(loop):
        raise UserError(
            f"{path}: written by a run with other settings ({_difference(file.meta['config'], loop)}); give the same "
            "settings to go on, or a new --checkpoint_dir to begin (--init=CHECKPOINT takes its weights)"
        )
    arrays, shapes, moving = (
        file.arrays,
        checkpoint_variables.shapes(loop.state),
        checkpoint_variables.moving(loop.state),
    )
    same = sorted(arrays) == sorted([*shapes, *moving])
    if not same or any(arrays[name].shape != shape for name, shape in shapes.items()):
        raise UserError(f"{path}: its variables are not those of this model; written by another version?")
    return arrays | checkpoint_variables.fitted(loop.state, arrays, moving, path), int(file.meta["step"])


def _assign(state: State, arrays: dict[str, np.ndarray]) -> None:
    replicas = state.replicas
    slots: SlotValues = [{} for _ in state.model.trainable_variables]
    for name, entry in checkpoint_variables.entries(state).items():
        if isinstance(entry, checkpoint_variables.Slot):
            slots[entry.weight][entry.name] = arrays[name]
        else:
            for component in replicas.local_results(entry):
                component.assign(arrays[name])
    state.update.write_slots(slots)
    _assign_per_replica(state, checkpoint_variables.moving(state), arrays)


def _assign_per_replica(
    network: Network, variables: dict[str, tf.Variable], arrays: dict[str, np.ndarray]
) -> None:
    replicas = network.replicas
    for name, variable in variables.items():
        local = replicas.local_results(variable)
        first = replicas.process_index * len(local)
        for component, value in zip(local, arrays[name][first : first + len(local)], strict=True):
            component.assign(value)


def _digest(loop: Loop) -> str:
    neutral = {name: getattr(type(loop.config)(), name) for name in FREE_FIELDS}
    # Only `wire` changes the gradient sums by more than rounding.
    neutral["communication"] = Communication(wire=loop.config.communication.wire)
    return digest(dataclasses.replace(loop.config, **neutral))


def _difference(saved: dict, loop: Loop) -> str:
    """Returns the first settings that differ between a checkpoint's configuration and the loop's."""
    here = json.loads(json.dumps(to_dict(loop.config)))
    default = json.loads(json.dumps(to_dict(type(loop.config)())))
    both = [_flat(default) | _flat(values) for values in (saved, here)]
    free = (*FREE_FIELDS, "communication")
    for values in both:
        for name in [
            name for name in values if name.partition(".")[0] in free and name != "communication.wire"
        ]:
            del values[name]
    there, here = both
    names = [n for n in sorted({*there, *here}) if there.get(n) != here.get(n)]
    shown = ", ".join(f"config.{n}: {there.get(n)} there, {here.get(n)} here" for n in names[:_SHOWN])
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return shown + more or "another version"


def _flat(values: dict, prefix: str = "") -> dict:
    """Returns {"schedule.warmup_epochs": value} for {"schedule": {"warmup_epochs": value}}."""
    found = {}
    for name, value in values.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found
