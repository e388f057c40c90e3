"""Runs one trial (an ordinary run of the benchmark in its own process) and reads its log."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from common.config import benchmarks
from common.config.quality import parts
from timetotrain.launch.children import Children
from timetotrain.launch.watch.worker import POLL_SECONDS
from timetotrain.run import log_ending
from timetotrain.search import space as spaces


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes:
      quality: at the last evaluation; None if there is none, or the run diverged or was interrupted.
      minutes: time from run_start to run_stop; None if the run did not end by itself.
      reached: whether the run met the target.
      message: one line that says why there is no result.
    """

    quality: float | None = None
    minutes: float | None = None
    reached: bool = False
    message: str = ""

    def objective(self, name: str) -> float | None:
        """Returns the quality, or the minutes for "time"; None without either, or if "time" misses the target."""
        if self.quality is None or self.minutes is None or (name == "time" and not self.reached):
            return None
        return self.quality if name == "quality" else self.minutes


@dataclasses.dataclass(frozen=True)
class Command:
    """Runs trials: holds the command line that all of them share.

    Attributes:
      benchmark: the package.
      flags: passed to every trial.
      environment: added for every trial; this process's own environment takes precedence.
      part: which of several qualities counts; "" if there is one.
    """

    benchmark: str
    flags: tuple[str, ...]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    part: str = ""

    def run(self, values: Mapping[str, Any], folder: pathlib.Path, children: Children) -> Outcome:
        """Trains with {field: value} set; results and messages go to `folder`. Raises EndedError after a signal.

        The folder is emptied first, so that an earlier run's log cannot be mistaken for this one's.
        """
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        fields = [f"--config.{name}={spaces.text(value)}" for name, value in values.items()]
        status, _ = attempt(self.benchmark, [*self.flags, *fields], folder, children, self.environment)
        if status in (0, 1):
            return read(folder, self.part)
        return Outcome(message=last_line(folder) or f"exit {status}")


def attempt(
    benchmark: str,
    flags: Sequence[str],
    folder: pathlib.Path,
    children: Children,
    environment: Mapping[str, str],
) -> tuple[int, list[str]]:
    """Runs a benchmark once; results and messages (output.txt) go to `folder`. Returns (exit status, command line).

    Raises EndedError after a signal.
    """
    command = [
        sys.executable, "-m", benchmarks.command(benchmark), *flags, f"--result_dir={folder}", "--run=0",
    ]  # fmt: skip
    with open(folder / "output.txt", "w") as output:
        with contextlib.suppress(OSError):  # Held until this process and the run have ended; see `wait`.
            fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = children.run(command, {**environment, **os.environ}, output)
    return status, command


def wait(folder: pathlib.Path, children: Children) -> None:
    """Waits until a run in this folder has ended whose search was killed: it stops by itself, after its step.

    A signal to `children` ends the wait.
    """
    with contextlib.suppress(FileNotFoundError), open(folder / "output.txt") as output:
        if _locked(output):
            print(f"waiting for the run of a killed search to end: {folder}", file=sys.stderr)
        while not children.signals.number and _locked(output):
            time.sleep(POLL_SECONDS)


def _locked(file: IO[str]) -> bool:
    with contextlib.suppress(OSError):
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False  # Or a file system without locks.


def read(folder: pathlib.Path, part: str = "") -> Outcome:
    """Reads the result from a trial's folder; an interrupted run has none. `part`: as `Command.part`."""
    end = ending_of(folder)
    if end is None or not end.whole:
        return Outcome(message=last_line(folder) or "no log")
    quality = parts(end.quality).get(part)
    if quality is None:
        return Outcome(minutes=end.minutes, message=end.reason or "no finite evaluation")
    return Outcome(quality, end.minutes, end.reached, end.reason)


def ending_of(folder: pathlib.Path) -> log_ending.Ending | None:
    """Returns how the run in a folder ended; None if it has no log, or an incomplete one."""
    logs = sorted(folder.glob("*/*/result_0.txt"))
    return log_ending.read(logs[0]) if logs else None


def last_line(folder: pathlib.Path) -> str:
    """Returns the last line of a run's messages, cut to 300 characters; "" if there is none."""
    path = folder / "output.txt"
    lines = path.read_text(errors="replace").strip().splitlines() if path.is_file() else []
    return lines[-1][:300] if lines else ""
