"""Checkpoints that any number of replicas restores: one array per variable, per-replica moments beside them.

A checkpoint is one .npz file, written under another name, flushed and renamed, so that a file with the final name is
whole. Batch-norm moments are kept per replica (a resumed run is bitwise the same) and merged by the law of total
variance when the number of replicas or groups changes. The input position is the step: inputs are functions of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import zipfile

import numpy as np
import tensorflow as tf

from common import norm
from common.config import digest, to_dict
from common.errors import UserError
from common.loop import Loop

KEEP = 2
# Fields that may differ between the run that saved and the one that resumes.
FREE_FIELDS = (
    "replicas",
    "num_replicas",
    "system",
    "hardware",
    "source",
    "accumulation_steps",
    "checkpoint_blocks",
    "compile",
)


def save(loop: Loop, folder: str | os.PathLike) -> pathlib.Path:
    """Writes `folder`/checkpoint_<step>.npz and drops all but the last two.

    Raises:
      UserError: the folder cannot be written, or the disk is full.
    """
    folder, state = pathlib.Path(folder), loop.state
    step = int(state.step)
    path = folder / f"checkpoint_{step:08d}.npz"
    temporary = path.with_suffix(".partial")
    arrays = {name: v.numpy() for name, v in _shared(loop).items()}
    arrays |= {
        name: np.stack([c.numpy() for c in state.replicas.local_results(v)])
        for name, v in _moving(loop).items()
    }
    meta = {"step": step, "digest": _digest(loop), "config": to_dict(loop.config)}
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise UserError(
            f"--checkpoint_dir={folder}: cannot write a checkpoint: {error.strerror}; free space there"
        ) from error
    for old in _checkpoints(folder)[:-KEEP]:
        old.unlink(missing_ok=True)
    return path


def restore_latest(loop: Loop, folder: str | os.PathLike) -> int | None:
    """Restores the newest checkpoint of `folder` into the loop's state.

    Returns:
      Its step, or None where there is no checkpoint.

    Raises:
      UserError: the file is damaged or belongs to another configuration.
    """
    found = _checkpoints(pathlib.Path(folder))
    if not found:
        return None
    path = found[-1]
    arrays, meta = _read(path)
    if meta["digest"] != _digest(loop):
        raise UserError(
            f"{path}: written by another configuration ({_difference(meta['config'], loop)}); use its own"
        )
    shared, moving = _shared(loop), _moving(loop)
    same = sorted(arrays) == sorted([*shared, *moving])
    if not same or any(arrays[name].shape != v.shape for name, v in shared.items()):
        raise UserError(f"{path}: its variables are not those of this model; written by another version?")
    components = loop.state.replicas.local_results
    for name, variable in shared.items():
        for component in components(variable):
            component.assign(arrays[name])
    for name, variable in moving.items():
        mine = components(variable)
        for component, value in zip(mine, _fit(arrays, name, len(mine), variable.shape)):
            component.assign(value)
    return int(meta["step"])


def _read(path: pathlib.Path) -> tuple[dict[str, np.ndarray], dict]:
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                raise ValueError("a checksum is wrong")
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        meta = json.loads(arrays.pop("meta").tobytes())
        return arrays, {name: meta[name] for name in ("step", "digest", "config")}
    except (
        OSError,
        EOFError,
        ValueError,
        KeyError,
        TypeError,
        NotImplementedError,
        RuntimeError,
        zipfile.BadZipFile,
    ) as error:
        raise UserError(
            f"{path}: not a whole checkpoint ({error}); delete it to resume from the one before"
        ) from error


def _checkpoints(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(
        p for p in folder.glob("checkpoint_*.npz") if re.fullmatch(r"checkpoint_\d{8,}\.npz", p.name)
    )


def _moving(loop: Loop) -> dict[str, tf.Variable]:
    """Per-replica variables by name: the moving moments."""
    layers = enumerate(norm.span_layers(loop.state.model))
    pairs = [(f"moments/{i:03d}", layer) for i, layer in layers]
    return {f"{n}/{m}": getattr(layer, f"moving_{m}") for n, layer in pairs for m in ("mean", "variance")}


def _shared(loop: Loop) -> dict[str, tf.Variable]:
    """All other variables: equal on every replica."""
    mine = {id(v) for v in _moving(loop).values()}
    others = (v for v in loop.state.variables() if id(v) not in mine)
    # Not the layer's name, which counts the layers that this process has made.
    return {f"{i:04d}.{v.name.split(':')[0].rpartition('/')[2]}": v for i, v in enumerate(others)}


def _fit(arrays: dict[str, np.ndarray], name: str, replicas: int, shape: tf.TensorShape) -> np.ndarray:
    """The saved moments [R, G, C] as [replicas, *shape]: as they are, or merged over R and G."""
    saved = arrays[name]
    if saved.shape == (replicas, *shape):
        return saved
    stem = name.rpartition("/")[0]
    means, variances = (
        arrays[f"{stem}/mean"].astype(np.float64),
        arrays[f"{stem}/variance"].astype(np.float64),
    )
    mean = means.mean((0, 1))
    merged = mean if name.endswith("/mean") else (variances + means**2).mean((0, 1)) - mean**2
    return np.broadcast_to(merged.astype(saved.dtype), (replicas, *shape))


def _digest(loop: Loop) -> str:
    neutral = {name: getattr(type(loop.config)(), name) for name in FREE_FIELDS}
    return digest(dataclasses.replace(loop.config, **neutral))


def _difference(saved: dict, loop: Loop) -> str:
    here = json.loads(json.dumps(to_dict(loop.config)))
    names = [n for n in sorted({*saved, *here}) if n not in FREE_FIELDS and saved.get(n) != here.get(n)]
    return (
        ", ".join(f"config.{n}: {saved.get(n)} there, {here.get(n)} here" for n in names[:3])
        or "another version"
    )
