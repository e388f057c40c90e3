"""Starts child processes that never outlive the process that started them. TensorFlow-free.

Each command runs in its own session under a guard (this module, run as a program). The guard forwards SIGTERM to every
process the command started, and kills the remaining ones after a grace period. The kernel sends the guard a SIGTERM
when its parent dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from common.errors import UserError
from timetotrain.launch import procfs

# <linux/prctl.h>
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 60.0  # After SIGTERM, time for the last step and its checkpoint.
ADOPTED_SECONDS = 2.0  # Time for killed processes to disappear.
POLL_SECONDS = 0.05


class EndedError(UserError):
    """This process received a signal and ended its children; the exit code is 128 + the signal's number."""


class Children:
    """Runs child processes and ends them on a signal; several threads may start children at once.

    Attributes:
      ended_by: number of the signal that ended them; 0 if none has.
    """

    def __init__(self, fix: str = "begin again"):
        """`fix`: what the user can do after a signal has ended the children, for the error message."""
        self.ended_by, self._fix = 0, fix
        self._running: set[subprocess.Popen] = set()

    def run(self, command: Sequence[Any], **options: Any) -> int:
        """Runs a command with options of `start`; returns its exit status, or 128 + a deadly signal's number.

        Raises EndedError: a signal has ended this child or an earlier one.
        """
        self._raise_if_ended()
        process = start(command, **options)
        self._running.add(process)
        try:
            if self.ended_by:  # The signal arrived before the process was known.
                process.terminate()
            status = process.wait()
        except BaseException:
            process.terminate()
            raise
        finally:
            self._running.discard(process)
        self._raise_if_ended()
        return exit_status(status)

    @contextlib.contextmanager
    def ended_by_signals(self) -> Iterator[None]:
        """Makes SIGTERM and Ctrl-C end the running children and makes `run` raise; for the main thread."""
        before = {s: signal.signal(s, self._on_signal) for s in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _: Any) -> None:
        self.ended_by = number
        for process in list(self._running):
            process.terminate()

    def _raise_if_ended(self) -> None:
        if self.ended_by:
            name = signal.Signals(self.ended_by).name
            raise EndedError(f"{name}: what was running was ended; {self._fix}", 128 + self.ended_by)


def start(
    command: Sequence[Any],
    grace_seconds: float = GRACE_SECONDS,
    cwd: str | os.PathLike | None = None,
    **options: Any,
) -> subprocess.Popen:
    """Starts a command under a guard, in its own session; SIGTERM to the guard ends both within `grace_seconds`.

    The calling thread must live as long as the command: the kernel treats the thread's end as the parent's. `options`
    go to subprocess.Popen.
    """
    # The guard starts in the folder that lets Python find this module.
    home = pathlib.Path(__file__).resolve().parents[__spec__.name.count(".")]
    guard = [sys.executable, "-m", __spec__.name, os.getpid(), grace_seconds, os.path.abspath(cwd or ".")]
    return subprocess.Popen(
        [*map(str, guard), *map(str, command)], cwd=home, start_new_session=True, **options
    )


def exit_status(code: int) -> int:
    """Converts `Popen.returncode` to a shell's exit status: 128 + the signal's number after a deadly signal."""
    return code if code >= 0 else 128 - code


def kill_session(leader: int) -> int:
    """Kills a session's living processes; returns how many there were."""
    members = procfs.session_members(leader)
    _kill(members)
    return len(members)


def adopt_orphans() -> None:
    """Makes this process adopt the orphans of its children, so that it can end them."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def kill_children() -> None:
    """Kills and reaps this process's children, adopted ones included; gives up after `ADOPTED_SECONDS`."""
    deadline = time.monotonic() + ADOPTED_SECONDS
    while (left := procfs.children_of(os.getpid())) and time.monotonic() < deadline:
        _kill(left)
        time.sleep(POLL_SECONDS)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(AttributeError, OSError):  # Not on Linux.
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _guard(parent: int, grace_seconds: float, folder: str, command: Sequence[str]) -> int:
    """Runs a command in a folder until the command or the parent ends; returns the exit status."""
    terminated = []

    def pass_on(*_: Any) -> None:
        if not terminated:  # The signal to the group also reaches the guard.
            terminated.append(True)
            signal.setitimer(signal.ITIMER_REAL, max(grace_seconds, POLL_SECONDS))
            os.killpg(0, signal.SIGTERM)

    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    signal.signal(signal.SIGTERM, pass_on)
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if terminated or os.getppid() != parent:
        return 128 + signal.SIGTERM
    try:
        child = subprocess.Popen(command, cwd=folder)
    except OSError as error:
        raise UserError(f"{command[0]}: {error.strerror}; is the command right?") from error
    if terminated:  # The signal may have arrived before the command started.
        os.killpg(0, signal.SIGTERM)
    status = child.wait()
    # Processes that the command started have until the alarm to end.
    while terminated and {*procfs.session_members(os.getpid())} - {os.getpid()}:
        time.sleep(POLL_SECONDS)
    return exit_status(status)


def _main(parent: str, grace_seconds: str, folder: str, *command: str) -> int:
    try:
        return _guard(int(parent), float(grace_seconds), folder, command)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
