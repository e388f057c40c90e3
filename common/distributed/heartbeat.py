"""Sends a process's signs of life to the launcher that started it: its step, its log, why it ends.

Each is a line with a JSON object, into the pipe whose number is in the environment. TensorFlow-free; without a launcher
every function does nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import threading
import time
from collections.abc import Mapping
from typing import Any

VARIABLE = "LAUNCH_PIPE"
BEAT_SECONDS = 0.5
# A process whose launcher is gone stops itself: at the next step, or after so long at once.
ORPHAN_SECONDS = 15.0
# The longest text in a line: writes shorter than PIPE_BUF (4096 bytes on Linux) are whole or fail.
LONGEST = 2000


class Link:
    """The pipe to the launcher."""

    def __init__(self) -> None:
        self._pipe: int | None = None
        self.step = -1
        self.own_seconds: Mapping[str, float] | None = None

    def open(self) -> None:
        """Takes the pipe out of the environment, so that no child process uses it, and starts the heartbeat."""
        number = os.environ.pop(VARIABLE, "")
        if not number.isdecimal() or not _is_pipe(int(number)):
            return
        self._pipe = int(number)
        os.set_inheritable(self._pipe, False)
        os.set_blocking(self._pipe, False)
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def tell(self, **facts: Any) -> bool:
        """Sends `facts`; returns whether a launcher has them now."""
        if self._pipe is None:
            return False
        try:
            facts = {k: v[:LONGEST] if isinstance(v, str) else v for k, v in facts.items()}
            os.write(self._pipe, json.dumps({"pid": os.getpid(), **facts}).encode() + b"\n")
        except BlockingIOError:
            return False  # The pipe is full, since the launcher is stopped; it will read it later.
        except OSError:
            self._pipe = None
            return False
        return True

    def _beat(self) -> None:
        while self.tell(step=self.step, own_seconds=self.own_seconds) or self._pipe is not None:
            time.sleep(BEAT_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ORPHAN_SECONDS)
        os._exit(128 + signal.SIGTERM)


def _is_pipe(number: int) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISFIFO(os.fstat(number).st_mode)
    return False


_LINK = Link()


def start() -> None:
    """Starts the heartbeat where a launcher listens."""
    _LINK.open()


def tell(**facts: Any) -> bool:
    """Sends facts to the launcher, which knows log, error, lost, signal and result; False where there is none."""
    return _LINK.tell(**facts)


def at_step(step: int, own_seconds: Mapping[str, float] | None = None) -> None:
    """Keeps for the next beat the last step and, if known, the seconds spent alone (common/train/step_timing.py)."""
    _LINK.step, _LINK.own_seconds = step, own_seconds or _LINK.own_seconds
