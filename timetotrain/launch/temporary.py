"""A folder for the temporary files of a run's processes, which a killed process leaves behind. TensorFlow-free."""

from __future__ import annotations

import contextlib
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
            shutil.rmtree(path, ignore_errors=True)
    mark = f"{_PREFIX}{os.getpid()}-{procfs.began(os.getpid())}-"
    path = tempfile.mkdtemp(prefix=mark)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
