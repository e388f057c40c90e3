"""Collects what must be equal in all processes of a run, as facts that `Agreement.same` compares. TensorFlow-free."""

import hashlib
import json
import os
import pathlib
import platform
from collections.abc import Mapping
from typing import Any

from common import machine_tools
from common.errors import UserError
from common.files import ROOT

# Environment variables that change what a step computes.
_STEERING = ("XLA_FLAGS", "TF_DETERMINISTIC_OPS", "TF_ENABLE_ONEDNN_OPTS", "NVIDIA_TF32_OVERRIDE")
_PACKAGES = ("tensorflow", "tf-keras", "jax", "numpy", "horovod")
_BLOCK = 1 << 16


def of_config(values: Mapping[str, Any], path: str = "config") -> dict[str, str]:
    """Returns a configuration's fields, {path: value}, from `common.config.digest.to_dict`."""
    facts: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            facts |= of_config(value, f"{path}.{name}")
        else:
            facts[f"{path}.{name}"] = str(value)
    return facts


def of_machine() -> dict[str, str]:
    """Returns the code, versions and environment variables that must be equal."""
    versions = {"Python": platform.python_version(), **machine_tools.versions(*_PACKAGES)}
    steering = {f"${name}": os.environ[name] for name in _STEERING if name in os.environ}
    return {**versions, **steering, "the code": code()}


def code() -> str:
    """Returns a digest of this project's Python files."""
    digest = hashlib.sha256()
    folders = [ROOT / "timetotrain", ROOT / "common", *ROOT.glob("*/task.py")]
    for folder in sorted({path.parent if path.suffix else path for path in folders}):
        for path in sorted(folder.rglob("*.py")):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def of_sizes(files: Mapping[str, int]) -> str:
    """Returns the number of `Task.data_files`, their sum and a digest; it opens no file."""
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:12]
    return f"{len(files):,} files of {sum(files.values()) / 1e9:,.3f} GB ({digest})"


def of_files(folder: str | os.PathLike, blocks: int) -> str:
    """Returns the number, bytes and a digest of the names and sizes of a folder's files; hidden ones do not count.

    Args:
      folder: the folder, or an object store's address.
      blocks: of each file, this many blocks of 64 KB, evenly spaced, count too.

    Raises UserError if the folder does not exist.
    """
    if "://" in str(folder):  # An object store, which every process reaches by the same name.
        return str(folder)
    root, digest, total, count = pathlib.Path(folder), hashlib.sha256(), 0, 0
    if not root.is_dir():
        raise UserError(f"--data_dir={folder}: there is no such folder; give the folder of the data")
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        name = path.relative_to(root)
        if any(part.startswith(".") for part in name.parts):
            continue
        size = path.stat().st_size
        count, total = count + 1, total + size
        digest.update(f"{name}\0{size}\0".encode())
        _sample(path, size, blocks, digest)
    return f"{count:,} files of {total / 1e9:,.3f} GB ({digest.hexdigest()[:12]})"


def _sample(path: pathlib.Path, size: int, blocks: int, digest: Any) -> None:
    """Adds evenly spaced blocks of a file to a digest; the whole of a small file."""
    with open(path, "rb") as file:
        if size <= blocks * _BLOCK:
            digest.update(file.read())
            return
        for i in range(blocks):
            file.seek((size - _BLOCK) * i // (blocks - 1))
            digest.update(file.read(_BLOCK))
