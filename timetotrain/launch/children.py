"""Starts processes of benchmarks that never outlive the process that started them. TensorFlow-free.

Each runs in its own session and sends signs of life through a pipe (common/distributed/heartbeat.py). Once nobody reads
the pipe, it stops by itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from common.distributed.heartbeat import GRACE_VARIABLE, VARIABLE
from common.errors import UserError
from timetotrain.launch import procfs

PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
GRACE_SECONDS = 60.0  # After SIGTERM, time for the last step and its checkpoint.
ADOPTED_SECONDS = 2.0  # Time for killed processes to disappear.
POLL_SECONDS = 0.05


class EndedError(UserError):
    """This process received a signal and ended its children; the exit code is 128 + the signal's number."""


class Children:
    """Runs benchmarks' processes and ends them on a signal; several threads may start some at once.

    Attributes:
      ended_by: number of the signal that ended them; 0 if none has.
    """

    def __init__(self, fix: str = "begin again"):
        """`fix`: what the user can do after a signal has ended the children, for the error message."""
        self.ended_by, self._fix = 0, fix
        self._running: set[subprocess.Popen] = set()

    def run(self, command: Sequence[Any], environment: Mapping[str, str], output: IO[str]) -> int:
        """Runs a command; returns its exit status, or 128 + a deadly signal's number.

        Args:
          output: for what the process prints, and for the error that it would leave to a launcher to print.

        Raises:
          EndedError: a signal has ended this child or an earlier one.
          UserError: the command cannot start.
        """
        self._raise_if_ended()
        environment = {**environment, GRACE_VARIABLE: str(GRACE_SECONDS)}
        process, beats = start(command, environment, stdout=output, stderr=output)
        self._running.add(process)
        try:
            if self.ended_by:  # The signal arrived before the process was known.
                process.terminate()
            with open(beats, "rb") as lines:  # They end with the process.
                errors = [facts["error"] for facts in map(facts_of, lines) if "error" in facts]
            status = process.wait()
        except BaseException:
            process.terminate()
            raise
        finally:
            self._running.discard(process)
        kill_session(process.pid)  # What it left behind.
        self._raise_if_ended()
        if errors:
            print(f"error: {errors[0]}", file=output)
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
            last = threading.Timer(GRACE_SECONDS, kill_session, [process.pid])
            last.daemon = True
            last.start()

    def _raise_if_ended(self) -> None:
        if self.ended_by:
            name = signal.Signals(self.ended_by).name
            raise EndedError(f"{name}: what was running was ended; {self._fix}", 128 + self.ended_by)


def start(
    command: Sequence[Any], environment: Mapping[str, str], **streams: Any
) -> tuple[subprocess.Popen, int]:
    """Starts a command in its own session; returns it, and the pipe's end from which its signs of life come.

    `streams` go to subprocess.Popen. Raises UserError: the command cannot start.
    """
    try:
        beats, write = os.pipe()
        try:
            process = subprocess.Popen(
                command, env={**environment, VARIABLE: str(write)}, stdin=subprocess.DEVNULL,
                start_new_session=True, pass_fds=(write,), **streams,
            )  # fmt: skip
        except OSError:
            os.close(beats)
            raise
        finally:
            os.close(write)
    except OSError as error:
        raise UserError(f"{command[0]}: {error.strerror}; is the command right?") from error
    return process, beats


def facts_of(line: bytes) -> dict[str, Any]:
    """Returns the facts in a line of such a pipe; {} if another program wrote it."""
    with contextlib.suppress(ValueError):
        facts = json.loads(line)
        return facts if isinstance(facts, dict) else {}
    return {}


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
    with contextlib.suppress(AttributeError, OSError):  # Not on Linux.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


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
