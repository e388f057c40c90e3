"""Runs numbered trials in forked processes with limited memory; one that dies or hangs ends only its process."""

from __future__ import annotations

import multiprocessing
import os
import resource
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

CHUNK = 20  # Trials per process.


def memory(key: str) -> int:
    """Returns a size from /proc/self/status, such as VmRSS, in bytes."""
    return int(Path("/proc/self/status").read_text().partition(f"{key}:")[2].split()[0]) * 1024


def _work(
    numbers: Sequence[int], run: Callable[[int, Path], dict], folder: Path, limit: int, results: Any
) -> None:
    """Runs in a forked process: runs trials one after the other and sends the observations."""
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)  # For the libraries' own lines, from C++.
    for number in numbers:
        results.send(("begins", number))
        with tempfile.TemporaryDirectory(dir=folder) as place:
            results.send(("ends", {"number": number, **run(number, Path(place))}))
    results.send(("done", None))


def tried(
    numbers: Sequence[int],
    run: Callable[[int, Path], dict[str, Any]],
    folder: Path,
    limit: int,
    seconds: float,
    kind: Callable[[int], str],
) -> Iterator[dict[str, Any]]:
    """Yields the observations of each trial; if a trial ends or hangs its process, a new process continues.

    Args:
      numbers: numbers of the trials.
      run: makes and tries one in an empty folder; returns the observations.
      folder: for the trials' folders.
      limit: address space of a process in bytes.
      seconds: a longer trial counts as hanging.
      kind: name of a trial whose process died.
    """
    context = multiprocessing.get_context("fork")
    waiting = list(numbers)
    while waiting:
        ours, theirs = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(waiting[:CHUNK], run, folder, limit, theirs))
        worker.start()
        theirs.close()
        current, left = None, waiting[:CHUNK]
        while True:
            try:
                word, value = ours.recv() if ours.poll(seconds) else ("hangs", None)
            except EOFError:
                word, value = "died", None
            if word == "begins":
                current = value
            elif word == "ends":
                left.remove(value["number"])
                yield value
            else:
                break
        if word == "hangs":
            worker.kill()
        worker.join()
        if word != "done" and current in left:
            left.remove(current)
            yield {"number": current, "kind": kind(current), "died": word, "exit": worker.exitcode}
        waiting = [*left, *waiting[CHUNK:]]
