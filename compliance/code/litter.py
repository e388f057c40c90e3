"""Finds what has no place in submitted code: compiled files, archives, caches. Advice, one line for each kind.

mlcommons/training #880, notes of 2026-07-02: no binary files in a submission; published trees hold hundreds.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from compliance.findings import ADVICE, Finding, finding

_COMPILED = (".o", ".so", ".a", ".pyc", ".pyo", ".pyd", ".class", ".dll", ".exe", ".obj", ".cubin", ".hsaco")
_ARCHIVES = (
    ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".zip", ".7z", ".rar", ".whl", ".egg", ".jar", ".deb",
    ".rpm",
)  # fmt: skip
_CACHES = frozenset(
    (
        "__pycache__", ".ipynb_checkpoints", ".pytest_cache", ".mypy_cache", ".ruff_cache", "node_modules",
        "CMakeFiles",
    )
)  # fmt: skip
_WANTED = {
    "tree.compiled": "sources alone",
    "tree.archive": "files that can be read",
    "tree.cache": "no caches",
}
_SHOWN = 3
_MAX_FILES = 200_000  # files and folders, after which the walk stops


def of_code(code: Path) -> Iterator[Finding]:
    """Yields at most one finding of each kind about the folder `benchmarks/` of a submitter."""
    litter: dict[str, list[tuple[str, int]]] = {rule: [] for rule in _WANTED}
    count = 0
    for directory, names, files in os.walk(code):
        if count >= _MAX_FILES:
            break
        folders = []
        for name in sorted(names):
            if name in _CACHES or name.endswith(".egg-info"):
                litter["tree.cache"].append((os.path.join(directory, name), 0))
            elif name != ".git":
                folders.append(name)
        names[:] = folders
        looked = sorted(files)[: _MAX_FILES - count]
        count += len(looked) + 1
        for name in looked:
            if rule := _rule(directory, name):
                path = os.path.join(directory, name)
                litter[rule].append((path, os.lstat(path).st_size))
    for rule, paths in litter.items():
        if paths:
            shown = ", ".join(os.path.relpath(path, code) for path, _ in paths[:_SHOWN])
            more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
            size = f", {sum(size for _, size in paths) / 1e6:.1f} MB" if rule != "tree.cache" else ""
            yield finding(rule, ADVICE, code, _WANTED[rule], f"{shown}{more}{size}"[:300])


def _rule(directory: str, name: str) -> str:
    end = os.path.splitext(name.lower())[1]
    if end in _COMPILED:
        return "tree.compiled"
    if end in _ARCHIVES:
        return "tree.archive"
    if end == "" and _is_program(os.path.join(directory, name)):
        return "tree.compiled"
    return ""


def _is_program(path: str) -> bool:
    """Whether a file without a suffix is a program of a compiler (ELF)."""
    if os.path.islink(path) or not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False
