"""Sends a process's signs of life to its launcher: its step, its log, why it ends.

Each message is one line with a JSON object, written to the pipe whose number is in the environment. Without a
launcher, every function does nothing. TensorFlow-free.
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
# A process without its launcher stops itself: at the next step, or after this long at once.
ORPHAN_SECONDS = 15.0
# The longest text in a message: writes shorter than PIPE_BUF (4096 bytes on Linux) are whole or fail.
LONGEST = 2000


class Link:
    """The pipe to the launcher."""

    def __init__(self) -> None:
        self._pipe: int | None = None
        self.step = -1
        self.own_seconds: Mapping[str, float] | None = None

    def open(self) -> None:
        """Removes the pipe from the environment, so that no child process uses it, and starts the heartbeat."""
        number = os.environ.pop(VARIABLE, "")
        if not number.isdecimal() or not _is_pipe(int(number)):
            return
        self._pipe = int(number)
        os.set_inheritable(self._pipe, False)
        os.set_blocking(self._pipe, False)
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def tell(self, **facts: Any) -> bool:
        """Sends `facts`; returns whether they reached the pipe."""
        if self._pipe is None:
            return False
        try:
            facts = {k: v[:LONGEST] if isinstance(v, str) else v for k, v in facts.items()}
            os.write(self._pipe, json.dumps({"pid": os.getpid(), **facts}).encode() + b"\n")
        except BlockingIOError:
            return False  # The pipe is full because the launcher is stopped; it reads the pipe later.
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
    """Starts the heartbeat if a launcher listens."""
    _LINK.open()


def tell(**facts: Any) -> bool:
    """Sends facts to the launcher, which knows log, error, lost, signal and result; False if they did not go out."""
    return _LINK.tell(**facts)


def at_step(step: int, own_seconds: Mapping[str, float] | None = None) -> None:
    """Sets the step that the next beat sends and, if known, the seconds spent alone (common/train/step_timing.py)."""
    _LINK.step, _LINK.own_seconds = step, own_seconds or _LINK.own_seconds
