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
_STEERING = (
    *("XLA_FLAGS", "TF_XLA_FLAGS", "TF_DETERMINISTIC_OPS", "TF_ENABLE_ONEDNN_OPTS", "TF_CUDNN_USE_AUTOTUNE"),
    *("NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", "ONEDNN_DEFAULT_FPMATH_MODE"),
    *("JAX_DEFAULT_MATMUL_PRECISION", "LIBTPU_INIT_ARGS"),
)
_PACKAGES = ("tensorflow", "tf-keras", "jax", "jaxlib", "numpy", "horovod")
_BLOCK = 1 << 16
_MOST_READ = 1 << 30  # Bytes, which a disk reads in seconds.


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
      blocks: of each file, this many blocks of 64 KB, evenly spaced, count too; of some files, where all would be more
        than `_MOST_READ` bytes.

    Raises UserError if there is no such folder, or no file in it.
    """
    if "://" in str(folder):  # An object store, which every process reaches by the same name.
        return str(folder)
    root, digest = pathlib.Path(folder), hashlib.sha256()
    names = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    visible = sorted(name for name in names if not any(part.startswith(".") for part in name.parts))
    sizes = {name: (root / name).stat().st_size for name in visible}
    if not sizes:
        raise UserError(
            f"--data_dir={folder}: there is no such folder, or no file in it; give the folder of the data"
        )
    every = 1 + sum(min(size, blocks * _BLOCK) for size in sizes.values()) // _MOST_READ
    for i, (name, size) in enumerate(sizes.items()):
        digest.update(f"{name}\0{size}\0".encode())
        if i % every == 0:
            _sample(root / name, size, blocks, digest)
    total = sum(sizes.values())
    return f"{len(sizes):,} files of {total / 1e9:,.3f} GB ({digest.hexdigest()[:12]})"


def _sample(path: pathlib.Path, size: int, blocks: int, digest: Any) -> None:
    """Adds evenly spaced blocks of a file to a digest; the whole of a small file."""
    with open(path, "rb") as file:
        if size <= blocks * _BLOCK:
            digest.update(file.read())
            return
        for i in range(blocks):
            file.seek((size - _BLOCK) * i // (blocks - 1))
            digest.update(file.read(_BLOCK))
