"""Keeps the checkpoint with the best quality beside the newest ones: `best.npz` points to it. TensorFlow-free.

The history beside the checkpoints records every evaluation, so the best one stays known across resumes. The pointer is
a symbolic link, replaced atomically; on a file system without links it is a copy.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from collections.abc import Sequence

from common.config.quality import Measure
from common.files import whole
from common.train.checkpoint_file import BEST
from timetotrain.run.history import Record


def best(measure: Measure, evaluations: Sequence[Record], steps: Sequence[int]) -> Record | None:
    """Returns the best evaluation after any of `steps` (the earliest of equals); None if there is none."""
    found = [e for e in evaluations if e["step"] in set(steps) and measure.score(e["value"]) > float("-inf")]
    return max(found, key=lambda e: (measure.score(e["value"]), -e["step"]), default=None)


def protected(measure: Measure, evaluations: Sequence[Record], steps: Sequence[int]) -> set[int]:
    """Returns the steps of checkpoints that must stay: the best one, and those still awaiting evaluation."""
    last = max((e["step"] for e in evaluations), default=-1)
    found = best(measure, evaluations, steps)
    return {step for step in steps if step > last} | ({found["step"]} if found else set())


def point(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Makes `folder`/best.npz point to the checkpoint `name` beside it; returns it.

    Raises:
      OSError: the folder cannot be written.
    """
    path, made = folder / BEST, folder / f".{BEST}.{os.getpid()}"
    if path.is_symlink() and os.readlink(path) == name:
        return path
    with contextlib.suppress(OSError):
        made.unlink()
    try:
        os.symlink(name, made)
        os.replace(made, path)
    except OSError:  # A file system without links.
        with whole(path) as copy:
            shutil.copyfile(folder / name, copy)
    return path
