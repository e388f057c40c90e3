"""Reads and writes a checkpoint's file: named arrays, their description, and the network's assets. TensorFlow-free.

A checkpoint is one .npz file. It is written under another name, flushed and renamed, so a file with the final name is
always complete. Besides the arrays, it holds everything needed to use the network without its data: the benchmark, the
configuration, the labels' names and the task's assets, such as a vocabulary.
"""

import contextlib
import dataclasses
import errno
import itertools
import json
import os
import pathlib
import re
import shutil
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from common.data import npz
from common.errors import UserError
from common.files import left_behind, whole
from common.untrusted import NPZ_DAMAGE, is_plain_name, parsed

BEST = "best.npz"  # Points to the checkpoint with the best quality (timetotrain/run/history.py).
FORMAT = 2  # Format 1 numbered the variables; its files do not state their format.
# ASSETS, WEIGHTS and SLOTS are prefixes of names in the file; moments and carried state have other prefixes.
ABOUT = "timetotrain.json"  # An export's description of itself, stored with its assets.
ASSETS, WEIGHTS, SLOTS = "assets/", "weights/", "slots/"
PENDING = "pending/"  # Outputs of evaluations whose results were not known yet.
# Errors of the system that a damaged file can cause: a place outside of it, a bad block. Any other, such as a stale
# handle of a file server or a missing permission, says nothing about the file.
_DAMAGE = (None, errno.EINVAL, errno.EIO)
_META = {"step": int, "digest": str, "config": dict, "format": int, "benchmark": str, "labels": list}


class DamagedError(UserError):
    """A file is not a complete checkpoint: cut short, or its bytes do not have their digest."""


@dataclasses.dataclass(frozen=True)
class File:
    """A checkpoint as read.

    Attributes:
      path: path of the file.
      arrays: arrays by their names in the file; of `read(in_parts=True)` they stay there.
      meta: "step", "digest", "config" (plain values), "format", "benchmark" and "labels"; since
        November 2026 also "data", the sizes of the data's files, and "pending", blocks.
      assets: {file name: content}: what the trained network needs besides its weights.
    """

    path: pathlib.Path
    arrays: Mapping[str, np.ndarray]
    meta: dict[str, Any]
    assets: dict[str, bytes]


def read(path: pathlib.Path, training: bool = True, in_parts: bool = False) -> File:
    """Reads a checkpoint, which may be untrusted: it checks the arrays' sizes before it unpacks them.

    Raises UserError if the file is damaged, no checkpoint or of another format, or an asset has another name.

    Args:
      training: False leaves out the optimizer's slots, and accepts only assets with plain file names.
      in_parts: compare the arrays' checksums, but leave the arrays in the file.
    """
    with _opened(path) as (archive, meta):
        names = [name for name in archive.files if name != "meta"]
        assets = [name for name in names if name.startswith(ASSETS)]
        for name in [] if training else assets:
            check_asset(path, name.removeprefix(ASSETS))
        left_out = (ASSETS,) if training else (ASSETS, SLOTS, PENDING)
        names_read = [name for name in names if not name.startswith(left_out)]
        if in_parts:
            for name in names_read:
                archive.check(name)
        arrays = npz.Arrays(path, names_read) if in_parts else {name: archive[name] for name in names_read}
        if training:
            _check_step(path, meta["step"], arrays)
        return File(
            path,
            arrays,
            meta,
            {name.removeprefix(ASSETS): archive[name].tobytes() for name in assets},
        )


def config_of(path: pathlib.Path) -> Mapping[str, Any]:
    """Returns the configuration in a checkpoint, as plain values; raises like `read`."""
    with _opened(path) as (_, meta):
        return meta["config"]


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[tuple[npz.Archive, dict[str, Any]]]:
    try:
        with npz.opened(path) as archive:
            yield archive, _checked_meta(path, parsed(archive["meta"].tobytes()))
    except NPZ_DAMAGE as error:
        if isinstance(error, OSError) and error.errno not in _DAMAGE:
            problem = f"cannot read: {error.strerror}; is the file there and readable?"
            raise UserError(f"{path}: {problem}") from error
        fix = "delete it to resume from the one before"
        raise DamagedError(f"{path}: not a whole checkpoint ({error}); {fix}") from error


def _checked_meta(path: pathlib.Path, meta: Any) -> dict[str, Any]:
    if not isinstance(meta, dict):
        raise ValueError("meta is not an object")
    format_read = meta.get("format", 1)
    if isinstance(format_read, int) and format_read != FORMAT:
        raise UserError(
            f"{path}: a checkpoint of format {format_read}, this version reads {FORMAT}; "
            "use the version that wrote it, or train again"
        )
    for name, kind in _META.items():
        if not isinstance(meta[name], kind) or isinstance(meta[name], bool):
            raise ValueError(f"meta.{name} is of another kind")
    if not 0 <= meta["step"] < 2**63 or not all(isinstance(label, str) for label in meta["labels"]):
        raise ValueError("meta has a step or a label that cannot be")
    return meta


def _check_step(path: pathlib.Path, step: int, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises UserError if the places for the step contradict one another: a renumbered file would hide a resumption."""
    others = {"its arrays": int(arrays["step"])} if "step" in arrays and arrays["step"].shape == () else {}
    if re.fullmatch(r"checkpoint_\d{8,}", path.stem):
        others["its name"] = step_of(path)
    for place, other in others.items():
        if other != step:
            raise UserError(
                f"{path}: meta says step {step}, {place} step {other}; use the file as it was written"
            )


def check_asset(path: str | os.PathLike, name: str) -> None:
    """Refuses an asset of the model `path` whose name is not a plain file name.

    Raises UserError if the name is not plain.
    """
    if not is_plain_name(name) or name == ABOUT:
        problem = f"its asset {name[:80]!r} is not a plain file name"
        raise UserError(f"{path}: {problem}; the file is not as this project writes it")


def is_checkpoint(path: pathlib.Path) -> bool:
    """Whether a file is a checkpoint of this project, not another .npz file; a damaged file counts as one."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "meta.npy" in archive.namelist()
    except FileNotFoundError:
        return False
    except NPZ_DAMAGE:
        return True


def checkpoints(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns a folder's checkpoints, the newest last."""
    return sorted(_with_suffix(folder, "npz"))


def step_of(path: pathlib.Path) -> int:
    """Returns the step in a checkpoint's name, checkpoint_00000120.npz."""
    return int(path.stem.rpartition("_")[2])


def _with_suffix(folder: pathlib.Path, suffix: str) -> list[pathlib.Path]:
    pattern = re.compile(rf"checkpoint_\d{{8,}}\.{suffix}")
    return [p for p in folder.glob(f"checkpoint_*.{suffix}") if pattern.fullmatch(p.name)]


def write(
    path: pathlib.Path,
    arrays: Iterable[tuple[str, np.ndarray]],
    meta: Mapping[str, Any],
    assets: Mapping[str, bytes],
    keep: int,
    protect: Collection[int] = (),
) -> None:
    """Writes a checkpoint; drops all older ones except the last `keep` and the steps in `protect`.

    It takes one of `arrays`, pairs of a name and an array, after another.

    Raises OSError if the folder cannot be written, or the disk is full.
    """
    texts = {ASSETS + name: data for name, data in assets.items()}
    texts["meta"] = json.dumps({**meta, "format": FORMAT}).encode()
    others = ((name, np.frombuffer(data, np.uint8)) for name, data in texts.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_partial(path.parent)
    with whole(path) as partial, open(partial, "wb") as file:
        npz.write(file, itertools.chain(arrays, others))
        file.flush()
        os.fsync(file.fileno())
    # The new name must be on the disk before an older checkpoint goes.
    _flush_folder(path.parent)
    for old in checkpoints(path.parent)[:-keep]:
        if step_of(old) not in protect:
            old.unlink(missing_ok=True)


def _remove_partial(folder: pathlib.Path) -> None:
    """Removes the files of killed saves; none is in use, because only process 0 writes."""
    for path in left_behind(folder, "checkpoint_*.npz"):
        shutil.rmtree(path, ignore_errors=True)
    for path in _with_suffix(folder, "partial"):  # The names that earlier versions used.
        with contextlib.suppress(OSError):
            path.unlink()


def _flush_folder(folder: pathlib.Path) -> None:
    # Some network file systems cannot flush a folder; the checkpoint is there anyway.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def merged(arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Returns the saved moment `name`, "moments/LAYER/mean" or ".../variance", [R, G, C], merged over R and G: [C]."""
    stem = name.rpartition("/")[0]
    means, variances = (arrays[f"{stem}/{moment}"].astype(np.float64) for moment in ("mean", "variance"))
    mean = means.mean((0, 1))
    moment = mean if name.endswith("/mean") else (variances + means**2).mean((0, 1)) - mean**2
    return moment.astype(arrays[name].dtype)
