"""Saves and restores checkpoints for any number of replicas: one array per variable, batch-norm moments per replica.

A resumed run is bitwise the same. The step also gives the input position, because inputs are functions of it.
checkpoint_file.py defines the file's contents; checkpoint_variables.py maps variables to arrays. Variables have their
layers' names (names.py).

Every process calls `Saver.save` and `restore_latest`, which exchange data between processes. Process 0 writes and all
processes read, so all hosts must share the folder.
"""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from common.config.clock import Block
from common.config.digest import digest, to_dict
from common.config.schema import Communication
from common.distributed.replicas.base import Replicas
from common.distributed.weight_update import SlotValues
from common.errors import PeerLostError, UserError
from common.files import write_fix
from common.train import checkpoint_file, checkpoint_variables
from common.train.checkpoint_file import PENDING
from common.train.evaluation_pool import Evaluation
from common.train.loop import Loop
from common.train.state import Network, State

KEEP = 2
_SHOWN = 3  # Maximum number of settings in an error.
_NUMBERS = "biufV"  # Kinds of numpy's dtypes; numpy reads bfloat16 as V.
# Fields that may differ between the run that saved and the run that resumes.
FREE_FIELDS = (
    "replicas", "num_replicas", "partitions", "system", "hardware", "source", "accumulation_steps",
    "checkpoint_blocks", "compile", "patience", "init",
)  # fmt: skip


class Saver:
    """Saves a run's checkpoints in a folder. Training waits for a copy of the state; a thread writes it."""

    def __init__(
        self,
        folder: str | os.PathLike,
        keep: int = KEEP,
        protect: Callable[[int], Collection[int]] = lambda step: (),
    ):
        """`keep`: how many of the newest checkpoints stay; `protect(step)`: steps that stay when `step` is saved."""
        self._folder, self._keep, self._protect = pathlib.Path(folder), keep, protect
        self._writing: concurrent.futures.Future | None = None
        self._data: Mapping[str, int] | None = None  # Of `Task.data_files`, which may take seconds.

    def save(self, loop: Loop, pending: Sequence[Evaluation] = ()) -> pathlib.Path:
        """Begins to write `folder`/checkpoint_<step>.npz, after the checkpoint before is written.

        Args:
          loop: the run's; every process calls this.
          pending: evaluations whose results are not known yet, for process 0.

        Raises UserError: the checkpoint before could not be written.
        """
        state, replicas = loop.state, loop.state.replicas
        self.finish(replicas)
        step = int(state.step)
        path = self._folder / f"checkpoint_{step:08d}.npz"
        arrays = checkpoint_variables.values(state) | {
            name: replicas.all_values(v) for name, v in checkpoint_variables.moving(state).items()
        }
        if not replicas.main:
            return path
        # A resumed run repeats the evaluation of the checkpoint's own block, but of no earlier block.
        earlier = [e for e in pending if e.block.end_step < step]
        meta = {"step": step, "digest": _digest(loop), "config": to_dict(loop.config)}
        meta |= {"benchmark": loop.config.benchmark, "labels": list(loop.task.labels())}
        if self._data is None:
            self._data = loop.task.data_files()
        meta |= {"data": self._data, "pending": [dataclasses.asdict(e.block) for e in earlier]}
        # Training goes on while the thread writes, and `numpy()` can share memory with a variable.
        copies = {name: np.array(value) for name, value in arrays.items()}
        copies |= {f"{PENDING}{i}/{n}": np.array(x) for i, e in enumerate(earlier) for n, x in _outputs(e)}
        arguments = path, copies, meta, loop.task.assets(), self._keep, self._protect(step)
        self._writing = _in_thread(checkpoint_file.write, *arguments)
        return path

    def wait(self) -> OSError | None:
        """Waits until this process has written its checkpoint; returns why it could not."""
        writing, self._writing = self._writing, None
        error = writing.exception() if writing else None
        if error and not isinstance(error, OSError):
            raise error
        return error

    def finish(self, replicas: Replicas) -> None:
        """Waits until the last checkpoint is written; every process calls it.

        Raises:
          UserError: the folder cannot be written, or the disk is full.
          PeerLostError: process 0 could not write, and says why.
        """
        error = self.wait()
        if replicas.agree(int(error is not None)):
            raise (self._unwritten(error) if error else PeerLostError()) from error

    def check(self) -> None:
        """Raises UserError if the checkpoint could not be written, so that a run does not train on to the next."""
        if self._writing and self._writing.done() and (error := self.wait()):
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> UserError:
        reason = f"{error.strerror}; {write_fix(error)}"
        return UserError(f"--checkpoint_dir={self._folder}: cannot write a checkpoint: {reason}")


def save(
    loop: Loop, folder: str | os.PathLike, keep: int = KEEP, protect: Collection[int] = ()
) -> pathlib.Path:
    """Writes `folder`/checkpoint_<step>.npz; drops all checkpoints but the last `keep` and the steps in `protect`.

    Raises UserError if the folder cannot be written, or the disk is full.
    """
    saver = Saver(folder, keep, lambda step: protect)
    path = saver.save(loop, getattr(loop, "pending", ()))
    saver.finish(loop.state.replicas)
    return path


def _in_thread(function: Callable, *arguments: Any) -> concurrent.futures.Future:
    """Calls a function in a thread that does not hold up the end of the process."""
    future: concurrent.futures.Future = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="checkpoint", daemon=True).start()
    return future


def _outputs(evaluation: Evaluation) -> Iterator[tuple[str, Any]]:
    """Yields the outputs of an evaluation by their names in a checkpoint."""
    for kind in ("sums", "arrays"):
        for name, value in getattr(evaluation, kind).items():
            yield f"{kind}/{name}", value


def _pending(file: checkpoint_file.File) -> list[Evaluation]:
    """Removes the pending evaluations from a file's arrays, and returns them."""
    evaluations = []
    for i, values in enumerate(file.meta.get("pending", [])):
        block, outputs = Block(**values), {"sums": {}, "arrays": {}}
        for kind, named in outputs.items():
            prefix = f"{PENDING}{i}/{kind}/"
            for name in [name for name in file.arrays if name.startswith(prefix)]:
                named[name.removeprefix(prefix)] = file.arrays.pop(name)
        evaluations.append(Evaluation(block, **outputs))
    return evaluations


def restore_latest(
    loop: Loop, folder: str | os.PathLike, say: Callable[[str], None] = lambda line: None
) -> int | None:
    """Restores the newest checkpoint of `folder` that is complete into the loop's state.

    A damaged one is set aside under another name if there is one before it, and `say` gets a line. Returns its step,
    or None if there is no checkpoint. Raises UserError if every file is damaged, or one belongs to another
    configuration, to other data, or differs from what the other processes read.
    """
    replicas, folder = loop.state.replicas, pathlib.Path(folder)
    paths = checkpoint_file.checkpoints(folder)
    while True:
        error, loaded, step = None, None, -1
        try:
            if paths:
                loaded = _load(loop, paths[-1])
                step = int(loaded.meta["step"])
        except UserError as caught:
            error = caught
        # Exchange before any process raises, so that no process waits for one that has raised.
        damaged = isinstance(error, checkpoint_file.DamagedError)
        failed, any_damaged = replicas.agree(int(error is not None)), replicas.agree(int(damaged))
        refused = replicas.agree(int(error is not None and not damaged))
        newest, oldest = replicas.agree(step), -replicas.agree(-step)
        if any_damaged and not refused and replicas.agree(len(paths)) > 1:
            if paths:
                path = paths.pop()
                if replicas.main:
                    aside = f"it is now {path.name}.damaged"
                    say(f"{path} is damaged: {aside}, and the run goes on from the one before")
                    with contextlib.suppress(OSError):
                        path.replace(path.with_name(f"{path.name}.damaged"))
            continue
        if error:
            raise error
        if failed or newest != oldest:
            raise UserError(
                f"--checkpoint_dir={folder}: process {replicas.process_index} found step {step}, another one did not; "
                "use a folder that all hosts share"
            )
        break
    if loaded is None:
        return None
    if pending := _pending(loaded):
        loop.begin_with(pending)
    _assign(loop.state, loaded.arrays)
    return step


def restore_weights(network: Network, path: pathlib.Path) -> None:
    """Restores only weights and moments, for an evaluation; the network must match, the batch size need not.

    It leaves out state that layers carry from step to step: that state belongs to a batch's rows, and an evaluation
    begins without it. Raises UserError if the file is damaged, or belongs to another network.
    """
    restore_weights_of(network, checkpoint_file.read(path, training=False))


def restore_weights_of(network: Network, file: checkpoint_file.File) -> None:
    """As `restore_weights`, for a checkpoint that is already read.

    Raises UserError if the checkpoint belongs to another network.
    """
    arrays, weights = file.arrays, checkpoint_variables.weights(network)
    for name, weight in weights.items():
        array = arrays.get(name)
        if array is None or array.shape != tuple(weight.shape) or array.dtype.kind not in _NUMBERS:
            said = "its variables are not those of this network"
            raise UserError(f"{file.path}: {said}; give the run's --config flags")
    moments = checkpoint_variables.moments(network)
    fitted = checkpoint_variables.fitted(network, arrays, moments, file.path)
    for name, weight in weights.items():
        for component in network.replicas.local_results(weight):
            component.assign(arrays[name])
    _assign_per_replica(network, moments, fitted)


def _load(loop: Loop, path: pathlib.Path) -> checkpoint_file.File:
    """Returns a file that fits the loop; fits per-replica arrays to the loop's replicas."""
    file = checkpoint_file.read(path)
    if file.meta["digest"] != _digest(loop):
        raise UserError(
            f"{path}: written by a run with other settings ({_difference(file.meta['config'], loop)}); give the same "
            "settings to go on, or a new --checkpoint_dir to begin (--init=CHECKPOINT takes its weights)"
        )
    _check_data(loop, file)
    arrays = {name: x for name, x in file.arrays.items() if not name.startswith(PENDING)}
    shapes, moving = checkpoint_variables.shapes(loop.state), checkpoint_variables.moving(loop.state)
    same = sorted(arrays) == sorted([*shapes, *moving])
    if not same or any(arrays[name].shape != shape for name, shape in shapes.items()):
        raise UserError(f"{path}: its variables are not those of this model; written by another version?")
    fitted = checkpoint_variables.fitted(loop.state, arrays, moving, path)
    return dataclasses.replace(file, arrays=file.arrays | fitted)


def _check_data(loop: Loop, file: checkpoint_file.File) -> None:
    """Raises a UserError if the files of the data differ from the files of the run that saved.

    A new file counts if its name differs from another's in digits alone, as one more shard's does.
    """
    there, here = file.meta.get("data") or {}, loop.task.data_files()
    if not there or not here:
        return
    forms = {re.sub(r"\d+", "0", name) for name in there}
    changed = (n for n in {*there, *here} if there.get(n) != here.get(n))
    names = sorted(n for n in changed if n in there or re.sub(r"\d+", "0", n) in forms)
    if not names:
        return
    unit = "files" if names[0].endswith("/") else "bytes"
    sizes = (f"{x[names[0]]:,} {unit}" if names[0] in x else "absent" for x in (there, here))
    raise UserError(
        f"{file.path}: its run trained on other data than --data_dir={loop.task.data_dir}: {names[0]} was "
        f"{next(sizes)}, is {next(sizes)} ({len(names)} of {len({*there, *here})} files differ); give the data of "
        "that run, or a new --checkpoint_dir to begin (--init=CHECKPOINT takes its weights)"
    )


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
    # Earlier versions saved the fields of every rule.
    own = {"optimizer": {name: saved["optimizer"].get(name) for name in here["optimizer"]}}
    there, here = (_flat(default | {"optimizer": {}}) | _flat(values) for values in (saved | own, here))
    free = (*FREE_FIELDS, "communication")
    bound = (n for n in {*there, *here} if n.partition(".")[0] not in free or n == "communication.wire")
    names = sorted(n for n in bound if there.get(n) != here.get(n))
    shown = ", ".join(f"config.{n}: {there.get(n)} there, {here.get(n)} here" for n in names[:_SHOWN])
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return shown + more or "another version"


def _flat(values: dict, prefix: str = "") -> dict:
    """Returns {"schedule.warmup_epochs": value} for {"schedule": {"warmup_epochs": value}}."""
    flat = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
