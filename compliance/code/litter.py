"""Finds what has no place in submitted code: compiled files, archives, caches. Advice, one line for each kind.

mlcommons/training #880, notes of 2026-07-02: no binary files in a submission; published trees hold hundreds.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from compliance.findings import ADVICE, Finding, finding
from compliance.hints import listed
from compliance.submission.tree_files import kind_of

_COMPILED = (".o", ".so", ".a", ".pyc", ".pyo", ".pyd", ".class", ".dll", ".exe", ".obj", ".cubin", ".hsaco")
_ARCHIVES = (
    ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".zip", ".7z", ".rar", ".whl", ".egg", ".jar", ".deb", ".rpm",
)  # fmt: skip
_CACHES = frozenset((
    "__pycache__", ".ipynb_checkpoints", ".pytest_cache", ".mypy_cache", ".ruff_cache", "node_modules", "CMakeFiles",
))  # fmt: skip
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
        caches = {name for name in names if name in _CACHES or name.endswith(".egg-info")}
        litter["tree.cache"] += [(os.path.join(directory, name), 0) for name in sorted(caches)]
        names[:] = sorted({*names} - caches - {".git"})
        listing = sorted(files)[: _MAX_FILES - count]
        count += len(listing) + 1
        for path in (os.path.join(directory, name) for name in listing):
            end = os.path.splitext(path.lower())[1]
            if end in _COMPILED or (end == "" and _is_program(path)):
                litter["tree.compiled"].append((path, os.lstat(path).st_size))
            elif end in _ARCHIVES:
                litter["tree.archive"].append((path, os.lstat(path).st_size))
    for rule, paths in litter.items():
        if paths:
            examples = listed([os.path.relpath(path, code) for path, _ in paths], _SHOWN)
            size = f", {sum(size for _, size in paths) / 1e6:.1f} MB" if rule != "tree.cache" else ""
            yield finding(rule, ADVICE, code, _WANTED[rule], f"{examples}{size}"[:300])


def _is_program(path: str) -> bool:
    """Whether a file without a suffix is a program of a compiler (ELF)."""
    if kind_of(path) == "file":
        with suppress(OSError), open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    return False
