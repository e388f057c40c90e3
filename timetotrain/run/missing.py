"""Says what a command line lacks: a preset, or a folder with data. TensorFlow-free."""

from __future__ import annotations

import os

from common.config import automatic, benchmarks
from common.errors import UserError
from common.files import ROOT


def check_data_dir(path: str | None, benchmark: str) -> None:
    """Raises UserError if `--data_dir` is missing or not a folder."""
    own = " or `timetotrain data`" if _takes_own_data(benchmark) else ""
    fix = f"name the folder that {benchmark}/init_datasets.sh{own} filled"
    if not path:
        raise UserError(f"--data_dir: missing; {fix}")
    # TensorFlow checks object stores later.
    if "://" not in path and not os.path.isdir(path):
        raise UserError(f"--data_dir={path}: no such folder; {fix}")


def no_system(benchmark: str, data: str | None) -> UserError:
    """Returns the error for a run whose preset neither the user nor the data determine."""
    known = ", ".join([automatic.NAME, *benchmarks.module(benchmark, "presets").PRESETS])
    where = f" for the data in {data}" if data else ""
    own = ""
    if _takes_own_data(benchmark):
        own = f"; of your own files, `timetotrain data {benchmark} FILES OUT` makes a folder that needs none"
    return UserError(f"--system: name a preset{where}; known: {known}{own}")


def _takes_own_data(benchmark: str) -> bool:
    return (ROOT / benchmark / "custom_data.py").is_file()
