"""Processes that a study starts and that do not outlive it, however it ends.

Each runs in a session of its own under a guard, `python -m studies.children PARENT COMMAND ...`, which hands SIGTERM
on to all that the command started, and to which the kernel sends one when the study is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from common.errors import UserError
from studies.data import ROOT

PR_SET_PDEATHSIG = 1  # Of linux/prctl.h.
GRACE_SECONDS = 60.0  # For the last step and its checkpoint, after SIGTERM.


class Children:
    """The processes of a study, which threads may start at the same time."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen] = set()
        self._ended_by: int | None = None

    def run(self, command: Sequence[Any], **options: Any) -> int:
        """The exit status of a command, which runs in the project's folder; 128 + the number of a signal.

        Args:
          command: and its arguments.
          **options: of subprocess.Popen.

        Raises:
          UserError: the study was told to end.
        """
        guarded = [sys.executable, "-m", "studies.children", str(os.getpid()), *map(str, command)]
        process = subprocess.Popen(guarded, cwd=ROOT, start_new_session=True, **options)
        self._running.add(process)
        if self._ended_by:
            process.terminate()
        status = process.wait()
        self._running.discard(process)
        if self._ended_by:
            name = signal.Signals(self._ended_by).name
            raise UserError(
                f"{name}: what was running was ended; begin the study again", 128 + self._ended_by
            )
        return status if status >= 0 else 128 - status

    @contextlib.contextmanager
    def ended_by_signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C end what is running, and `run` says so. For the main thread."""
        before = {s: signal.signal(s, self._on_signal) for s in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _: Any) -> None:
        self._ended_by = number
        for process in list(self._running):
            process.terminate()


def _guard(parent: int, command: Sequence[str]) -> int:
    """Runs a command until it, or the parent, ends."""
    told = []

    def hand_on(*_: Any) -> None:
        if not told:  # The group's signal comes back to the guard.
            told.append(time.monotonic())
            os.killpg(0, signal.SIGTERM)

    signal.signal(signal.SIGTERM, hand_on)
    with contextlib.suppress(AttributeError, OSError):  # Not on Linux.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return 128 + signal.SIGTERM
    child = subprocess.Popen(command)
    while True:
        try:
            status = child.wait(1)
            break
        except subprocess.TimeoutExpired:
            if told and time.monotonic() - told[0] > GRACE_SECONDS:
                os.killpg(0, signal.SIGKILL)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(_guard(int(sys.argv[1]), sys.argv[2:]))
