"""Checks what a repository of results refuses: names, sizes, broken links (mlperf_logging/repo_checker, from 2.0.0)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from compliance.findings import ERROR, Finding, finding

FIRST_ROUND = (2, 0)
# repo_checker.py, _check_file_sizes.
_MAX_BYTES = 50 << 20
_OWN = frozenset({".git"})  # the repository itself, in a checkout


def repository(org: Path) -> Iterator[Finding]:
    """Reports files and directories below a submitter's folder that the repository of results refuses."""
    for directory, names, files in os.walk(org):
        names[:] = sorted(name for name in names if name not in _OWN)
        for name in (*names, *sorted(files)):
            path = os.path.join(directory, name)
            if name.startswith(".") or " " in name:
                wanted = "no space, and no dot at the beginning"
                yield finding("tree.name", ERROR, path, wanted, repr(name)[:80])
            yield from _one(path)


def _one(path: str) -> Iterator[Finding]:
    try:
        status = os.lstat(path)
    except OSError:
        return
    if stat.S_ISLNK(status.st_mode):
        if not os.path.exists(path):
            wanted, found = "a link to a file that is there", os.readlink(path)[:80]
            yield finding("tree.link", ERROR, path, wanted, found)
    elif stat.S_ISREG(status.st_mode) and status.st_size > _MAX_BYTES:
        found = f"{status.st_size / (1 << 20):.0f} MB"
        yield finding("tree.size", ERROR, path, "at most 50 MB", found)
