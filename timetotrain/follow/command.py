"""Shows a run while it trains: as a page that is written again, or in TensorBoard.

All read the run's history, the only store of its curves. The path is a run's log (finished or still being written), its
history, or a folder that holds them; in a folder, the newest run is shown. TensorFlow-free.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import time

from common import files
from common.errors import UserError, one_line
from timetotrain.follow import page
from timetotrain.run import history

SECONDS = 5.0
_SOUND = "get a good copy of the history"
_FIX = "name a run's result_<i>.txt, its history_<i>.jsonl, or a folder that holds one"


def run(options: argparse.Namespace) -> int:
    """Writes the page or TensorBoard's events; returns the exit status.

    Raises UserError if there is no history, it is damaged, or the page cannot be written.
    """
    history_path = find(pathlib.Path(options.result))
    if options.tensorboard:
        from timetotrain.follow.tensorboard import Writer

        output = pathlib.Path(options.tensorboard)
        writer = Writer(output)

        def write(records: list[history.Record]) -> None:
            with one_line(f"{history_path}: its records cannot be drawn", _SOUND):
                writer.write(records)

    else:
        output = pathlib.Path(options.output or history_path.with_name(f"follow_{number(history_path)}.html"))

        def write(records: list[history.Record]) -> None:
            files.write_atomically(output, render(history_path, records))

    print(output, flush=True)
    while True:
        records = history.read(history_path)
        write(records)
        if not options.follow or page.ended(records):
            return 0
        try:
            time.sleep(SECONDS)
        except KeyboardInterrupt:
            return 130


def find(path: pathlib.Path) -> pathlib.Path:
    """Returns the history of a run. Raises UserError if there is none."""
    if os.path.isdir(path):
        histories = [*path.rglob("history_*.jsonl"), *path.glob(history.NAME)]
        newest = max(histories, key=lambda p: p.stat().st_mtime, default=None)
        if newest is None:
            raise UserError(f"{path}: no history of a run in it; {_FIX}")
        return newest
    log = re.fullmatch(r"result_(\d+)\.txt(\.partial)?", path.name)
    if log:
        path = path.with_name(f"history_{log[1]}.jsonl")
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such file; {_FIX}")
    return path


def number(path: pathlib.Path) -> str:
    """Returns the run number from its history's file name; 0 for the history beside checkpoints."""
    match = re.search(r"history_(\d+)", path.name)
    return match[1] if match else "0"


def render(path: pathlib.Path, records: list[history.Record]) -> bytes:
    """Returns the page of a history, which may come from a stranger."""
    with one_line(f"{path}: its records cannot be drawn", _SOUND):
        return page.render(records).encode()
