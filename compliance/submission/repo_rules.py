"""Finds what a results repository refuses: names, sizes, broken links (mlperf_logging/repo_checker, since 2.0.0)."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from compliance.findings import ADVICE, ERROR, Finding, finding

FIRST_ROUND = (2, 0)
# repo_checker.py, _check_file_sizes.
_MAX_BYTES = 50 << 20
_OWN = frozenset({".git"})  # the repository itself, in a checkout
# Files that git, its hosts and pre-commit read at the top of a checkout; not submitted.
_OF_CHECKOUT = frozenset(
    (".github", ".gitlab-ci.yml", ".gitignore", ".gitattributes", ".gitmodules", ".pre-commit-config.yaml")
)


def repository(org: Path) -> Iterator[Finding]:
    """Reports files and directories in a submitter's folder that the results repository refuses.

    If the folder is the top of a checkout, the files that make it a checkout are only advice: they are not submitted.
    """
    checkout = os.path.exists(org / ".git")
    for directory, names, files in os.walk(org):
        checkout_files = _OF_CHECKOUT if checkout and Path(directory) == org else frozenset()
        for name in sorted(checkout_files & {*names, *files}):
            expected, about = "results/, systems/ and benchmarks/ alone", {"wording": "tree.name.checkout"}
            yield finding("tree.name", ADVICE, os.path.join(directory, name), expected, name, **about)
        names[:] = sorted({*names} - checkout_files - _OWN)
        for name in (*names, *sorted({*files} - checkout_files)):
            path = os.path.join(directory, name)
            if name.startswith(".") or " " in name:
                expected = "no space, and no dot at the beginning"
                yield finding("tree.name", ERROR, path, expected, repr(name)[:80])
            yield from _one(path)


def _one(path: str) -> Iterator[Finding]:
    try:
        status = os.lstat(path)
    except OSError:
        return
    if stat.S_ISLNK(status.st_mode):
        if not os.path.exists(path):
            expected, actual = "a link to a file that is there", os.readlink(path)[:80]
            yield finding("tree.link", ERROR, path, expected, actual)
    elif stat.S_ISREG(status.st_mode) and status.st_size > _MAX_BYTES:
        yield finding("tree.size", ERROR, path, "at most 50 MB", f"{status.st_size / (1 << 20):.0f} MB")
