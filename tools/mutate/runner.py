"""Runs the tests against one fault at a time, in copies of the project.

TensorFlow takes seconds to import, so one process imports it and forks a child for each fault. Nothing of the project
is imported before the fork: each child imports the copy that holds its fault.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tools.mutate.faults import ROOT, Fault

CAUGHT, SURVIVED, TIMEOUT, BROKEN = "caught", "survived", "timeout", "broken"
# Pytest's statuses: tests failed; nothing was collected or the arguments were wrong, so the entry itself is broken.
_STATUS = {0: SURVIVED, 1: CAUGHT, 2: CAUGHT, 3: BROKEN, 4: BROKEN, 5: BROKEN}


class Result(NamedTuple):
    """What happened to a fault: CAUGHT, SURVIVED, TIMEOUT (which counts as caught) or BROKEN; and the seconds."""

    fault: Fault
    outcome: str
    seconds: float
    log: str


def copy_project(folder: Path) -> None:
    """Copies the files that git tracks, and links the environment."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    for name in filter(None, names):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, target)
    if (ROOT / ".venv").exists():
        (folder / ".venv").symlink_to((ROOT / ".venv").resolve())


def _import_libraries() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import tensorflow  # noqa: F401
    import tf_keras  # noqa: F401


def _start(folder: Path, fault: Fault, log: Path) -> int:
    """Forks a child that applies the fault in `folder` and runs its tests; returns the child's number."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    try:
        os.chdir(folder)
        os.environ["PYTHONPATH"] = str(folder)
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.dont_write_bytecode = True
        sys.path[:] = [str(folder), *(p for p in sys.path if Path(p or ".").resolve() != ROOT)]
        for name in [name for name in sys.modules if name.partition(".")[0] in ("tools", "tests", "common")]:
            del sys.modules[name]
        import pytest

        status = pytest.main(["-x", "-q", "-n0", "-m", "not study and not e2e", *fault.tests])
        sys.stdout.flush()
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        status = 3
    os._exit(int(status))


def run(faults: Iterable[Fault], scratch: Path, slots: int = 2, timeout: float = 300) -> Iterator[Result]:
    """Runs every fault's tests, `slots` at a time, and yields results as they come.

    Args:
      faults: what to try.
      scratch: an empty folder for the copies and the tests' output.
      slots: copies of the project, each with one fault at a time.
      timeout: seconds after which a fault counts as TIMEOUT.
    """
    _import_libraries()
    folders = [scratch / f"copy{i}" for i in range(slots)]
    for folder in folders:
        copy_project(folder)
    waiting = list(faults)[::-1]
    free, running = list(folders), {}
    while waiting or running:
        while waiting and free:
            fault, folder = waiting.pop(), free.pop()
            target = folder / fault.file
            original = target.read_text(encoding="utf-8")
            target.write_text(fault.applied(original), encoding="utf-8")
            log = scratch / f"{folder.name}.log"
            running[_start(folder, fault, log)] = (fault, folder, original, time.monotonic(), log)
        time.sleep(0.05)
        for child in list(running):
            fault, folder, original, began, log = running[child]
            done, status = os.waitpid(child, os.WNOHANG)
            late = time.monotonic() - began > timeout
            if not done and not late:
                continue
            if not done:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status) if done else None
            # A child that dies by a signal has met the fault, too.
            outcome = TIMEOUT if not done else _STATUS.get(code, CAUGHT)
            (folder / fault.file).write_text(original, encoding="utf-8")
            text = log.read_text(errors="replace")
            del running[child]
            free.append(folder)
            yield Result(fault, outcome, round(time.monotonic() - began, 1), text)
