"""Runs the tests against one fault at a time, in copies of the project.

TensorFlow takes seconds to import, so one process imports it and forks a child for each fault. No project module is
imported before the fork: each child imports the copy that contains its fault.

A failing test has noticed the fault only if it passes without the fault, so it is rerun in the sound copy. A test that
also fails there (it needs what a copy lacks, or it is broken) is left out, and the fault is retried.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tools import deadline
from tools.docs.markdown import tracked
from tools.mutate.faults import ROOT, Fault

CAUGHT, SURVIVED, TIMEOUT, BROKEN = "caught", "survived", "timeout", "broken"
# Pytest's statuses: all passed; one failed; one could not be imported. Any other status: the entry itself is wrong.
_STATUS = {0: SURVIVED, 1: CAUGHT, 2: CAUGHT}


class Result(NamedTuple):
    """The outcome of trying a fault.

    Attributes:
      fault: the fault that was tried.
      outcome: CAUGHT; SURVIVED; TIMEOUT (undecided); BROKEN (the tests could not run).
      seconds: time taken.
      by: the test that caught it; '' for the other outcomes.
      log: the tests' output.
    """

    fault: Fault
    outcome: str
    seconds: float
    by: str
    log: str


def copy_project(folder: Path) -> None:
    """Copies the files that git tracks or would track, and links the environment."""
    for name in tracked():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    if (ROOT / ".venv").exists():
        (folder / ".venv").symlink_to((ROOT / ".venv").resolve())


def _import_libraries() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import tensorflow  # noqa: F401
    import tf_keras  # noqa: F401


class _Run(NamedTuple):
    """A running child: its fault, the file's original text, its start, the test to run first, and tests to ignore."""

    fault: Fault
    folder: Path
    original: str
    began: float
    first: str
    unsound: tuple[str, ...]

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")

    @property
    def failed(self) -> Path:
        return self.folder.with_suffix(".failed")


class _FirstFailure:
    """A pytest plugin that writes the name of the first test that fails, or of a file that cannot be imported."""

    def __init__(self, path: Path):
        self.path = path

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.path.exists():
            self.path.write_text(report.nodeid, encoding="utf-8")

    pytest_collectreport = pytest_runtest_logreport


def _forked(folder: Path, arguments: list[str], log: Path, failed: Path) -> int:
    """Forks a child that runs pytest in `folder`; returns its pid."""
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
        os.environ.pop(deadline.END, None)  # A test that the time leaves out would miss the fault.
        sys.dont_write_bytecode = True
        sys.path[:] = [str(folder), *(p for p in sys.path if Path(p or ".").resolve() != ROOT)]
        for name in [name for name in sys.modules if name.partition(".")[0] in ("tools", "tests", "common")]:
            del sys.modules[name]
        import pytest

        failed.unlink(missing_ok=True)
        options = ["-x", "-q", "-n0", "-m", "not study and not e2e", *arguments]
        status = pytest.main(options, plugins=[_FirstFailure(failed)])
        sys.stdout.flush()
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        status = 3
    os._exit(int(status))


def _passes(test: str, folder: Path, timeout: float) -> bool:
    """Whether a test passes, or a file can be imported, in a copy without a fault."""
    arguments = [test] if "::" in test else ["--collect-only", test]
    child = _forked(folder, arguments, folder.with_suffix(".sound.log"), folder.with_suffix(".sound.failed"))
    began = time.monotonic()
    while time.monotonic() - began < timeout:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.05)
    _kill(child)
    return False


def _kill(child: int) -> None:
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _begin(fault: Fault, folder: Path, first: str, unsound: tuple[str, ...] = ()) -> tuple[int, _Run]:
    """Applies a fault in `folder` and forks the child that runs its tests."""
    target = folder / fault.file
    work = _Run(fault, folder, target.read_text(encoding="utf-8"), time.monotonic(), first, unsound)
    target.write_text(fault.applied(work.original), encoding="utf-8")
    left_out = [part for test in unsound for part in ("--deselect" if "::" in test else "--ignore", test)]
    arguments = [*left_out, *([first] if first else fault.tests)]
    return _forked(folder, arguments, work.log, work.failed), work


def run(
    faults: Iterable[Fault],
    scratch: Path,
    slots: int = 2,
    timeout: float = 300,
    by: Mapping[str, str] | None = None,
) -> Iterator[Result]:
    """Runs every fault's tests, in `slots` copies of the project in an empty folder; yields results as they arrive.

    After `timeout` seconds a fault counts as TIMEOUT. The tests that caught the faults before, `by`, run first.
    """
    _import_libraries()
    free = [scratch / f"copy{i}" for i in range(slots)]
    for folder in free:
        copy_project(folder)
    sound: dict[str, bool] = {}  # Whether a test passes without a fault.
    waiting = list(faults)[::-1]
    running: dict[int, _Run] = {}
    while waiting or running:
        while waiting and free:
            fault = waiting.pop()
            child, work = _begin(fault, free.pop(), (by or {}).get(fault.name, ""))
            running[child] = work
        time.sleep(0.05)
        for child, work in list(running.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            late = time.monotonic() - work.began > timeout
            if not done and not late:
                continue
            if not done:
                _kill(child)
            del running[child]
            (work.folder / work.fault.file).write_text(work.original, encoding="utf-8")
            outcome = TIMEOUT if not done else _STATUS.get(os.waitstatus_to_exitcode(status), BROKEN)
            test = (
                work.failed.read_text(encoding="utf-8") if outcome == CAUGHT and work.failed.exists() else ""
            )
            if test and test not in sound:
                sound[test] = _passes(test, work.folder, timeout)
            unsound = () if sound.get(test, True) else (test,)
            # The test that caught it before has been renamed, or no longer notices it.
            vanished = bool(work.first) and outcome != CAUGHT
            if unsound or vanished:
                again, work = _begin(work.fault, work.folder, "", work.unsound + unsound)
                running[again] = work
                continue
            free.append(work.folder)
            seconds = round(time.monotonic() - work.began, 1)
            yield Result(work.fault, outcome, seconds, test, work.log.read_text(errors="replace"))
