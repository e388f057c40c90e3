"""Refuses a run without a data folder, or whose preset nothing determines. TensorFlow-free."""

import os

from common.config import automatic, benchmarks
from common.errors import UserError
from common.files import ROOT


def check(path: str | None, benchmark: str) -> None:
    """Raises UserError if `--data_dir` is missing or not a folder."""
    hint = " or `timetotrain data`" if _takes_own_data(benchmark) else ""
    fix = f"name the folder that {benchmark}/init_datasets.sh{hint} filled"
    if not path:
        raise UserError(f"--data_dir: missing; {fix}")
    # TensorFlow checks object stores later.
    if "://" not in path and not os.path.isdir(path):
        raise UserError(f"--data_dir={path}: no such folder; {fix}")


def no_system(benchmark: str, data: str | None) -> UserError:
    """Returns the error for a run whose preset neither the user nor the data determine."""
    names = ", ".join([automatic.NAME, *benchmarks.module(benchmark, "presets").PRESETS])
    where = f" for the data in {data}" if data else ""
    hint = ""
    if _takes_own_data(benchmark):
        hint = f"; of your own files, `timetotrain data {benchmark} FILES OUT` makes a folder that needs none"
    return UserError(f"--system: name a preset{where}; known: {names}{hint}")


def _takes_own_data(benchmark: str) -> bool:
    return (ROOT / benchmark / "custom_data.py").is_file()
