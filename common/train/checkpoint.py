"""Saves and restores checkpoints for any number of replicas: one array per variable, batch-norm moments per replica.

A resumed run is bitwise the same. The step also gives the input position, because inputs are functions of it.
checkpoint_file.py defines the file's contents; checkpoint_variables.py maps variables to arrays. Variables have their
layers' names (names.py).

Every process calls `Saver.save` and `restore_latest`, which exchange data between processes. Process 0 writes and all
processes read, so all hosts must share the folder.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from common.config.digest import digest, from_dict, to_dict
from common.config.rules import SCHEDULES
from common.config.run_length import Interval
from common.config.schema import Communication, RunConfig
from common.distributed import alike, fully_sharded
from common.distributed.agreement import Agreement
from common.distributed.replicas.base import Replicas
from common.errors import PeerLostError, UserError
from common.files import write_fix
from common.train import checkpoint_file, checkpoint_variables
from common.train.checkpoint_file import PENDING
from common.train.evaluation_pool import Evaluation
from common.train.programs import Programs
from common.train.state import Network, State

KEEP = 2
_SHOWN = 3  # Maximum number of settings in an error.
_NUMBERS = "biufV"  # Kinds of numpy's dtypes; numpy reads bfloat16 as V.
# Fields that may differ between the run that saved and the run that resumes.
FREE_FIELDS = (
    "replicas", "num_replicas", "partitions", "system", "hardware", "source", "accumulation_steps",
    "checkpoint_blocks", "compile", "patience", "init", "shard_weights",
)  # fmt: skip


class Restored(NamedTuple):
    """`step`: of a restored checkpoint; `pending`: evaluations whose results were not known when it was saved."""

    step: int
    pending: Sequence[Evaluation]


class Saver:
    """Saves a run's checkpoints in a folder. Training waits for a copy of the state; a thread writes it.

    Training waits until a state that is too large for a copy is written: the file takes one variable after another.
    """

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

    def save(self, programs: Programs, pending: Sequence[Evaluation] = ()) -> pathlib.Path:
        """Begins to write `folder`/checkpoint_<step>.npz, after the checkpoint before is written.

        Args:
          programs: the run's; every process calls this.
          pending: evaluations whose results are not known yet, for process 0.

        Raises UserError if the checkpoint before could not be written.
        """
        state, replicas = programs.state, programs.state.replicas
        self.finish(replicas)
        step = int(state.step)
        path = self._folder / f"checkpoint_{step:08d}.npz"
        arrays, whole = checkpoint_variables.values(state), not programs.config.state_bytes
        if whole or not replicas.main:
            # Training goes on while the thread writes, and `numpy()` can share memory with a variable.
            copies = [(name, np.array(value)) for name, value in arrays if whole and replicas.main]
            arrays = iter(copies)
        if not replicas.main:
            return path
        # A resumed run repeats the evaluation of the checkpoint's own block, but of no earlier block.
        earlier = [e for e in pending if e.interval.end_step < step]
        meta = {"step": step, "digest": _digest(programs.config), "config": to_dict(programs.config)}
        meta |= {"benchmark": programs.config.benchmark, "labels": list(programs.task.labels())}
        if self._data is None:
            self._data = programs.task.data_files()
        meta |= {"data": self._data, "pending": [dataclasses.asdict(e.interval) for e in earlier]}
        outputs = [(f"{PENDING}{i}/{n}", np.array(x)) for i, e in enumerate(earlier) for n, x in _outputs(e)]
        everything = itertools.chain(arrays, outputs)
        arguments = path, everything, meta, programs.task.assets(), self._keep, self._protect(step)
        self._writing = _in_thread(checkpoint_file.write, *arguments)
        if not whole:
            concurrent.futures.wait([self._writing])
            # The other processes exchange to the end, if the disk was full.
            collections.deque(arrays, maxlen=0)
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
        if replicas.all_reduce_max(int(error is not None)):
            raise (self._unwritten(error) if error else PeerLostError()) from error

    def check(self) -> None:
        """Raises UserError if the checkpoint could not be written, so that a run does not train on to the next."""
        if self._writing and self._writing.done() and (error := self.wait()):
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> UserError:
        reason = f"{error.strerror}; {write_fix(error)}"
        return UserError(f"--checkpoint_dir={self._folder}: cannot write a checkpoint: {reason}")


def save(
    programs: Programs,
    folder: str | os.PathLike,
    keep: int = KEEP,
    protect: Collection[int] = (),
    pending: Sequence[Evaluation] = (),
) -> pathlib.Path:
    """Writes `folder`/checkpoint_<step>.npz; drops all checkpoints but the last `keep` and the steps in `protect`.

    Raises UserError if the folder cannot be written, or the disk is full.
    """
    saver = Saver(folder, keep, lambda step: protect)
    path = saver.save(programs, pending)
    saver.finish(programs.state.replicas)
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
    """Returns the pending evaluations among a file's arrays."""
    evaluations = []
    for i, values in enumerate(file.meta.get("pending", [])):
        interval, outputs = Interval(**values), {"sums": {}, "arrays": {}}
        for kind, arrays in outputs.items():
            prefix = f"{PENDING}{i}/{kind}/"
            names = [name for name in file.arrays if name.startswith(prefix)]
            arrays.update((name.removeprefix(prefix), file.arrays[name]) for name in names)
        evaluations.append(Evaluation(interval, **outputs))
    return evaluations


def restore_latest(
    programs: Programs, folder: str | os.PathLike, say: Callable[[str], None] = lambda line: None
) -> Restored | None:
    """Restores the newest checkpoint of `folder` that is complete into the programs' state.

    A damaged one is set aside under another name if there is one before it, and `say` gets a line. Returns None if
    there is no checkpoint. Raises UserError if every file is damaged, or one belongs to another
    configuration, to other data, or differs from what the other processes read.
    """
    replicas, folder = programs.state.replicas, pathlib.Path(folder)
    paths = checkpoint_file.checkpoints(folder)
    while True:
        error, loaded, step = None, None, -1
        try:
            if paths:
                loaded = _load(programs, paths[-1])
                step = int(loaded.meta["step"])
        except UserError as caught:
            error = caught
        # Exchange before any process raises, so that no process waits for one that has raised.
        damaged = isinstance(error, checkpoint_file.DamagedError)
        worst, equal = (
            replicas.all_reduce_max(1 if damaged else 2 * bool(error)),
            Agreement(replicas).equal([step]),
        )
        if worst == 1 and replicas.all_reduce_max(len(paths)) > 1:
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
        if worst or not equal:
            raise UserError(
                f"--checkpoint_dir={folder}: process {replicas.process_index} found step {step}, another one did not; "
                "use a folder that all hosts share"
            )
        break
    if loaded is None:
        return None
    pending = _pending(loaded)
    _assign(programs.state, loaded.arrays)
    return Restored(step, pending)


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
        if array is None or array.shape != fully_sharded.shape_of(weight) or array.dtype.kind not in _NUMBERS:
            problem = "its variables are not those of this network"
            raise UserError(f"{file.path}: {problem}; give the run's --config flags")
    moments = checkpoint_variables.moments(network)
    fitted = checkpoint_variables.fitted(network, arrays, moments, file.path)
    for name, weight in weights.items():
        fully_sharded.write(network.replicas, weight, arrays[name])
    _assign_per_replica(network, moments, fitted)


def _load(programs: Programs, path: pathlib.Path) -> checkpoint_file.File:
    """Returns a file that fits the run; fits per-replica arrays to the run's replicas."""
    file = checkpoint_file.read(path, in_parts=bool(programs.config.state_bytes))
    same = file.meta["digest"] == _digest(programs.config) or _is_of_earlier_version(file, programs.config)
    if not same:
        raise UserError(
            f"{path}: written by a run with other settings ({_difference(file.meta['config'], programs)}); give "
            "the same settings to go on, or a new --checkpoint_dir to begin (--init=CHECKPOINT takes its weights)"
        )
    _check_data(programs, file)
    arrays, names = file.arrays, [name for name in file.arrays if not name.startswith(PENDING)]
    shapes, moving = checkpoint_variables.shapes(programs.state), checkpoint_variables.moving(programs.state)
    same = sorted(names) == sorted([*shapes, *moving])
    if not same or any(arrays[name].shape != shape for name, shape in shapes.items()):
        raise UserError(f"{path}: its variables are not those of this model; written by another version?")
    fitted = checkpoint_variables.fitted(programs.state, arrays, moving, path)
    return dataclasses.replace(file, arrays=collections.ChainMap(fitted, arrays))


def _check_data(programs: Programs, file: checkpoint_file.File) -> None:
    """Raises a UserError if the files of the data differ from the files of the run that saved.

    A new file counts if its name differs from another's in digits alone, as one more shard's does.
    """
    saved, current = file.meta.get("data") or {}, programs.task.data_files()
    if not saved or not current:
        return
    forms = {re.sub(r"\d+", "0", name) for name in saved}
    changed = (n for n in {*saved, *current} if saved.get(n) != current.get(n))
    names = sorted(n for n in changed if n in saved or re.sub(r"\d+", "0", n) in forms)
    if not names:
        return
    unit = "files" if names[0].endswith("/") else "bytes"
    sizes = (f"{x[names[0]]:,} {unit}" if names[0] in x else "absent" for x in (saved, current))
    raise UserError(
        f"{file.path}: its run trained on other data than --data_dir={programs.task.data_dir}: {names[0]} was "
        f"{next(sizes)}, is {next(sizes)} ({len(names)} of {len({*saved, *current})} files differ); give the data of "
        "that run, or a new --checkpoint_dir to begin (--init=CHECKPOINT takes its weights)"
    )


def _assign(state: State, arrays: Mapping[str, np.ndarray]) -> None:
    replicas = state.replicas
    slots: dict[tuple[int, str], str] = {}
    for name, entry in checkpoint_variables.entries(state).items():
        if isinstance(entry, checkpoint_variables.Slot):
            slots[entry.weight, entry.name] = name
        else:
            fully_sharded.write(replicas, entry, arrays[name])
    state.update.write_slots(lambda weight, name: arrays[slots[weight, name]])
    _assign_per_replica(state, checkpoint_variables.moving(state), arrays)


def _assign_per_replica(
    network: Network, variables: dict[str, tf.Variable], arrays: Mapping[str, np.ndarray]
) -> None:
    replicas = network.replicas
    for name, variable in variables.items():
        local = replicas.local_results(variable)
        first = replicas.process_index * len(local)
        for component, value in zip(local, arrays[name][first : first + len(local)], strict=True):
            component.assign(value)


def _is_of_earlier_version(file: checkpoint_file.File, config: RunConfig) -> bool:
    """Whether a checkpoint's settings are those of `config` but for fields that have gone since."""
    if config.plugin_functions():  # Their code is in the digest alone.
        return False
    try:
        same = _digest(from_dict(type(config), file.meta["config"])) == _digest(config)
    except UserError:
        return False
    if same:
        _check_schedule(file)
    return same


def _check_schedule(file: checkpoint_file.File) -> None:
    """Raises UserError for a schedule's field that its kind does not read now, but did in earlier versions."""
    saved = file.meta["config"].get("schedule", {})
    kind, left_out = saved.get("kind"), SCHEDULES.left_out(saved)
    for field in ("initial_learning_rate", "warmup_curve", "decay_over_whole_run"):
        if field in left_out and (field != "decay_over_whole_run" or kind == "cosine"):
            raise UserError(
                f"{file.path}: config.schedule.{field}={json.dumps(left_out[field])}: earlier versions read this "
                f"field; {kind} does not now, so use the version that wrote this file"
            )


def _digest(config: RunConfig) -> str:
    usual = type(config)()
    # A benchmark may have some of them as constants.
    neutral = {name: getattr(usual, name) for name in FREE_FIELDS if name in to_dict(usual)}
    # Only `wire` changes the gradient sums by more than rounding.
    neutral["communication"] = Communication(wire=config.communication.wire)
    return digest(dataclasses.replace(config, **neutral))


def _difference(saved: dict, programs: Programs) -> str:
    """Returns the first settings that differ between a checkpoint's configuration and this run's."""
    config, groups = programs.config, ("optimizer", "schedule")
    new, default = (json.loads(json.dumps(to_dict(each))) for each in (config, type(config)()))
    # Earlier versions saved more fields, and lack later ones.
    with contextlib.suppress(UserError):
        saved = json.loads(json.dumps(to_dict(from_dict(type(config), saved))))
    whole = {group: {n: saved[group].get(n, value) for n, value in new[group].items()} for group in groups}
    default |= {group: {} for group in groups}
    old, new = (alike.of_config(default) | alike.of_config(values) for values in (saved | whole, new))
    free = (*FREE_FIELDS, "communication")
    bound = (n for n in {*old, *new} if n.split(".")[1] not in free or n == "config.communication.wire")
    names = sorted(n for n in bound if old.get(n) != new.get(n))
    listed = ", ".join(f"{n}: {old.get(n)} there, {new.get(n)} here" for n in names[:_SHOWN])
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return listed + more or "another version"
