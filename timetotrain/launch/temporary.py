"""A folder for the temporary files of a run's processes, which a killed process leaves behind. TensorFlow-free."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from timetotrain.launch import procfs

_PREFIX = "timetotrain-launch-"


@contextlib.contextmanager
def folder() -> Iterator[str]:
    """Yields a new folder for TMPDIR, and removes it at the end; also those of launchers that were killed."""
    for path in pathlib.Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner, _, began = path.name.removeprefix(_PREFIX).partition("-")
        if owner.isdecimal() and procfs.began(int(owner)) != began.partition("-")[0]:
            # In another container the owner has another number here; its lock says that it lives.
            with contextlib.suppress(OSError), _locked(path):
                shutil.rmtree(path, ignore_errors=True)
    mark = f"{_PREFIX}{os.getpid()}-{procfs.began(os.getpid())}-"
    path = tempfile.mkdtemp(prefix=mark)
    try:
        with _locked(path):
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: str | os.PathLike) -> Iterator[None]:
    """Locks a folder; raises OSError if another process has."""
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
